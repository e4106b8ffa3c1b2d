"""Problems made of a model, a cluster and a topology or a fabric."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Fabric, Topology, TopoplanError
from topoplan.testing import reference
from topoplan_engine import problem_on, problem_on_fabric


@attrs.frozen
class Wired(Topology):
    """The reference ring of four hosts, with as many paths as the demand has groups."""

    name = "wired"
    follows_demand = True

    def build(self, context):
        groups = 0 if context.demand is None else context.demand.n_groups
        return attrs.evolve(reference.ring(), max_paths=1 + groups)


def problem(n_hosts=4):
    return problem_on(reference.graph(), reference.cluster(n_hosts), reference.Costs(), Wired())


def test_a_topology_builds_the_fabric_of_a_demand():
    built = problem().build_fabric
    assert built(None, np.random.default_rng(0)).max_paths == 1
    assert built(reference.demand(), np.random.default_rng(0)).max_paths == 2
    assert (problem().topology, problem().reconfigurable) == ("wired", True)
    problem().space.initial().check(reference.graph(), 4)


def test_a_fabric_that_the_cluster_cannot_have_is_refused():
    with pytest.raises(TopoplanError, match="has 4 hosts, the cluster 8"):
        problem(n_hosts=8).build_fabric(None, np.random.default_rng(0))


def test_a_fabric_is_there_for_every_demand():
    fabric = Fabric.from_links(name="mine", n_hosts=4, links=[(0, 1)], bandwidth=1.0, latency=0.0)
    fixed = problem_on_fabric(reference.graph(), reference.cluster(), reference.Costs(), fabric)
    assert fixed.build_fabric(reference.demand(), np.random.default_rng(0)) is fabric
    assert (fixed.topology, fixed.reconfigurable) == ("mine", False)

"""Where hosts and switches stand."""

from __future__ import annotations

import attrs
import networkx as nx
import numpy as np
import pytest

from topoplan import Fabric
from topoplan.testing import reference
from topoplan_html_report.fabric import fabric_picture
from topoplan_samples.fabrics import star


def picture(graph):
    fabric = (
        Fabric.from_networkx(graph, name="drawn", bandwidth=1e9, latency=0.0) if isinstance(graph, nx.Graph) else graph
    )
    plan = attrs.evolve(reference.plan(), fabric=fabric, timeline=None)
    cluster = reference.cluster(fabric.n_hosts)
    return fabric_picture(attrs.evolve(plan, cluster=cluster))


@pytest.mark.parametrize(
    ("graph", "layout", "said"),
    [
        (nx.circulant_graph(12, [1, 5]), "circle", "every host is wired to those +1, -1, +5, -5 places ahead"),
        (nx.complete_graph(6), "circle", "every host is wired to every other one"),
        (nx.grid_2d_graph(4, 6, periodic=True), "grid", "a grid of 4 x 6 hosts"),
        (nx.grid_2d_graph(3, 5), "grid", "a grid of 3 x 5 hosts"),
        (nx.grid_graph([4, 3, 3], periodic=True), "grid", "a grid of 3 x 3 x 4 hosts"),
        (nx.random_regular_graph(3, 12, seed=1), "circle", "hosts on a circle, in the order of their numbers"),
        (star(8), "tiers", "8 hosts, 1 switch above"),
    ],
)
def test_layouts(graph, layout, said):
    found = picture(graph)
    assert (found["layout"], found["said"]) == (layout, said)


def test_a_fat_tree_has_three_tiers_of_switches(host, alexnet):
    from topoplan import Topology, TopologyContext

    cluster = reference.cluster(16)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    found = picture(host.make(Topology, "fattree").build(context))
    assert found["said"] == "16 hosts, 8 switches above, 8 switches above, 4 switches above"

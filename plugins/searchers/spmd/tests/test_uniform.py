"""Equal layers are planned equally, also where memory is so short that some of them could be cut otherwise."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan.errors import NoPlanFitsError
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_samples.layered import layered
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_planning import fastest_on, fitted
from topoplan_spmd_planning.space import AxisUse, Mesh, outline
from topoplan_spmd_planning.uniform import is_uniform
from topoplan_topology_bigswitch import BigSwitch

FLAT = Mesh((4,), (AxisUse.MODEL,))
GRAPH = layered(layers=6, batch=4096)


def planned(nbytes, *, equal_layers):
    """The plan on one axis of four devices that have so many bytes."""
    options = ClusterOptions(servers=1, gpus_per_server=4, device="H100")
    cluster = attrs.evolve(build_cluster(options), device_memory=np.full(4, nbytes), memory_reserve=0.0)
    problem = problem_on(GRAPH, cluster, Roofline().build(GRAPH, cluster), BigSwitch())
    machine = Machine(cluster, problem.build_fabric(None, np.random.default_rng(0)))
    lowering = Lowering(GRAPH, cluster, problem.costs)
    found = fastest_on(
        problem,
        outline(GRAPH),
        FLAT,
        machine,
        lowering,
        state="auto",
        beam=2000,
        max_states=10**6,
        equal_layers=equal_layers,
    )
    return fitted(found)


def test_layers_are_those_whose_operators_are_all_equal():
    first = layers_of(layered(layers=3)).first
    names = [op.name for op in layered(layers=3).operators]
    assert {names[k] for k in first if names[k].startswith("layers.")} == {
        f"layers.0.{word}" for word in ("up", "relu", "down", "add")
    }
    other = layered(layers=3)
    wide = attrs.evolve(other.operators[names.index("layers.1.relu")], kind="gelu")
    operators = tuple(wide if op.name == wide.name else op for op in other.operators)
    first = layers_of(attrs.evolve(other, operators=operators)).first
    assert first[names.index("layers.1.up")] == names.index("layers.1.up")
    assert first[names.index("layers.2.up")] == names.index("layers.0.up")


@pytest.mark.slow
def test_equal_layers_have_equal_signatures_and_storage_in_any_memory():
    roomy = planned(1e12, equal_layers=True).memory
    unequal, slower = 0, []
    for share in np.linspace(0.5, 1.0, 8):
        try:
            free = planned(roomy * share, equal_layers=False)
        except NoPlanFitsError:
            continue
        unequal += not is_uniform(free.strategy.program, GRAPH)
        equal = planned(roomy * share, equal_layers=True)
        assert is_uniform(equal.strategy.program, GRAPH)
        assert equal.memory <= roomy * share * (1 + 1e-9)
        assert equal.seconds >= free.seconds * (1 - 1e-9)
        slower.append(equal.seconds / free.seconds)
    assert unequal
    assert slower[-1] == pytest.approx(1.0)

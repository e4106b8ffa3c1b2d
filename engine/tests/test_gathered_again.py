"""Parameters in slices (ZeRO's third stage) that are gathered, given back and gathered again, by hand calculations."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Collective, TaskKind
from topoplan.model.sharding import REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.sharding.signatures import signatures
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder

CHANNELS, LAYERS = 64, 6


def model(layers=LAYERS, channels=CHANNELS, batch=64):
    """Return layers of two square matrices each."""
    builder = GraphBuilder("layers", batch_size=batch)
    x = builder.input((channels,))
    for number in range(layers):
        x = builder.relu(builder.linear(x, channels, bias=False, name=f"h.{number}.up"), name=f"h.{number}.relu")
        x = builder.linear(x, channels, bias=False, name=f"h.{number}.down")
    return builder.build()


def fully_sharded(graph, devices, again):
    """Return data parallelism over devices that store a slice of each matrix."""
    fed = {(v, into) for _, _, v, into in graph.edges.tolist()}

    def forms(index, k):
        if (index, k) in fed:
            return ()
        return (shard(0),) if k >= len(graph.operators[index].inputs) else (REPLICATED,)

    program = SpmdProgram(
        mesh=(devices,),
        rules=tuple((next(s for s in signatures(op) if s.dim == op.sample_dim),) for op in graph.operators),
        stored=tuple(tuple(forms(i, k) for k in range(len(arguments(op)))) for i, op in enumerate(graph.operators)),
        gathers_again=again,
    )
    return program_strategy(program, graph)


def lowering(graph, devices):
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"))
    return Lowering(graph, cluster, Roofline().build(graph, cluster))


@pytest.mark.parametrize("layers", [6, 60])
def test_gathered_parameters_are_those_of_two_layers(layers):
    graph, devices = model(layers), 8
    lowered, layer = lowering(graph, devices), 2 * CHANNELS**2 * 4
    kept, again = (lowered.memory_use(fully_sharded(graph, devices, again)) for again in (False, True))
    assert kept.weights.tolist() == [layers * layer * (1 + 1 / devices)] * devices
    assert again.weights.tolist() == [layers * layer / devices + 2 * layer] * devices
    for name in ("gradients", "optimizer", "activations"):
        assert getattr(kept, name).tolist() == getattr(again, name).tolist()


def test_seventy_billion_on_64_devices_have_17_6_gb_of_state():
    """80 layers of 0.88 billion parameters in bf16: weights and gradients 2 bytes, and 12 of Adam, over 64 devices."""
    graph = in_precision(model(layers=80, channels=20_976), "bf16")
    parameters = 80 * 2 * 20_976**2
    assert parameters == pytest.approx(70.4e9, rel=1e-3)
    use = lowering(graph, 64).memory_use(fully_sharded(graph, 64, again=True))
    state = use.weights + use.gradients + use.optimizer
    gathered = 2 * 2 * parameters / 80
    assert state == pytest.approx(np.full(64, 16 * parameters / 64 + gathered), rel=1e-9)
    assert 16 * parameters / 64 == pytest.approx(17.6e9, rel=1e-3)
    kept = lowering(graph, 64).memory_use(fully_sharded(graph, 64, again=False))
    assert kept.weights[0] > 140e9, "all of them, gathered"


def collectives(taskgraph, kind):
    return [int(size) for size, of in zip(taskgraph.size, taskgraph.collective, strict=True) if of == kind]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_layer_but_the_last_is_gathered_twice(micro_batches):
    """An all-gather of S bytes is half an all-reduce: its size in a task graph is S / 2."""
    graph, devices = model(), 8
    lowered, matrix = lowering(graph, devices), CHANNELS**2 * 4
    once, twice = (fully_sharded(graph, devices, again) for again in (False, True))
    if micro_batches > 1:
        stage = np.repeat(np.arange(LAYERS), 3)
        once, twice = (overlapped_strategy(each.program, graph, stage, micro_batches) for each in (once, twice))
    sizes = [collectives(lowered.lower(each), Collective.ALL_GATHER) for each in (once, twice)]
    assert sizes == [[matrix // 2] * (2 * LAYERS), [matrix // 2] * (2 * LAYERS + 2 * (LAYERS - 1))]
    scatters = [collectives(lowered.lower(each), Collective.REDUCE_SCATTER) for each in (once, twice)]
    assert scatters[0] == scatters[1] == [matrix // 2] * (2 * LAYERS), "gradients are summed once"


def test_a_gather_waits_until_two_layers_before_are_done():
    graph, devices = model(), 2
    tasks = lowering(graph, devices).lower(fully_sharded(graph, devices, again=True))
    names = [op.name for op in graph.operators]
    gathers = np.flatnonzero(tasks.collective == Collective.ALL_GATHER)
    before = {head: set() for head in range(tasks.n_tasks)}
    for tail, head in zip(*tasks.edges(), strict=True):
        before[int(head)].add(int(tail))
    waits = {}
    for task in gathers.tolist():
        computed = [names[tasks.op[t]] for t in before[task] if tasks.kind[t] in (TaskKind.FORWARD, TaskKind.BACKWARD)]
        waits.setdefault(names[tasks.op[task]], []).append(sorted(set(computed)))
    assert waits["h.0.up"] == [[], ["h.2.up"]]  # again when the backward pass of the third layer is done
    assert waits["h.1.down"] == [[], ["h.3.up"]]
    assert waits["h.2.up"] == [["h.0.down"], ["h.4.up"]]
    assert waits["h.5.up"] == [["h.3.down"]]  # the last one stays

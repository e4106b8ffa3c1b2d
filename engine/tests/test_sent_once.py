"""What several operators read of one tensor is sent once: compared with sets of elements, and by hand."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings

from topoplan import Cluster
from topoplan.model.strategy import PlacedStrategy
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.order import order_of
from topoplan_engine.lowering.sent_once import sent_once
from topoplan_engine.partition import slice_bounds
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.pipelines import Numbered, pipelines


def elements_sent(graph, strategy):
    """Return what each part sends each other device of each tensor: element by element."""
    sets = defaultdict(lambda: np.zeros(0, dtype=bool))
    for u, output, v, argument in graph.edges.tolist():
        maker, reader = graph.operators[u], graph.operators[v]
        tensor = maker.outputs[output]
        made = slice_bounds(maker, tensor, strategy.placements[u].degrees)
        read = slice_bounds(reader, reader.inputs[argument], strategy.placements[v].degrees)
        for a, source in enumerate(strategy.placements[u].devices.tolist()):
            for b, target in enumerate(strategy.placements[v].devices.tolist()):
                own = np.zeros(tensor.shape, dtype=bool)
                low, high = np.maximum(made[0, a], read[0, b]), np.minimum(made[1, a], read[1, b])
                own[tuple(slice(first, max(first, last)) for first, last in zip(low, high, strict=True))] = True
                if own.any() and source != target:
                    key = u, output, a, target
                    sets[key] = sets[key].reshape(tensor.shape) | own if key in sets else own
    return {key: int(own.sum()) * 4 for key, own in sets.items()}


@settings(max_examples=80, deadline=None)
@given(pipelines())
def test_bytes_are_those_of_the_elements(drawn):
    graph, cluster, strategy = drawn
    fragments = FragmentCache(graph, cluster, Numbered())
    whole = fragments.part_table(strategy.placements)
    table = sent_once(whole, strategy.stage_of[whole.op], fragments, strategy.placements)
    sent, wanted = {}, elements_sent(graph, strategy)
    edge = np.repeat(np.arange(len(graph.edges)), np.diff(table.edge_ptr))
    for row in np.flatnonzero(~table.local).tolist():
        u, output, v, _ = graph.edges[edge[row]].tolist()
        target = strategy.placements[v].devices[table.dst[row]]
        key = u, output, int(table.src[row]), int(target)
        assert key not in sent, "sent twice"
        sent[key] = int(table.size[row])
    assert sent == wanted
    assert table.local.sum() == whole.local.sum()


@settings(max_examples=40, deadline=None)
@given(pipelines(recompute=False))
def test_messages_and_demand_have_these_bytes(drawn):
    graph, cluster, strategy = drawn
    if order_of(strategy) is None:
        return
    lowering, nbytes = Lowering(graph, cluster, Numbered()), sum(elements_sent(graph, strategy).values())
    tasks = lowering.lower(strategy)
    transfers = tasks.kind == TaskKind.TRANSFER
    assert tasks.size[transfers].sum() == 2 * nbytes
    demand = lowering.demand(strategy)
    assert demand.forward.sum() == nbytes  # a device a host
    assert demand.matrix.sum() == 2 * nbytes


def residual(batch=8, width=16):
    """Return three layers; of the first one, a layer of the second stage reads, and the sum behind it."""
    b = GraphBuilder("residual", batch)
    first = b.linear(b.input((width,)), width)
    b.add(b.linear(first, width), first)
    return b.build()


@pytest.mark.parametrize("devices", [(1, 1), (2, 2), (2, 1), (1, 3)])
def test_a_residual_connection_by_hand(devices):
    """A batch of 24 x 16 numbers of 4 bytes passes once, and its gradient comes back once."""
    graph = residual(batch=24)
    ends = [list(range(devices[0])), list(range(devices[0], sum(devices)))]
    strategy = staged_strategy(graph, zip([[0], [1, 2]], ends, strict=True), 2, "1f1b")
    lowering = Lowering(graph, Cluster.uniform(n_hosts=sum(devices)), Numbered())
    tasks = lowering.lower(strategy)
    there = (tasks.kind == TaskKind.TRANSFER) & (tasks.src < devices[0])
    back = (tasks.kind == TaskKind.TRANSFER) & (tasks.dst < devices[0])
    assert tasks.size[there].sum() == tasks.size[back].sum() == 24 * 16 * 4
    # FlexNet sends it along both edges, and so do placements without an order of passes.
    placed = lowering.lower(PlacedStrategy(strategy.placements))
    there = (placed.kind == TaskKind.TRANSFER) & (placed.src < devices[0]) & (placed.dst >= devices[0])
    assert placed.size[there].sum() == 2 * 24 * 16 * 4


def test_the_gradient_goes_back_after_all_that_read():
    graph = residual()
    strategy = staged_strategy(graph, [([0], [0]), ([1, 2], [1])], 1, "gpipe")
    tasks = Lowering(graph, Cluster.uniform(n_hosts=2), Numbered()).lower(strategy)
    (back,) = np.flatnonzero((tasks.kind == TaskKind.TRANSFER) & (tasks.dst == 0))
    before = [task for task in range(tasks.n_tasks) if back in tasks.successors(task)]
    assert [(int(tasks.op[task]), int(tasks.kind[task])) for task in before] == [(1, TaskKind.BACKWARD)]
    (sum_backward,) = np.flatnonzero((tasks.op == 2) & (tasks.kind == TaskKind.BACKWARD))
    assert before[0] in tasks.successors(sum_backward)  # the device runs that of the sum first

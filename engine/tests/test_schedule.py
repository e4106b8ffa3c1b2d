"""Scheduled task graphs against their slow reference, and what must hold of every schedule."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import (
    PlacedStrategy,
    Placement,
    TaskGraph,
    TaskKind,
    TopoplanError,
)
from topoplan.model.pass_order import Pass
from topoplan.model.recording import MemoryKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.order import order_of, steps_under
from topoplan_engine.lowering.pipeline import scheduled_taskgraph
from topoplan_engine.lowering.sent_once import sent_once
from topoplan_engine.pass_orders import named_order
from topoplan_engine.sharding.programs import check_strategy
from topoplan_engine.simulation.idle import bubble_fraction
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_reference.schedule import reference_blocks, reference_scheduled
from topoplan_samples.fabrics import star
from topoplan_samples.graphs import layer_graph
from topoplan_samples.pipelines import KINDS, Numbered, Profiled, branching, peaks_over_time, pipelines, rescheduled
from topoplan_simulator_fluid import Fluid

LETTER = {Pass.FORWARD: "F", Pass.RECOMPUTE: "A", Pass.BACKWARD: "B", Pass.WEIGHTS: "W"}


def table_of(lowering, strategy):
    fragments = FragmentCache(lowering.graph, lowering.cluster, lowering.costs)
    gradients = [fragment.weight_gradient for fragment in fragments.operators(strategy.placements)]
    return fragments.part_table(strategy.placements), np.concatenate(gradients)


def sorted_rows(taskgraph):
    return [sorted(taskgraph.successors(task).tolist()) for task in range(taskgraph.n_tasks)]


def between(taskgraph):
    """(D, D) bytes that transfers carry from device to device."""
    rows = taskgraph.kind == TaskKind.TRANSFER
    matrix = np.zeros((taskgraph.n_devices,) * 2, dtype=np.int64)
    np.add.at(matrix, (taskgraph.src[rows], taskgraph.dst[rows]), taskgraph.size[rows])
    return matrix


def is_acyclic(taskgraph):
    waits = taskgraph.predecessor_counts().copy()
    ready, seen = list(np.flatnonzero(waits == 0)), 0
    while ready:
        task, seen = ready.pop(), seen + 1
        for after in taskgraph.successors(task):
            waits[after] -= 1
            if waits[after] == 0:
                ready.append(after)
    return seen == taskgraph.n_tasks


def passes_of(order, rank):
    """Letter, chunk and micro-batch of each pass of a rank."""
    rows = slice(order.rank_ptr[rank], order.rank_ptr[rank + 1])
    columns = (column[rows].tolist() for column in (order.kind, order.chunk, order.micro_batch))
    return [(LETTER[kind], chunk, micro) for kind, chunk, micro in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_blocks_equal_the_reference(kind, depth):
    for rounds in (1, 2, 3) if kind == "interleaved" else (1,):
        for count in (depth, 2 * depth, 4 * depth) if kind == "interleaved" else (1, 2, 3, 4, 7, 12):
            for position in range(depth):
                listed = passes_of(named_order(kind, depth, count, rounds), position)
                assert listed == reference_blocks(kind, depth, rounds, count, position)


def test_the_passes_of_small_schedules():
    def text(kind, depth, rounds, count, position, again=()):
        found = passes_of(named_order(kind, depth, count, rounds, again), position)
        return " ".join(f"{p}{m}" + (f"/{s}" if rounds > 1 else "") for p, s, m in found)

    assert text("gpipe", 3, 1, 2, 1) == "F0 F1 B0 B1"
    assert text("1f1b", 3, 1, 4, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text("1f1b", 3, 1, 4, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert text("1f1b", 2, 1, 2, 0, (True, False)) == "F0 F1 A0 B0 A1 B1"
    assert text("zero-bubble", 2, 1, 3, 0) == "F0 F1 B0 W0 F2 B1 W1 B2 W2"
    assert text("zero-bubble", 2, 1, 3, 1) == "F0 B0 F1 B1 W0 F2 B2 W1 W2"
    assert text("interleaved", 2, 2, 2, 1) == "F0/1 F1/1 F0/3 B0/3 F1/3 B1/3 B0/1 B1/1"


@settings(max_examples=120, deadline=None)
@given(pipelines())
def test_equals_the_reference(drawn):
    graph, cluster, strategy = drawn
    strategy.check(graph, cluster.n_devices)
    lowering = Lowering(graph, cluster, Numbered())
    table, gradient = table_of(lowering, strategy)
    names = tuple(op.name for op in graph.operators)
    tasks, _ = scheduled_taskgraph(table, strategy.order, strategy.stage_of, gradient, names, cluster.n_devices)
    tasks.check()
    reference_tasks = reference_scheduled(table, strategy, gradient.tolist(), names, cluster.n_devices)
    for field in attrs.fields(TaskGraph):
        if field.name not in ("foreign", "succ", "seconds"):
            mine, theirs = getattr(tasks, field.name), getattr(reference_tasks, field.name)
            assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, field.name
    np.testing.assert_allclose(tasks.seconds, reference_tasks.seconds, rtol=1e-15)
    assert sorted_rows(tasks) == sorted_rows(reference_tasks)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(pipelines())
def test_edges_left_out_are_in_the_order_of_their_device(drawn):
    graph, cluster, strategy = drawn
    lowering = Lowering(graph, cluster, Numbered())
    table, gradient = table_of(lowering, strategy)
    fragments, stage = FragmentCache(graph, cluster, Numbered()), strategy.stage_of[table.op]
    once = sent_once(table, stage, fragments, strategy.placements)
    tasks, _ = scheduled_taskgraph(once, strategy.order, strategy.stage_of, gradient, (), cluster.n_devices)
    assert is_acyclic(tasks)
    finish = simulate(tasks, cluster).finish
    task = steps_under(strategy.order, strategy.stage_of[table.op], gradient).task
    first = np.searchsorted(tasks.micro_batch[: (tasks.micro_batch >= 0).sum()], range(strategy.micro_batches))

    def ascend(before, after):
        """Assert that tasks end in this order, in every micro-batch; -1 is no task."""
        there = (before >= 0) & (after >= 0)
        for start in first:
            assert (finish[start + before[there]] < finish[start + after[there]]).all()

    for one, other in ((0, 1), (1, 2), (0, 2), (2, 3)):
        ascend(task[:, one], task[:, other])
    pairs = np.diff(table.edge_ptr)
    # Also of what is sent once for several parts: the first one waits for the message, the others for their turn.
    source = table.src + np.repeat(table.op_base[table.edge_src_op], pairs)
    target = table.dst + np.repeat(table.op_base[table.edge_dst_op], pairs)
    ascend(task[source, Pass.FORWARD], task[target, Pass.FORWARD])
    same = strategy.stage_of[table.op[source]] == strategy.stage_of[table.op[target]]
    ascend(task[source[same], Pass.RECOMPUTE], task[target[same], Pass.RECOMPUTE])
    ascend(task[target, Pass.BACKWARD], task[source, Pass.BACKWARD])


def simulate(taskgraph, cluster):
    return Fluid().build()(taskgraph, star(cluster.n_hosts, 1e15, 0.0), cluster)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(pipelines(recompute=False))
def test_as_much_work_as_without_a_schedule(drawn):
    graph, cluster, strategy = drawn
    lowering = Lowering(graph, cluster, Profiled())
    tasks, whole = lowering.lower(strategy), lowering.lower(PlacedStrategy(strategy.placements))
    count = strategy.micro_batches
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.COLLECTIVE):
        mine, theirs = tasks.kind == kind, whole.kind == kind
        assert tasks.size[mine].sum() == whole.size[theirs].sum()
        for op in range(len(graph.operators)):
            assert tasks.seconds[mine & (tasks.op == op)].sum() == pytest.approx(
                whole.seconds[theirs & (whole.op == op)].sum(), rel=1e-12
            )
    forward = tasks.kind == TaskKind.FORWARD
    ran = Counter(zip(tasks.op[forward], tasks.device[forward], strict=True))
    parts = Counter((op, d) for op, p in enumerate(strategy.placements) for d in p.devices.tolist())
    assert ran == {key: times * count for key, times in parts.items()}
    if count > 1:
        each = Counter(zip(tasks.op[forward], tasks.device[forward], tasks.micro_batch[forward], strict=True))
        assert each == {(op, d, m): times for (op, d), times in parts.items() for m in range(count)}
    # A tensor that several operators read is sent once (`test_sent_once`).
    assert (between(tasks) <= between(whole)).all()
    assert (lowering.demand(strategy).matrix <= lowering.demand(PlacedStrategy(strategy.placements)).matrix).all()


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.sampled_from([1e15, 1e6]))
def test_one_micro_batch_in_one_stage_is_the_whole_batch(drawn, bandwidth):
    graph, cluster, strategy = drawn
    one = rescheduled(strategy, micro_batches=1, stage_of=[0] * len(graph.operators), recompute=())
    lowering, whole = Lowering(graph, cluster, Numbered()), PlacedStrategy(strategy.placements)
    assert lowering.lower(one) == lowering.lower(whole)
    assert np.array_equal(lowering.memory(one), lowering.memory(whole))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(pipelines(kinds=("interleaved",)))
def test_recomputed_stages_run_and_send_again(drawn):
    graph, cluster, strategy = drawn
    lowering = Lowering(graph, cluster, Numbered())
    n_stages = strategy.n_stages
    never, always = (rescheduled(strategy, recompute=[flag] * n_stages) for flag in (False, True))
    if order_of(never) is None:
        return
    once, twice = lowering.lower(never), lowering.lower(always)
    forward = [graph_.kind == TaskKind.FORWARD for graph_ in (once, twice)]
    assert twice.seconds[forward[1]].sum() == pytest.approx(2 * once.seconds[forward[0]].sum(), rel=1e-12)
    fragments, stage = FragmentCache(graph, cluster, Numbered()), strategy.stage_of
    table = fragments.part_table(strategy.placements)
    table = sent_once(table, stage[table.op], fragments, strategy.placements)
    pairs = np.diff(table.edge_ptr)
    inside = np.repeat(stage[table.edge_src_op] == stage[table.edge_dst_op], pairs)
    inner = int(table.size[inside & ~table.local].sum())
    sent = [graph_.size[graph_.kind == TaskKind.TRANSFER].sum() for graph_ in (once, twice)]
    assert sent[1] == sent[0] + inner
    assert lowering.demand(always).matrix.sum() == sent[1]  # one device on each host
    # What is sent again is sent in the backward pass.
    assert np.array_equal(lowering.demand(always).forward, lowering.demand(never).forward)


def test_whole_operators_are_spread_over_the_devices_of_their_stage():
    graph = layer_graph([(0, 3), (1, 3), (2, 3), (3, 4)], [8] * 5, [4] * 5, 8)
    stages = [(range(4), [5, 6]), ([4], [2])]
    strategy = staged_strategy(graph, stages, 2, whole={0: 2.0, 1: 2.0, 2: 3.0})
    strategy.check(graph, 7)
    devices = [placement.devices.tolist() for placement in strategy.placements]
    assert devices == [[6], [6], [5], [5, 6], [2]]  # the longest first, then those that fill the other device
    assert [placement.parts for placement in strategy.placements] == [1, 1, 1, 2, 1]


def test_a_schedule_that_does_not_fit_is_refused():
    graph = branching(12)
    rest = range(4, len(graph.operators))
    stages = [(range(4), [0, 1]), (rest, [2, 3])]
    good = staged_strategy(graph, stages, 3)
    good.check(graph, 4)

    def refused(message, **changes):
        with pytest.raises(TopoplanError, match=message):
            check_strategy(rescheduled(good, **changes), graph, 4)

    refused("24 micro-batches do not divide a batch of 12", micro_batches=24)
    refused("5 micro-batches do not divide a batch of 12", micro_batches=5)
    refused("cut into 2 parts, but a micro-batch has 1 samples .use at most 6", micro_batches=12)
    refused("stage must name a stage, from 0 up, for every operator", stage_of=[0, 1])
    refused("must not fall along an edge", stage_of=[1] + [0] * (len(graph.operators) - 1))
    refused(
        r"device 0 is on ranks 0 and 1 \(ranks have no device in common",
        stage_of=[0, 0] + [1] * (len(graph.operators) - 2),
    )
    refused("interleaved: 3 micro-batches on 2 groups of devices .needs a multiple of 2", schedule="interleaved")
    refused(r"kind 'pipedream' is unknown \(must be gpipe, 1f1b", schedule="pipedream")
    refused("stage 1 of 3 has no operator", stage_of=[0] + [2] * (len(graph.operators) - 1))
    refused("recompute has 1 values for 2 stages", recompute=[True])
    refused("0 micro-batches", micro_batches=0)
    with pytest.raises(TopoplanError, match=f"operator {graph.operators[4].name!r} is in no stage"):
        staged_strategy(graph, [(range(4), [0, 1]), (rest[1:], [2])], 3)
    with pytest.raises(TopoplanError, match=f"operator {graph.operators[4].name!r} is in stages 0 and 1"):
        staged_strategy(graph, [(range(5), [0, 1]), (rest, [2])], 3)
    with pytest.raises(TopoplanError, match="stage 1 has no device"):
        staged_strategy(graph, [(range(4), [0, 1]), (rest, [])], 3)
    with pytest.raises(TopoplanError, match="device 1 is on ranks 0 and 1"):
        staged_strategy(graph, [(range(4), [0, 1]), (rest, [1, 2])], 3).check(graph, 4)
    five = [(range(2), [0]), (range(2, 4), [1]), (range(4, 6), [0]), (range(6, 8), [1]), (rest[4:], [0])]
    with pytest.raises(TopoplanError, match="5 chunks on 2 groups of devices"):
        staged_strategy(graph, five, 4, "interleaved").check(graph, 4)
    crossed = [*five[:3], (rest[2:], [0])]
    with pytest.raises(TopoplanError, match="device 0 is on ranks 0 and 1"):
        staged_strategy(graph, crossed, 4, "interleaved").check(graph, 4)


def test_changes_keep_the_schedule():
    graph = branching(12)
    stages = [(range(4), [0, 1]), (range(4, len(graph.operators)), [2])]
    strategy = staged_strategy(graph, stages, 3, "gpipe", (True, False))
    changed = strategy.with_changes({0: Placement((1,) * len(graph.operators[0].dims), [1])})
    assert changed.order is strategy.order
    assert hash(changed) != hash(strategy)
    assert changed.recomputes == (True, False)
    assert changed.with_changes({0: strategy.placements[0]}) == strategy
    assert hash(changed.with_changes({0: strategy.placements[0]})) == hash(strategy)


@settings(max_examples=40, deadline=None)
@given(pipelines(kinds=("gpipe", "1f1b", "zero-bubble")))
def test_uneven_stages_wait_for_the_slowest(drawn):
    graph, cluster, strategy = drawn
    taskgraph = Lowering(graph, cluster, Numbered()).lower(strategy)
    timeline = Fluid().build()(taskgraph, star(cluster.n_hosts, 1e15, 0.0), cluster)
    assert timeline.device_busy.max() <= timeline.makespan * (1 + 1e-12)
    assert timeline.makespan <= taskgraph.seconds.sum() + 1e-6
    assert 0 <= bubble_fraction(timeline) < 1


@settings(max_examples=80, deadline=None)
@given(pipelines())
def test_the_peak_over_time_is_the_peak_of_the_order(drawn):
    graph, cluster, strategy = drawn
    lowering = Lowering(graph, cluster, Numbered())
    taskgraph = lowering.lower(strategy)
    timeline = Fluid().build()(taskgraph, star(cluster.n_hosts, 1e9, 0.0), cluster)
    levels = lowering.memory_levels(strategy, taskgraph, timeline)
    peak, whole_bytes = peaks_over_time(levels, cluster.n_devices), 2.0  # what stays and activations are rounded
    if order_of(strategy) is not None:  # without a schedule, memory is what all parts keep
        assert peak == pytest.approx(lowering.memory(strategy), rel=1e-9, abs=whole_bytes)
    most = lowering.memory(PlacedStrategy(strategy.placements)) + more_inputs(lowering, strategy)
    assert (peak <= most + whole_bytes).all()
    assert (np.diff(levels.time) >= 0).all()
    for device in set(levels.device.tolist()):
        rows = (levels.device == device) & (levels.kind == MemoryKind.ACTIVATIONS)
        assert not rows.any() or levels.nbytes[rows][-1] == 0


def more_inputs(lowering, strategy):
    """(D,) bytes of messages that reach each device: what recomputation may keep beyond activations."""
    taskgraph = lowering.lower(PlacedStrategy(strategy.placements))
    moved = taskgraph.kind == TaskKind.TRANSFER
    return np.bincount(taskgraph.dst[moved], taskgraph.size[moved], taskgraph.n_devices) * any(strategy.recomputes)


@settings(max_examples=60, deadline=None)
@given(pipelines(kinds=("1f1b",)))
def test_1f1b_keeps_no_more_than_gpipe(drawn):
    graph, cluster, strategy = drawn
    lowering = Lowering(graph, cluster, Numbered())
    peaks = {kind: lowering.memory(rescheduled(strategy, schedule=kind)) for kind in ("gpipe", "1f1b", "zero-bubble")}
    assert (peaks["1f1b"] <= peaks["gpipe"] * (1 + 1e-12)).all()
    assert (peaks["1f1b"] <= peaks["zero-bubble"] * (1 + 1e-12)).all()

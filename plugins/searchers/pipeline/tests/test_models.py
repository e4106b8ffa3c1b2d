"""The planner's parts against slow and plain counterparts: columns, machine, latency, play, and the whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_models import Costs, evaluator_of, random_case, solve, switch_problem

from topoplan import Candidate, Cluster
from topoplan.model.pass_order import Pass
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.order import order_of
from topoplan_engine.pass_orders import named_order
from topoplan_engine.training import frozen
from topoplan_engine.training_costs import training_costs
from topoplan_samples.graphs import layer_graph
from topoplan_samples.long_tail import at_night
from topoplan_samples.problems import state_of
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.latency import all_forward, early_backward, outlasting
from topoplan_searcher_pipeline.machine import Machine, moves_of, transfer_loads
from topoplan_searcher_pipeline.plans import Pipeline, devices_of, memory_of, strategy_of
from topoplan_searcher_pipeline.search import plan_pipelines
from topoplan_searcher_pipeline.stage_simulation import (
    ORDERS,
    Room,
    StageTimes,
    busiest,
    in_flight,
    iteration_seconds,
    simulate,
)

KINDS = ["gpipe", "1f1b-deep", "1f1b", "zero-bubble"]


def all_pipelines(planner):
    """Yield every pipeline: all cuts, and all ways to give devices, or not, to stages."""
    columns, machine = planner.columns, planner.machine
    room = np.bincount(machine.host)
    options = [counts for counts in itertools.product(*(range(r + 1) for r in room)) if sum(counts)]
    for stages in range(1, min(machine.n_devices, columns.n_cuts - 1) + 1):
        groups = [g for g in itertools.product(options, repeat=stages) if (np.sum(g, axis=0) <= room).all()]
        for inner in itertools.combinations(range(1, columns.n_cuts - 1), stages - 1):
            cuts = (0, *inner)
            if all(columns.follows(a, b) for a, b in itertools.pairwise((*cuts, columns.n_cuts - 1))):
                yield from (Pipeline(cuts, group) for group in groups)


@pytest.mark.parametrize(
    ("seed", "layers", "hosts", "devices_per_host"),
    at_night(
        [
            (21, 3, 4, 1),
            (1, 6, 2, 1),
            (38, 4, 2, 2),
            (4, 5, 4, 1),
            (9, 6, 2, 1),
            (42, 4, 4, 1),
            (7, 5, 2, 1),
            (13, 4, 2, 2),
        ],
        (1, 6, 2, 1),
        (38, 4, 2, 2),
        (7, 5, 2, 1),
    ),
)
def test_small_models_get_the_best_of_all_pipelines(seed, layers, hosts, devices_per_host):
    problem = random_case(seed, layers, hosts, devices_per_host, batch=4)
    result, evaluator, search = solve(problem)
    planner = search._shortlist.planner
    best, tried = result.best_cost, 0
    for pipeline in all_pipelines(planner):
        for kind, count in planner.schedules(pipeline):
            plan = planner.plan(pipeline, kind, count, best)  # None where a stage alone takes that long
            if plan is not None and plan.seconds < best * 1.2:
                tried += 1
                strategy = strategy_of(plan, problem.graph, planner.columns, planner.machine)
                best = min(best, evaluator.price(Candidate(base=state_of(problem, strategy))).cost)
    assert tried
    assert result.best_cost <= best * (1 + 1e-9)


@st.composite
def drawn_plans(draw):
    """Draw a problem, its planner, and a plan of a pipeline on it."""
    problem = random_case(draw(st.integers(0, 200)), layers=6, hosts=2, devices_per_host=2, batch=8)
    planner = plan_pipelines(DapplePipeline(), problem).planner
    stages = draw(st.integers(1, 4))
    inner = draw(st.lists(st.integers(1, 5), min_size=stages - 1, max_size=stages - 1, unique=True))
    order = draw(st.permutations(range(4)))
    counts = np.zeros((stages, 2), dtype=int)
    for place, device in enumerate(order):
        counts[min(place, stages - 1), device // 2] += 1
    pipeline = Pipeline((0, *sorted(inner)), tuple(map(tuple, counts.tolist())))
    kind, count = draw(st.sampled_from(planner.schedules(pipeline)))
    return problem, planner, planner.plan(pipeline, kind, count)


def bytes_sent(columns, cuts):
    """Return the (S, S) bytes that each stage sends to each later one; ``cuts`` (S,) are the starts of stages."""
    stage = np.sum([~columns.closed[cut] for cut in cuts[1:]], axis=0, dtype=np.int64) + np.zeros(
        columns.closed.shape[1], dtype=np.int64
    )
    (source, target), count = stage[columns.edge].T, len(cuts)
    crossing = np.flatnonzero(source != target)
    once = crossing[np.unique(columns.edge_tensor[crossing] * count + target[crossing], return_index=True)[1]]
    sent = np.zeros((count, count))
    np.add.at(sent, (source[once], target[once]), columns.edge_bytes[once])
    return sent


@settings(max_examples=30, deadline=None)
@given(drawn_plans())
def test_memory_and_bytes_are_those_of_lowering(drawn):
    problem, planner, plan = drawn
    columns, machine = planner.columns, planner.machine
    strategy = strategy_of(plan, problem.graph, columns, machine)
    strategy.check(problem.graph, machine.n_devices)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    held = lowering.memory(strategy)
    estimate = memory_of(planner.costs_of(plan.pipeline, plan.micro_batches), plan.kind, plan.micro_batches)[0]
    devices = devices_of(plan.pipeline, machine)
    for stage, own in enumerate(devices):
        # Operators without weights free their activations before ZB-H1's last pass.
        assert held[list(own)].max() <= estimate[stage] * (1 + 1e-9)
        if plan.kind != "zero-bubble":
            assert held[list(own)] == pytest.approx(estimate[stage], rel=1e-9)
    sent = bytes_sent(columns, plan.pipeline.cuts)
    assert sent == pytest.approx(np.triu(sent, 1))
    # A tensor passes a cut once, and is sent to each stage behind it that reads it.
    for stage, cut in enumerate(plan.pipeline.cuts):
        assert sent[:stage, stage:].sum() >= columns.crossing[cut] * (1 - 1e-12)
    if order_of(strategy) is not None:
        tasks = lowering.lower(strategy)
        stage_of = np.zeros(machine.n_devices, dtype=int)
        for stage, own in enumerate(devices):
            stage_of[list(own)] = stage
        moved = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
        lowered = np.zeros(sent.shape)
        np.add.at(lowered, (stage_of[tasks.src[moved]], stage_of[tasks.dst[moved]]), tasks.size[moved])
        assert np.triu(lowered, 1) == pytest.approx(sent, rel=1e-9)
        assert np.tril(lowered, -1) == pytest.approx(sent.T, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(drawn_plans())
def test_played_times_are_near_simulated_ones(drawn):
    problem, planner, plan = drawn
    strategy = strategy_of(plan, problem.graph, planner.columns, planner.machine)
    cost = evaluator_of(problem).price(Candidate(base=state_of(problem, strategy))).cost
    # The simulator shares links among transfers, and runs layer by layer; stages and queues are near that.
    assert 0.55 <= plan.seconds / cost <= 1.35


def half_frozen(frozen_operators, share):
    """Return a chain of six layers on two hosts, of which one sends much, and some do not train."""
    outputs = np.array([1, 1, share * 400_000, 1, 1, 1]).astype(int)
    seconds = np.full(6, 1e-3)
    costs = Costs(seconds, 2 * seconds, 8.0 * outputs, np.full(6, 3000.0))
    cluster = Cluster.uniform(
        n_hosts=2, devices_per_host=1, interfaces=1, interface_bandwidth=4e9, inside_bandwidth=2e10, latency=0.0
    )
    graph = layer_graph([(k, k + 1) for k in range(5)], np.full(6, 1000), outputs, 8)
    graph = frozen(graph, [op.name for op in graph.operators[:frozen_operators]])
    return switch_problem(graph, cluster, training_costs(costs, graph))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen_operators", [3, 5])
def test_no_gradient_comes_back_to_what_is_frozen(kind, frozen_operators):
    for share, micro_batches in itertools.product((0.1, 1), (2, 8)):
        problem = half_frozen(frozen_operators, share)
        planner = plan_pipelines(DapplePipeline(), problem).planner
        plan = planner.plan(Pipeline((0, 3), ((1, 0), (0, 1))), kind, micro_batches)
        strategy = strategy_of(plan, problem.graph, planner.columns, planner.machine)
        cost = evaluator_of(problem).price(Candidate(base=state_of(problem, strategy))).cost
        assert plan.seconds == pytest.approx(cost, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(drawn_plans(), st.floats(0.5, 2.0))
def test_the_fastest_schedule_is_that_of_all_schedules_one_by_one(drawn, factor):
    _, planner, plan = drawn
    for cutoff in (np.inf, plan.seconds * factor):
        fastest = None
        for kind, count in planner.schedules(plan.pipeline):
            other = planner.plan(plan.pipeline, kind, count, cutoff if fastest is None else fastest.seconds)
            if other is not None and other.seconds < (cutoff if fastest is None else fastest.seconds):
                fastest = other
        assert planner.fastest(plan.pipeline, cutoff) == fastest


TIMES = st.floats(0.1, 2.0)


@st.composite
def drawn_stages(draw, transfers=True):
    """Draw what stages take, one on each host, and a number of micro-batches."""
    stages, count = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    forward, backward, weights, summing, moved = (
        np.array(draw(st.lists(TIMES, min_size=stages, max_size=stages))) for _ in range(5)
    )
    source = np.arange(stages - 1)
    loads = np.zeros((2, stages - 1, stages))
    loads[0, source, source] = loads[1, source, source + 1] = moved[:-1] if transfers else 0.0
    zero = np.zeros(stages)
    times = StageTimes(
        forward, zero, backward, weights, summing, source, source + 1, zero[1:], *loads, zero[1:], 1 + zero[1:]
    )
    return times, moved[:-1] if transfers else zero[:-1], count


@settings(max_examples=60, deadline=None)
@given(drawn_stages(), st.sampled_from(KINDS), st.floats(0.3, 1.5))
def test_a_simulation_stops_only_where_the_iteration_takes_the_cutoff_or_more(drawn, kind, factor):
    times, _, count = drawn
    seconds = iteration_seconds(kind, count, times)
    room = Room.of(len(times.forward), count + 3, *times.egress.shape)  # larger than needed: that of another schedule
    stopped = simulate(ORDERS.index(kind), count, times, room, factor * seconds)
    assert stopped == seconds or (stopped == np.inf and factor <= 1)
    assert simulate(ORDERS.index(kind), count, times, room, 1.000001 * seconds) == seconds
    assert simulate(ORDERS.index(kind), count, times, room, 0.1 * seconds) == np.inf


def reference(kind, count, times, transfer):
    """Play a schedule by its list of passes on every stage, in plain Python."""
    stages = len(times.forward)
    order = named_order(kind, stages, count)
    rows = [*zip(*map(np.ndarray.tolist, (order.kind, order.chunk, order.micro_batch)), strict=True)]
    todo = [rows[first:end] for first, end in itertools.pairwise(order.rank_ptr.tolist())]
    free, sent = [0.0] * stages, {}
    forward = {(0, m): 0.0 for m in range(count)}
    backward = {(stages - 1, m): 0.0 for m in range(count)}
    split = kind == "zero-bubble"
    while any(todo):
        for s in range(stages):
            while todo[s]:
                what, _, m = todo[s][0]
                ready = {Pass.FORWARD: forward, Pass.BACKWARD: backward}.get(what, {(s, m): 0.0}).get((s, m))
                if ready is None:
                    break
                todo[s].pop(0)
                took = {Pass.FORWARD: times.forward[s], Pass.WEIGHTS: times.weights[s]}.get(
                    what, times.backward[s] + (0.0 if split else times.weights[s])
                )
                free[s] = max(free[s], ready) + took
                if what == Pass.FORWARD and s + 1 < stages:
                    sent[s, 0] = max(sent.get((s, 0), 0.0), free[s]) + transfer[s]
                    forward[s + 1, m] = sent[s, 0]
                if what == Pass.BACKWARD and s:
                    sent[s, 1] = max(sent.get((s, 1), 0.0), free[s]) + transfer[s - 1]
                    backward[s - 1, m] = sent[s, 1]
    return max(end + summing for end, summing in zip(free, times.allreduce_tail, strict=True))


@settings(max_examples=80, deadline=None)
@given(drawn_stages(), st.sampled_from(KINDS))
def test_playing_equals_the_reference_where_no_host_is_shared(drawn, kind):
    times, transfer, count = drawn
    # Between two hosts each way has interfaces of its own only while gradients do not cross activations.
    quiet = times if len(transfer) < 2 else drawn_without_transfers(times)
    moved = transfer if len(transfer) < 2 else np.zeros(len(transfer))
    assert iteration_seconds(kind, count, quiet) == pytest.approx(reference(kind, count, quiet, moved), rel=1e-12)
    assert iteration_seconds(kind, count, times) >= busiest(count, times) * (1 - 1e-12)
    assert iteration_seconds(kind, count, times) >= iteration_seconds(kind, count, drawn_without_transfers(times)) * (
        1 - 1e-12
    )


def drawn_without_transfers(times):
    return times._replace(egress=0.0 * times.egress, ingress=0.0 * times.ingress)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_in_flight_are_those_of_the_schedule(kind):
    for stages, count in itertools.product((1, 2, 3, 5), (1, 2, 4, 9)):
        for stage in range(stages):
            order = named_order(kind, stages, count)
            passes = order.kind[order.chunk == stage]
            ends = Pass.WEIGHTS if kind == "zero-bubble" else Pass.BACKWARD
            flying = np.cumsum((passes == Pass.FORWARD) * 1 - (passes == ends) * 1).max()
            assert flying <= in_flight(ORDERS.index(kind), stage, stages, count)
            if kind != "zero-bubble":
                assert flying == in_flight(ORDERS.index(kind), stage, stages, count)


def modelled(kind, count, times, transfer):
    """The latency model, stage by stage from the last one."""
    stages = len(times.forward)
    latency = around = tail = ahead = back = 0.0
    for number in range(1, stages + 1):
        s = stages - number
        moved = transfer[s] if s + 1 < stages else 0.0
        forward, backward = times.forward[s], times.backward[s] + times.weights[s]
        deferred = times.weights[s] if kind == "zero-bubble" else 0.0
        ahead, back = max(ahead, forward, moved), max(back, backward, moved)
        if kind == "gpipe":
            latency = all_forward(ahead, back, count, around + forward + backward + 2 * moved, 0.0)
        else:
            flying = 2 * number - 1 if kind == "1f1b-deep" else number
            latency = early_backward(
                forward, backward - deferred, deferred, moved, moved, flying, count, latency, around, 0.0
            )
        around += forward + backward - deferred + 2 * moved
        tail = outlasting(backward - deferred, moved, deferred + times.allreduce_tail[s], tail)
    return latency + tail


@settings(max_examples=150, deadline=None)
@given(drawn_stages())
def test_the_latency_model_is_exact_for_gpipe(drawn):
    times, transfer, count = drawn
    times = times._replace(allreduce_tail=0.0 * times.allreduce_tail)
    expected = reference("gpipe", count, times, transfer)
    assert modelled("gpipe", count, times, transfer) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(drawn_stages(), st.sampled_from(KINDS[1:]))
def test_the_latency_model_is_near_what_is_played(drawn, kind):
    times, transfer, count = drawn
    most = 1.3 if kind == "zero-bubble" else 1.0 + 1e-12  # which puts off more than one micro-batch
    assert 0.7 <= modelled(kind, count, times, transfer) / reference(kind, count, times, transfer) <= most


@given(st.integers(1, 5), st.integers(1, 12), TIMES, TIMES, st.sampled_from(KINDS[:3]))
@settings(max_examples=60, deadline=None)
def test_balanced_stages_take_the_closed_form(stages, count, f, b, kind):
    even, zero = np.ones(stages), np.zeros(stages)
    source, none = np.arange(stages - 1), np.zeros((stages - 1, stages))
    times = StageTimes(
        f * even, zero, b * even, zero, zero, source, source + 1, zero[1:], none, none, zero[1:], even[1:]
    )
    expected = (count + stages - 1) * (f + b)
    assert iteration_seconds(kind, count, times) == pytest.approx(expected, rel=1e-12)
    assert modelled(kind, count, times, zero) == pytest.approx(expected, rel=1e-12)


def machine_of(hosts, devices_per_host):
    return Machine.of(
        Cluster.uniform(n_hosts=hosts, devices_per_host=devices_per_host, interfaces=1, interface_bandwidth=2.0)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_transfers_move_what_is_elsewhere(counts):
    source, target = np.array(counts, dtype=np.int32).T
    if not source.sum() or not target.sum():
        return
    grain = int(source.sum() * target.sum())  # samples of which every device has equally many
    hosts = np.arange(len(source))
    here, there = np.repeat(hosts, source * (grain // source.sum())), np.repeat(hosts, target * (grain // target.sum()))
    loads = np.zeros((2, len(source)))
    bandwidth = np.full(len(source), 2.0)
    transfer_loads(source.copy(), target.copy(), bandwidth, 10.0 * bandwidth, loads)
    for h in hosts:
        assert loads[0, h] == pytest.approx(((here == h) & (there != h)).sum() / grain / 2.0, abs=1e-12)
        assert loads[1, h] == pytest.approx(((there == h) & (here != h)).sum() / grain / 2.0, abs=1e-12)


def test_moves_fill_hosts_and_name_each_occupancy_once():
    machine = machine_of(2, 4)
    moves = moves_of(machine, tuple(range(1, 9)))
    assert moves.used[0] == 0
    assert moves.used.max() == 8
    source = np.repeat(np.arange(len(moves.used)), np.diff(moves.ptr))
    assert (moves.used[moves.target] == moves.used[source] + moves.size).all()
    assert (moves.before.sum(axis=1) == moves.size).all()
    assert (np.take_along_axis(moves.before, moves.renumbered, axis=1) == moves.after).all()
    first = {tuple(counts) for counts in moves.before[: moves.ptr[1]].tolist()}
    assert {(2, 2), (4, 0), (4, 4), (1, 1), (1, 0)} <= first  # scattered, and host by host
    assert machine.allreduce(np.array([[1, 0], [2, 2]], dtype=np.int32)) == pytest.approx([0.0, 1.5 / 2.0])


def test_equal_hosts_are_told_apart_by_how_full_they_are_alone():
    moves = moves_of(machine_of(16, 1), tuple(range(1, 17)))
    assert len(moves.used) == 17
    assert len(moves.size) == 16 * 17 // 2

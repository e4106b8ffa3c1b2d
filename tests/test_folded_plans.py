"""Folded iterations of staged plans: one task for each class of tasks takes what all tasks take, on any fabric."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, PlacedStrategy, State, Topology, TopoplanError, optimize
from topoplan.search.stopping import Stopped
from topoplan_engine import problem_on
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.folding.class_loads import class_loads
from topoplan_engine.lowering.folding.classes import FlowEdges, classes_of, few_classes_of, label
from topoplan_engine.lowering.folding.patterns import MessageLoads
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.tables import Network
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.bounds import collective_bound
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_engine.simulation.folds import FoldedStates
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.long_tail import at_night
from topoplan_samples.plans_drawn import (
    LARGE,
    ONE_PATH,
    cluster_of,
    drawn_plan,
    fabric_of,
    models_in,
    some_plans,
    write,
)
from topoplan_searcher_stated import Hybrid, Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid.folded import message_loads
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

LARGEST = 1e-9


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    return models_in(tmp_path_factory.mktemp("models"))


def both(graph, cluster, fabric, strategy):
    """Return what an iteration is, whole and folded."""
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
    network, model = Network(fabric, cluster), Model()
    taskgraph = lowering.lower(strategy)
    # With many flows on other networks than a switch, a whole iteration renews rates a little late.
    whole = model.simulate(model.prepare(taskgraph, network)._replace(late_ends=ALWAYS))
    folded = lowering.fold(strategy, lambda messages: message_loads(messages, network))
    folded.taskgraph.check()
    assert folded.n_tasks == taskgraph.n_tasks
    return whole, model.simulate_folded(folded, network)[0], folded


def assert_equal(whole, outcome):
    assert outcome.makespan == pytest.approx(whole.makespan, rel=LARGEST)
    np.testing.assert_allclose(outcome.link_bytes, whole.link_bytes, rtol=LARGEST, atol=1.0)


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "topology", at_night(sorted(ONE_PATH), "bigswitch", "dragonfly", "fattree", "topoopt", "torus")
)
def test_folded_plans_take_what_whole_ones_take(topology, model_of):
    plans = some_plans(1000, 3, model_of, topology=topology)
    assert len(plans) == 3
    for plan in plans:
        whole, outcome, _ = both(*plan)
        assert_equal(whole, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_folded_plans_take_what_whole_ones_take(part, model_of):
    plans = some_plans(100_000 * (part + 1), 20, model_of)
    assert len(plans) == 20
    for plan in plans:
        whole, outcome, _ = both(*plan)
        assert_equal(whole, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["bigswitch", "fattree", "dragonfly", "random", "hyperx"])
def test_plans_of_hundreds_of_devices_take_what_whole_ones_take(topology, model_of):
    """128 to 512 devices, four and eight a host."""
    plans = some_plans(5000, 4, model_of, topology=topology, sizes=LARGE, batch=512)
    assert len(plans) == 4
    for plan in plans:
        whole, outcome, _ = both(*plan)
        assert_equal(whole, outcome)


@pytest.mark.slow
def test_a_plan_of_256_devices_on_a_torus_takes_what_the_whole_one_takes(model_of):
    """Flows cross two equal links: what rounding of rates leaves over on the second one goes to no other flow."""
    plan = drawn_plan(5003, model_of, topology="torus", sizes=LARGE, batch=512)
    assert plan is not None
    whole, outcome, _ = both(*plan)
    assert_equal(whole, outcome)


@pytest.mark.parametrize(
    ("topology", "kind", "options"),
    [("fattree", "experts", {"zero": 1, "tp": 2}), ("torus", "dense", {}), ("dragonfly", "tied", {"zero": 3})],
)
def test_folded_plans_of_several_copies_of_the_model_take_what_whole_ones_take(topology, kind, options, model_of):
    graph, cluster = model_of(kind, 8, 64), cluster_of(8, 4)
    settings = Settings(**{"tp": 1, "pp": 4, "schedule": "dualpipe", "micro_batch": 1, **options})
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    assert len(strategy.stage_of_copies) == 2
    whole, outcome, folded = both(graph, cluster, fabric_of(topology, cluster, ONE_PATH[topology]), strategy)
    assert_equal(whole, outcome)
    assert folded.taskgraph.n_tasks < folded.n_tasks


def test_devices_that_differ_are_not_folded(model_of):
    graph, cluster = model_of("dense", 4), cluster_of(4, 4)
    slower = np.ones(16)
    slower[5] = 0.7
    strategy, _ = strategy_of(Settings(tp=4, pp=2), graph, 16)
    equal = both(graph, cluster, fabric_of("bigswitch", cluster, {}), strategy)
    cluster = attrs.evolve(cluster, device_speed=slower)
    whole, outcome, folded = both(graph, cluster, fabric_of("bigswitch", cluster, {}), strategy)
    assert_equal(whole, outcome)
    assert outcome.makespan > equal[1].makespan
    assert folded.taskgraph.n_tasks > equal[2].taskgraph.n_tasks


def test_tasks_do_not_grow_with_replicas(model_of):
    graph, sizes = model_of("dense", 4), []
    for hosts in (4, 8, 16):
        cluster = cluster_of(hosts, 4)
        strategy, _ = strategy_of(Settings(tp=4, pp=2, micro_batch=32 // hosts), graph, cluster.n_devices)
        assert strategy.micro_batches == 2
        sizes.append(both(graph, cluster, fabric_of("bigswitch", cluster, {}), strategy)[2].taskgraph.n_tasks)
    assert len(set(sizes)) == 1


def test_drawn_paths_are_spread_by_their_weights(model_of):
    """A draw of equal paths is off from what all of them carry together by what chance makes of few messages."""
    graph, cluster = model_of("dense", 4), cluster_of(16, 2)
    strategy, _ = strategy_of(Settings(tp=2, pp=2), graph, 32)
    whole, outcome, folded = both(graph, cluster, fabric_of("fattree", cluster, {"paths": 16}), strategy)
    assert folded.draws
    assert outcome.makespan == pytest.approx(whole.makespan, rel=0.2)
    assert outcome.link_bytes.sum() == pytest.approx(whole.link_bytes.sum(), rel=1e-3)


def test_a_large_plan_reports_what_its_whole_iteration_is(tmp_path):
    config = write(tmp_path)
    options = {"servers": 8, "gpus_per_server": 8, "batch_size": 64, "device": "h100", "precision": "bf16"}
    searcher = Stated(tp=4, pp=2, zero=1)
    plan = optimize(HuggingFace(config=config, sequence_length=32), searchers=[searcher], **options).plan
    assert "one for all that are equal" in plan.timeline.simulated
    timeline = Fluid().build()(plan.taskgraph, plan.fabric, plan.cluster)
    assert plan.taskgraph.n_tasks == len(plan.taskgraph.kind)
    assert plan.timeline.makespan == pytest.approx(timeline.makespan, rel=LARGEST)
    for name in ("device_busy", "link_bytes", "link_busy"):
        np.testing.assert_allclose(getattr(plan.timeline, name), getattr(timeline, name), rtol=LARGEST, err_msg=name)
    for name in ("device", "link", "chain", "collective"):
        assert getattr(plan.timeline.bounds, name) == pytest.approx(getattr(timeline.bounds, name), rel=LARGEST), name
    parts, whole_parts = (time_breakdown(plan.taskgraph, each) for each in (plan.timeline, timeline))
    for field in attrs.fields(type(parts)):
        name = field.name
        assert getattr(parts, name) == pytest.approx(getattr(whole_parts, name), rel=1e-6, abs=1e-12), name


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize(
    "settings", [{"tp": 2}, {"tp": 2, "cp": 2}, {"tp": 4}, {"tp": 2, "pp": 2}, {"cp": 2, "zero": 3}]
)
def test_collectives_of_several_groups_of_a_host_bound_its_time(settings, hosts, model_of):
    """Groups of a host send from devices of their own, at the same time: their seconds do not add up."""
    graph, cluster = model_of("dense", 4, 64), cluster_of(hosts, 8)
    fabric = fabric_of("bigswitch", cluster, {})
    strategy, _ = strategy_of(Settings(**{"micro_batch": 1, **settings}), graph, cluster.n_devices)
    taskgraph = StagedLowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    whole, outcome, folded = both(graph, cluster, fabric, strategy)
    bound = collective_bound(folded.taskgraph, fabric, cluster, folded=folded)
    assert 0 < bound <= outcome.makespan
    assert bound == pytest.approx(collective_bound(taskgraph, fabric, cluster), rel=LARGEST)
    assert_equal(whole, outcome)


def test_a_price_does_not_depend_on_a_folded_plan_before(model_of):
    graph, cluster = model_of("dense", 4), cluster_of(2, 4)
    problem = problem_on(graph, cluster, Roofline().build(graph, cluster), Host.discover().make(Topology, "bigswitch"))
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    large = strategy_of(Settings(tp=2, pp=2, micro_batch=1, zero=1), graph, cluster.n_devices)[0]
    small = strategy_of(Settings(tp=2, pp=2, micro_batch=8, zero=1), graph, cluster.n_devices)[0]
    states = [State(strategy, fabric) for strategy in (large, small, problem.space.initial())]
    passes = Lowering(graph, cluster, problem.costs).n_tasks(small)

    def prices(states):
        evaluator = Evaluator(problem, Fluid().build(), "ignore")
        return [evaluator.price(Candidate(base=state)).cost for state in states]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topoplan_engine.simulation.folds._FOLDED", passes + 1)
        folds = FoldedStates(Fluid().build(), Lowering(graph, cluster, problem.costs), cluster)
        assert [folds.iteration(state) is not None for state in states] == [True, False, False]
        together, alone = prices(states), [prices([state])[0] for state in states]
    assert together == alone
    assert len(set(alone)) == 3


def test_an_iteration_is_folded_after_a_search_left_the_call_in_the_middle(model_of):
    graph, cluster = model_of("dense", 4), cluster_of(2, 4)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    strategy = strategy_of(Settings(tp=2, pp=2, micro_batch=1), graph, cluster.n_devices)[0]
    state = State(strategy, fabric_of("bigswitch", cluster, {}))
    folds = FoldedStates(Fluid().build(), lowering, cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topoplan_engine.simulation.folds._FOLDED", 1)
        with obeyed(Stop(), lambda: 0.0), pytest.raises(Stopped):
            folds.iteration(state)
        assert folds.iteration(state) is not None


def test_color_refinement_tells_vertices_apart_by_their_distance_from_one():
    tail, head = np.arange(6, dtype=np.int32), np.array([1, 2, 3, 4, 5, 0], dtype=np.int32)
    colors, labels = np.zeros(6, np.uint64), np.zeros(6, np.uint64)
    assert classes_of(colors, tail, head, labels).of.tolist() == [0, 0, 0, 0, 0, 0]
    colors[0] = 1
    found = classes_of(colors, tail, head, labels).of
    assert len(set(found.tolist())) > 1  # edges have a direction: all six differ
    both_ways = [np.concatenate(ends) for ends in ((tail, head), (head, tail))]
    assert classes_of(colors, *both_ways, np.zeros(12, np.uint64)).of.tolist() == [0, 1, 2, 3, 2, 1]


def test_edges_of_flows_tell_vertices_apart_as_those_that_are_written_out_do():
    """Random flows of three messages on five links, of which one tells nothing apart and one flow is not listed."""
    draw = np.random.default_rng(3)
    ptr, links = np.array([0, 2, 3, 5, 7]), np.array([0, 1, 4, 1, 2, 3, 4], np.int32)
    vertex, flows = np.array([0, 1, 1, 2]), np.array([7, 7, 9, 7], np.uint64)
    listed, counts = np.array([True, True, True, False]), np.array([True, True, True, True, False])
    for _ in range(20):
        loads = draw.integers(1, 3, len(links))
        edges = FlowEdges(vertex, label(np.uint64(8), flows), listed, ptr, links, loads, counts, 3)
        row = np.repeat(np.arange(4), np.diff(ptr))
        some = listed[row] & counts[links]
        written = (
            vertex[row[some]].astype(np.int32),
            (3 + links[some]).astype(np.int32),
            label(np.uint64(8), flows[row[some]], loads[some]),
        )
        nothing = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint64)
        found = few_classes_of(np.zeros(8, np.uint64), *nothing, edges, 3, 3)
        assert found is not None
        assert found.of.tolist() == classes_of(np.zeros(8, np.uint64), *written).of.tolist()


def test_loads_of_classes_are_the_sums_of_those_of_their_flows():
    draw = np.random.default_rng(5)
    dense = draw.integers(0, 4, (9, 6)) * (draw.random((9, 6)) < 0.5)
    of, counts = np.array([0, 2, -1, 2, 0, 1, 2, -1, 1]), np.array([True, True, False, True, True, True])
    flow, link = np.nonzero(dense)
    units = dense[flow, link].astype(np.int64)
    rest = np.zeros(9, np.int64), np.zeros((9, 1)), np.ones(6)
    ptr = np.append(0, np.cumsum(np.count_nonzero(dense, axis=1)))
    loads = MessageLoads(np.arange(9, dtype=np.int32), ptr, link.astype(np.int32), units, 2 * units, *rest, draws=False)
    sums = class_loads(loads, of, 3, counts)
    expected = np.stack([dense[of == number].sum(axis=0) for number in range(3)]) * counts
    row, link = np.nonzero(expected)
    assert sums.links.tolist() == link.tolist()
    assert np.repeat(np.arange(3), np.diff(sums.ptr)).tolist() == row.tolist()
    assert sums.loads.tolist() == expected[row, link].tolist()
    assert sums.shares.tolist() == (2 * expected[row, link]).tolist()


def test_tasks_beyond_all_memory_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("topoplan_engine.simulation.folds.MOST_WRITTEN", 1000)
    options = {"servers": 8, "gpus_per_server": 8, "batch_size": 64, "device": "h100", "precision": "bf16"}
    model = HuggingFace(config=write(tmp_path), sequence_length=32)
    with pytest.MonkeyPatch.context() as patch:  # nothing but who asks for tasks lists them all
        patch.setattr(StagedLowering, "lower", lambda *_: pytest.fail("all tasks of a folded plan were written"))
        plan = optimize(model, searchers=[Stated(tp=4, pp=2, zero=1)], **options).plan
    with pytest.raises(TopoplanError, match="cannot be listed one by one"):
        _ = plan.taskgraph.kind


@pytest.mark.parametrize(
    ("options", "simulator", "reason"),
    [
        ({}, {"level": "stepped"}, r"the simulator folds none with these options.*level=coupled"),
        ({}, {"transport": "flexnetpacket"}, r"folds none.*transport=wire"),
        ({}, {"gradient_sync": "barrier"}, r"folds none.*gradient-sync=overlap"),
    ],
)
def test_iterations_that_are_not_folded_are_run_whole_or_refused_by_name(options, simulator, reason, model_of):
    graph, cluster = model_of("dense", 4), cluster_of(2, 4)
    costs, simulate = Roofline().build(graph, cluster), Fluid(**simulator).build()
    strategy = strategy_of(Settings(tp=2, pp=2, micro_batch=1, **options), graph, cluster.n_devices)[0]
    state = State(strategy, fabric_of("bigswitch", cluster, {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topoplan_engine.simulation.folds._FOLDED", 1)
        assert FoldedStates(simulate, Lowering(graph, cluster, costs), cluster).iteration(state) is None
        patch.setattr("topoplan_engine.simulation.folds.MOST_WRITTEN", 1000)
        with pytest.raises(TopoplanError, match=r"passes of operators, and 1,000 can be run one by one: .*" + reason):
            FoldedStates(simulate, Lowering(graph, cluster, costs), cluster).iteration(state)


@pytest.mark.parametrize("limit", [{}, {"time_limit": 30.0}], ids=["no limit", "limit"])
def test_a_search_leaves_out_what_is_too_large_ever_to_be_simulated(limit, tmp_path, monkeypatch):
    """A proposal of that kind has no cost; a stated plan of that kind is refused with the reason."""
    options = {"servers": 2, "gpus_per_server": 4, "batch_size": 16, "device": "h100", "topology": "torus", **limit}
    model = HuggingFace(config=write(tmp_path), sequence_length=32)
    monkeypatch.setattr("topoplan_engine.simulation.folds._FOLDED", 1)
    monkeypatch.setattr("topoplan_engine.lowering.folding.layout._MOST_FOLDED", 1)
    outcome = optimize(model, searchers=[Hybrid(planners=False, divided=False, placed=False)], budget=4, **options)
    assert outcome.result.too_large > 0
    assert isinstance(outcome.plan.strategy, PlacedStrategy)
    assert outcome.seconds == outcome.initial_seconds
    with pytest.raises(TopoplanError, match=r"^plan: devices differ .* one of each kind has more than 1 passes"):
        optimize(model, searchers=[Stated(tp=2, dp=4)], **options)

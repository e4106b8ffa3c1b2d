"""One device of an SPMD program stands for all: an iteration takes as long as that of all devices, to the last bit.

The slow reference is the whole task graph in the same simulator (`topoplan_engine.lowering.spmd_tasks`).
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, Host, SpmdStrategy, State, TopologyContext, Trial
from topoplan.model.taskgraph import TaskKind
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.spmd_quotient import block
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import BertSgmoe, VitSwitch
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

SMALL = {"layers": 2, "width": 64, "hidden": 128, "heads": 4}
#: Hosts, devices of each, Gbps: one host, one device each, and blocks that axes divide in every way.
CLUSTERS = [(1, 8, 100), (8, 1, 10), (2, 4, 10), (4, 4, 100), (3, 4, 25), (2, 6, 10)]


def problem_of(frontend, hosts, each, gbps, **options):
    graph = frontend(world_size=hosts * each, **options).build(None)
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=each,
        device_memory=32e9,
        inside_bandwidth=130e9,
        interfaces=1,
        interface_bandwidth=gbps * 1e9 / 8,
        latency=1e-5,
    )
    return problem_on(graph, cluster, Hidup().build(graph, cluster), BigSwitch())


def proposals(problem, fabric, finalists=1):
    """Yield the programs that the searcher proposes on some meshes, with and without overlapped micro-batches."""
    search = SpmdSearch(Spmd(finalists=finalists), problem)
    state = State(problem.space.initial(), fabric)
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: None))
    seconds = 1.0
    while candidates := search.ask():
        for candidate in candidates:
            if isinstance(candidate.state().strategy, SpmdStrategy):
                yield candidate.state().strategy
        search.tell([Trial(state=c.state(), cost=(seconds := seconds + 1), demand=lambda: None) for c in candidates])


def same_iteration(problem, fabric, strategy):
    """Compare both lowerings of a program; return its mesh, or None if its groups wait for each other."""
    simulate, lowering = Fluid().build(), Lowering(problem.graph, problem.cluster, problem.costs)
    cluster = problem.cluster
    quotient, whole = lowering.program_quotient(strategy), lowering.lower(strategy)
    assert quotient.n_tasks == whole.n_tasks
    if quotient.waits(simulate.in_turn_bytes):
        return None
    assert simulate.program_makespan(quotient, fabric, cluster) == simulate.makespan(whole, fabric, cluster)
    return strategy.program.mesh


@pytest.mark.parametrize(
    ("frontend", "hosts", "each", "gbps"),
    [
        (BertSgmoe, *CLUSTERS[2]),
        *(pytest.param(f, *c, marks=pytest.mark.slow) for c in CLUSTERS for f in (BertSgmoe, VitSwitch)),
    ],
)
def test_one_device_takes_as_long_as_all(frontend, hosts, each, gbps):
    words = {"positions": 8, "words": 60} if frontend is BertSgmoe else {}
    problem = problem_of(frontend, hosts, each, gbps, **SMALL, **words)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    meshes = [same_iteration(problem, fabric, strategy) for strategy in proposals(problem, fabric)]
    assert set(meshes) - {None}


@pytest.mark.slow
@pytest.mark.parametrize("gbps", [10, 400])
def test_messages_of_more_than_a_window(gbps):
    problem = problem_of(BertSgmoe, 4, 4, gbps, layers=2)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    meshes = [same_iteration(problem, fabric, strategy) for strategy in proposals(problem, fabric, finalists=100)]
    assert len(set(meshes) - {None}) >= 4


@pytest.mark.parametrize(
    ("mesh", "hosts", "each", "inside"),
    [
        ((16,), 4, 4, (4,)),
        ((4, 4), 4, 4, (1, 4)),
        ((2, 8), 4, 4, (1, 4)),
        ((8, 2), 4, 4, (2, 2)),
        ((2, 2, 4), 1, 16, (2, 2, 4)),
        ((4, 6), 2, 12, (2, 6)),
        ((6, 4), 2, 12, (3, 4)),
        ((4, 6), 4, 6, (1, 6)),
        ((6, 4), 4, 6, None),  # a host has a row of four and half of the next one
        ((3, 8), 4, 6, None),
        ((16, 1), 4, 4, None),
    ],
)
def test_a_host_is_a_block_of_the_mesh_or_not(mesh, hosts, each, inside):
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=each)
    assert block(mesh, cluster) == inside


def test_groups_that_wait_for_each_other_are_lowered_all():
    problem = problem_of(BertSgmoe, 4, 4, 100, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    simulate, lowering = Fluid().build(), Lowering(problem.graph, problem.cluster, problem.costs)
    strategies = proposals(problem, fabric, finalists=4)
    programs = ((s, lowering.program_quotient(s)) for s in strategies)
    strategy, quotient = next((s, q) for s, q in programs if q.waits(simulate.in_turn_bytes))
    assert not quotient.waits(0)
    price = Evaluator(problem, simulate, "limit").price(Candidate(base=State(strategy, fabric)))
    assert price.cost == simulate.makespan(lowering.lower(strategy), fabric, problem.cluster)
    assert price.cost < simulate.program_makespan(quotient, fabric, problem.cluster)


def test_devices_that_differ_are_lowered_all():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if len(s.program.mesh) == 1)
    assert Lowering(problem.graph, problem.cluster, problem.costs).program_quotient(strategy) is not None
    slower = attrs.evolve(problem.cluster, device_speed=[1.0] * 7 + [0.5])
    costs = Hidup().build(problem.graph, slower)
    assert Lowering(problem.graph, slower, costs).program_quotient(strategy) is None
    uneven = attrs.evolve(problem.cluster, device_host=[0, 0, 0, 1, 1, 1, 1, 1])
    assert Lowering(problem.graph, uneven, problem.costs).program_quotient(strategy) is None


@pytest.mark.parametrize(
    ("topology", "options", "holds"),
    [
        ("bigswitch", {}, True),
        ("bigswitch", {"level": "stepped"}, False),
        ("bigswitch", {"gradient_sync": "barrier"}, False),
        ("bigswitch", {"collective": "parameter-server"}, False),
        ("fattree", {}, False),
        ("fully-connected", {}, False),
    ],
)
def test_only_where_all_links_of_a_kind_carry_the_same(topology, options, holds):
    cluster = build_cluster(ClusterOptions(servers=4, gpus_per_server=2, degree=4))
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = Host.discover().make("topology", topology).build(context)
    assert Fluid(**options).build().has_program_quotient(fabric, cluster) == holds


def test_a_search_prices_programs_by_one_device(monkeypatch):
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(proposals(problem, fabric))
    evaluator = Evaluator(problem, Fluid().build(), "limit")
    whole = []
    monkeypatch.setattr(evaluator, "_lower", lambda strategy: whole.append(strategy))
    trial = evaluator.price(Candidate(base=State(strategy, fabric)))
    assert 0 < trial.cost < np.inf
    assert not evaluator.draws(trial.state)
    assert not whole
    assert np.isinf(evaluator._seconds(trial.state, trial.cost, 0.0))


def test_tasks_of_the_first_device_are_those_of_the_whole():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in proposals(problem, fabric):
        one, whole = lowering.program_quotient(strategy).taskgraph, lowering.lower(strategy)
        first, mine = np.flatnonzero(whole.device == 0), np.flatnonzero(one.device == 0)
        for column in ("kind", "seconds", "op"):
            assert np.array_equal(getattr(whole, column)[first], getattr(one, column)[mine])
        collective = np.flatnonzero(one.kind == TaskKind.COLLECTIVE)
        with_first = [t for t in np.flatnonzero(whole.kind == TaskKind.COLLECTIVE) if 0 in whole.members(t)]
        assert whole.size[with_first].tolist() == one.size[collective].tolist()
        assert [whole.members(t).tolist() for t in with_first] == [one.members(t).tolist() for t in collective]


def test_a_plan_says_the_same_before_and_after_its_tasks_are_made():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if not s.whole_batch)
    simulate = Fluid().build()
    plan = Evaluator(problem, simulate, "limit").plan(State(strategy, fabric), {})
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    whole = Lowering(problem.graph, problem.cluster, problem.costs).lower(strategy)
    timeline = simulate(whole, fabric, problem.cluster)
    assert plan.taskgraph.n_tasks == whole.n_tasks
    assert plan.timeline.makespan == timeline.makespan
    assert attrs.asdict(plan.timeline.bounds) == pytest.approx(attrs.asdict(timeline.bounds), rel=1e-12)
    for column in ("device_busy", "link_bytes", "link_busy"):
        np.testing.assert_allclose(getattr(plan.timeline, column), getattr(timeline, column), rtol=1e-12)
    expected = time_breakdown(whole, timeline)
    assert attrs.asdict(breakdown) == pytest.approx(attrs.asdict(expected), rel=1e-9, abs=1e-15)
    assert plan.taskgraph == whole
    assert whole == plan.taskgraph
    assert np.array_equal(plan.timeline.start, timeline.start)
    assert np.array_equal(plan.timeline.finish, timeline.finish)
    assert attrs.evolve(plan.taskgraph, op_names=()).n_tasks == whole.n_tasks


def test_long_queues_are_simulated_once(monkeypatch):
    problem = problem_of(BertSgmoe, 4, 4, 100, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering, simulate = Lowering(problem.graph, problem.cluster, problem.costs), Fluid().build()
    quotient = lowering.program_quotient(next(s for s in proposals(problem, fabric) if s.program.mesh == (16,)))
    everywhere = simulate.program_timeline(quotient, fabric, problem.cluster, None)
    monkeypatch.setattr("topoplan_simulator_fluid.programs._QUEUE", 4)
    once = simulate.program_timeline(quotient, fabric, problem.cluster, None)
    assert once.makespan == pytest.approx(everywhere.makespan, rel=1e-12)
    np.testing.assert_allclose(once.link_bytes, everywhere.link_bytes, rtol=1e-12)
    assert attrs.asdict(once.bounds) == pytest.approx(attrs.asdict(everywhere.bounds), rel=1e-12)
    assert once.events < everywhere.events


def test_a_plan_with_another_field_keeps_its_breakdown():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    plan = Evaluator(problem, Fluid().build(), "limit").plan(State(next(proposals(problem, fabric)), fabric), {})
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    evolved = attrs.evolve(plan.timeline, events=plan.timeline.events + 1)
    assert evolved.events == plan.timeline.events + 1
    again = time_breakdown(plan.taskgraph, evolved)
    assert attrs.asdict(again) == pytest.approx(attrs.asdict(breakdown), rel=1e-9, abs=1e-15)
    assert attrs.asdict(time_breakdown(attrs.evolve(plan.taskgraph), plan.timeline)) == attrs.asdict(breakdown)

"""Programs of all devices take as long folded as whole: one task stands for all that are equal.

The slow reference is the whole task graph in the same simulator.  Programs are those that the searcher proposes, with
the whole batch at once and with micro-batches that take turns, on hosts that are blocks of their meshes in every way.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, State, Trial
from topoplan_engine import problem_on
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import BertSgmoe, VitSwitch
from topoplan_samples.as_flows import as_flows
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

SMALL = {"layers": 2, "width": 64, "hidden": 128, "heads": 4}
#: Hosts, devices of each, Gbps: one host, one device each, and blocks that axes divide in every way.
CLUSTERS = [(1, 8, 100), (8, 1, 10), (2, 4, 10), (4, 4, 100), (3, 4, 25), (2, 6, 10)]


def problem_of(frontend, hosts, each, gbps):
    words = {"positions": 8, "words": 60} if frontend is BertSgmoe else {}
    graph = frontend(world_size=hosts * each, **SMALL, **words).build(None)
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


def proposals(problem, fabric):
    """Yield the programs that the searcher proposes on some meshes, with and without overlapped micro-batches."""
    search = SpmdSearch(Spmd(shortlist=1), problem)
    state = State(problem.space.initial(), fabric)
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: None))
    seconds = 1.0
    while candidates := search.ask():
        for candidate in candidates:
            if candidate.state().strategy.program is not None:
                yield candidate.state().strategy
        search.tell([Trial(state=c.state(), cost=(seconds := seconds + 1), demand=lambda: None) for c in candidates])


def folded_of(simulate, lowering, strategy, fabric):
    return lowering.fold(strategy, lambda tasks: simulate.message_loads(tasks, fabric, lowering.cluster))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frontend", "hosts", "each", "gbps"),
    [
        (BertSgmoe, *CLUSTERS[2]),
        *(pytest.param(f, *c, marks=pytest.mark.slow) for c in CLUSTERS for f in (BertSgmoe, VitSwitch)),
    ],
)
def test_one_task_of_each_class_takes_as_long_as_all(frontend, hosts, each, gbps):
    problem, simulate = problem_of(frontend, hosts, each, gbps), Fluid().build()
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering, overlaps = Lowering(problem.graph, problem.cluster, problem.costs), set()
    for strategy in proposals(problem, fabric):
        folded, whole = folded_of(simulate, lowering, strategy, fabric), lowering.lower(strategy)
        assert folded.n_tasks == whole.n_tasks
        assert len(folded.copies) < whole.n_tasks / 2
        seconds = simulate.run_folded(folded, fabric, problem.cluster).makespan
        assert seconds == pytest.approx(simulate.makespan(whole, fabric, problem.cluster), rel=1e-9)
        overlaps.add(strategy.micro_batches)
    assert overlaps == {1, 2}


def test_devices_that_differ_are_not_one_class():
    problem, simulate = problem_of(BertSgmoe, 2, 4, 10), Fluid().build()
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if len(s.program.mesh) == 1)
    alone = folded_of(simulate, Lowering(problem.graph, problem.cluster, problem.costs), strategy, fabric)
    slower = attrs.evolve(problem.cluster, device_speed=[1.0] * 7 + [0.5])
    lowering = Lowering(problem.graph, slower, Hidup().build(problem.graph, slower))
    apart = folded_of(simulate, lowering, strategy, fabric)
    assert apart.device_class[:7].max() < apart.device_class[7] > alone.device_class.max()
    seconds = simulate.run_folded(apart, fabric, slower).makespan
    assert seconds == pytest.approx(simulate.makespan(lowering.lower(strategy), fabric, slower), rel=1e-9)


def test_a_search_prices_large_programs_folded(monkeypatch):
    monkeypatch.setattr("topoplan_engine.simulation.folds._FOLDED", 0)
    problem = problem_of(BertSgmoe, 2, 4, 10)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(proposals(problem, fabric))
    evaluator = Evaluator(problem, Fluid().build(), "limit")
    monkeypatch.setattr(evaluator, "_lower", None)
    trial = evaluator.price(Candidate(base=State(strategy, fabric)))
    assert 0 < trial.cost < np.inf
    assert not evaluator.draws(trial.state)


def test_on_one_switch_no_message_draws_and_nothing_is_lowered_to_say_so(monkeypatch):
    problem = problem_of(BertSgmoe, 2, 4, 10)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    evaluator = Evaluator(problem, as_flows(), "limit")
    monkeypatch.setattr(evaluator, "_lower", None)
    assert not evaluator.draws(State(next(proposals(problem, fabric)), fabric))


def test_a_plan_says_the_same_before_and_after_its_tasks_are_made(monkeypatch):
    monkeypatch.setattr("topoplan_engine.simulation.folds._FOLDED", 0)
    problem, simulate = problem_of(BertSgmoe, 2, 4, 10), Fluid().build()
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if not s.whole_batch)
    plan = Evaluator(problem, simulate, "limit").plan(State(strategy, fabric), {})
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    whole = Lowering(problem.graph, problem.cluster, problem.costs).lower(strategy)
    timeline = simulate(whole, fabric, problem.cluster)
    assert plan.taskgraph.n_tasks == whole.n_tasks
    assert plan.timeline.makespan == pytest.approx(timeline.makespan, rel=1e-9)
    assert attrs.asdict(plan.timeline.bounds) == pytest.approx(attrs.asdict(timeline.bounds), rel=1e-9)
    for column in ("device_busy", "link_bytes", "link_busy"):
        np.testing.assert_allclose(getattr(plan.timeline, column), getattr(timeline, column), rtol=1e-9)
    expected = time_breakdown(whole, timeline)
    assert attrs.asdict(breakdown) == pytest.approx(attrs.asdict(expected), rel=1e-9, abs=1e-15)
    assert plan.taskgraph == whole
    assert np.array_equal(plan.timeline.start, timeline.start)

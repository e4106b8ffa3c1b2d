"""What there was no time to price: it has the rest of the limit, and the start is a candidate as any other."""

from __future__ import annotations

import importlib
import itertools
import math

import attrs
import numpy as np
import pytest
from idle_search import IdleSearch

from topoplan import Candidate, Host, PlacedStrategy, Placement, Searcher, State, Trial
from topoplan.search.stopping import Stopped, stop_if_wanted
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.kernels.clock import routing
from topoplan_engine.network.tables import Network
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.class_seconds import ClassSeconds
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.ends import Ends
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.search.time_left import TimeLeft
from topoplan_engine.search.unpriced import Unpriced
from topoplan_samples.plans_drawn import cluster_of, fabric_of

SMALL = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
    searchers="mcmc",
    run=RunOptions(batch_size=64, budget=60, seed=3),
)


class Ticks:
    """A clock that moves where a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def set_up():
    """Return an evaluator, and a state to start from."""
    setup = set_up_search(Host.discover(), SMALL)
    return setup.evaluator, first_state(setup.evaluator, setup.strategy, np.random.default_rng(0))


def test_what_was_left_is_priced_in_the_rest_of_a_limit_the_smallest_first(monkeypatch):
    """Half of the time that is left is that of the first one, and all of it that of the last one."""
    evaluator, first = set_up()
    ticks, asked = Ticks(), []
    monkeypatch.setattr("topoplan_engine.search.unpriced.clock", ticks)
    candidates = {name: Candidate(base=attrs.evolve(first, collectives=name)) for name in ("large", "small", "middle")}
    tasks = {"large": 30, "small": 10, "middle": 20}
    monkeypatch.setattr(Candidate, "state", lambda self: attrs.evolve(self.base, strategy=self.base.collectives))
    monkeypatch.setattr(Evaluator, "tasks_of", lambda _, strategy: tasks[strategy])

    def priced(until, _, candidate):
        name = candidate.base.collectives
        asked.append((name, until - ticks.now))
        ticks.now = until
        return Trial(state=None, cost=1.0, demand=dict, fits=True) if name == "large" else None

    monkeypatch.setattr("topoplan_engine.search.unpriced._priced_by", priced)
    unpriced = Unpriced(Candidate(base=first), has_first=False)
    for number, candidate in enumerate(candidates.values()):
        unpriced.keep(number, candidate)
    assert unpriced.price_early(evaluator, 3.0, 10.0) is None
    assert unpriced.price_early(evaluator, 5.0, 10.0, others_plan=True) is None
    assert not asked
    assert unpriced.price_early(evaluator, 6.0, 10.0, others_plan=True).cost == 1.0
    assert asked == [("small", 2.0), ("middle", 1.0), ("large", 1.0)]
    assert (unpriced.number, unpriced.price_early(evaluator, 9.9, 10.0)) == (0, None)


@pytest.mark.parametrize("seconds", [2.0, 5.0])
def test_a_plan_that_takes_a_part_of_the_limit_to_be_priced_is_the_result(monkeypatch, seconds):
    """A tenth is allowed while nothing has a price; then it has what is left, and planners that wait are asked."""
    ticks = Ticks()
    for module in ("driver", "unpriced"):
        monkeypatch.setattr(importlib.import_module(f"topoplan_engine.search.{module}"), "clock", ticks)
    monkeypatch.setattr("topoplan_engine.search.unpriced._SMALL", 0)
    evaluator, first = set_up()
    placements = tuple(Placement((1,) * len(op.dims), [0]) for op in evaluator.problem.graph.operators)
    planned, price = PlacedStrategy(placements), Evaluator.price

    def slow(self, candidate, fitting_cutoff=0.0):
        for _ in range(int(8 * seconds) if candidate.state().strategy is planned else 800):
            ticks.now += 0.125
            stop_if_wanted()
        return price(self, candidate, fitting_cutoff)

    class Planner(IdleSearch):
        plans = True
        asked = 0

        def ask(self):
            ticks.now += 0.125
            self.asked += 1
            return [Candidate(base=State(planned, first.fabric))] if self.asked == 1 else []

    monkeypatch.setattr(Evaluator, "price", slow)
    planner, idle = PortfolioMember(Planner(), 0.25, "planner"), PortfolioMember(IdleSearch(), 0.25, "idle")
    idle.idles = True
    keep = Keep(constructing={0: "planner", 1: "idle"}, constructed=True)
    searchers = [("strategy", planner), ("strategy", idle)]
    run = SearchRun(evaluator, first, searchers, Limits(budget=1 << 30, seconds=10.0), keep=keep)
    run.advance(1 << 30, Stop(), 10.0)
    assert run.best.state.strategy is planned
    assert run.best.cost < math.inf
    assert ticks.now <= 10.5
    assert not idle.idles


def test_the_start_waits_with_the_plans_of_planners(monkeypatch):
    """It has half of the time beside a plan of as many tasks, and hardly any beside one of a tenth of them."""
    evaluator, first = set_up()
    ticks, asked = Ticks(), []
    monkeypatch.setattr("topoplan_engine.search.unpriced.clock", ticks)
    planned = Candidate(base=attrs.evolve(first, collectives="planned"))
    monkeypatch.setattr(Candidate, "state", lambda self: attrs.evolve(self.base, strategy=self.base.collectives))

    def priced(until, _, candidate):
        asked.append((candidate.base.collectives, until - ticks.now))
        ticks.now = until

    monkeypatch.setattr("topoplan_engine.search.unpriced._priced_by", priced)
    for tasks in (100, 10):
        monkeypatch.setattr(Evaluator, "tasks_of", lambda _, strategy, tasks=tasks: tasks if strategy else 100)
        unpriced = Unpriced(Candidate(base=first))
        unpriced.keep(0, planned)
        ticks.now = 0.0
        assert unpriced.price_early(evaluator, 4.0, 10.0) is None
    (_, half), (_, rest), small, (_, late) = asked
    assert (half, rest) == (3.0, 3.0)
    assert small == ("planned", pytest.approx(6.0 * 100 / 101))
    assert late == pytest.approx(6.0 / 101)


@pytest.mark.parametrize(("seconds", "is_priced"), [(2.0, True), (4.0, False)])
def test_a_start_that_was_left_is_priced_beside_a_plan_that_fits(monkeypatch, seconds, is_priced):
    """It is better than that plan here, and is the best then; three tenths of the limit are what it may take."""
    evaluator, first = timed(monkeypatch)
    placements = tuple(Placement((1,) * len(op.dims), [0]) for op in evaluator.problem.graph.operators)
    planned, price = PlacedStrategy(placements), Evaluator.price
    ticks = importlib.import_module("topoplan_engine.search.driver").clock

    def slow(self, candidate, fitting_cutoff=0.0):
        is_planned = candidate.state().strategy is planned
        for _ in range(1 if is_planned else int(8 * seconds) if self.evaluations else 800):
            ticks.now += 0.125
            stop_if_wanted()
        trial = price(self, candidate, fitting_cutoff)
        return attrs.evolve(trial, cost=2.0 if is_planned else 1.0)

    class Planner(IdleSearch):
        adopted = ()

        def ask(self):
            ticks.now += 0.125
            return [Candidate(base=State(planned, first.fabric))]

        def adopt(self, trial):
            self.adopted += (trial.cost,)

    monkeypatch.setattr(Evaluator, "price", slow)
    planner = Planner()
    keep = Keep(constructing={0: "planner"})
    run = SearchRun(evaluator, first, [("strategy", planner)], Limits(budget=1 << 30, seconds=10.0), keep=keep)
    assert run.initial.cost == math.inf
    run.advance(1 << 30, Stop(), 10.0)
    assert ticks.now <= 10.5
    assert (run.best.cost, run.initial.cost) == ((1.0, 1.0) if is_priced else (2.0, math.inf))
    assert planner.adopted == ((math.inf, 1.0) if is_priced else (math.inf,))


@pytest.fixture
def no_time_for_the_start(monkeypatch):
    """Let no search have time for the state at the start, and every end."""
    most_tasks = TimeLeft.most_tasks
    monkeypatch.setattr(
        TimeLeft, "most_tasks", lambda self, at, best: 0 if best is None else most_tasks(self, at, best)
    )
    monkeypatch.setattr("topoplan_engine.search.unpriced._LATE", 1.0)
    monkeypatch.setattr(Unpriced, "price_first", lambda *_: None)
    monkeypatch.setattr(Ends, "has_time_for", lambda *_: True)


@pytest.mark.parametrize(("constructs", "keep"), [(False, "constructed"), (True, "fastest"), (True, "constructed")])
def test_a_start_that_is_priced_at_the_end_alone_is_the_plan_if_it_is_faster(no_time_for_the_start, constructs, keep):
    """One device computes what four share, and messages take little time here; what users ask for is kept beside it."""

    class OneDevice(IdleSearch):
        def __init__(self, problem):
            self.placements = tuple(Placement((1,) * len(op.dims), [0]) for op in problem.graph.operators)

        def ask(self):
            placements, self.placements = self.placements, None
            return [Candidate(base=State(PlacedStrategy(placements), self.state.fabric))] if placements else []

    members = {"name": "one-device", "axis": "strategy", "constructs": constructs, "__doc__": "Computes on one device."}
    members |= {"__module__": __name__, "build": lambda _, problem, rng: OneDevice(problem)}
    planner = type(Searcher)("OneDevicePlanner", (Searcher,), members)
    cluster = ClusterOptions(servers=4, interface_bandwidth_gbps=1000.0)
    run = RunOptions(batch_size=4096, budget=5, seed=3, time_limit="20s", keep=keep)
    outcome = optimize(Experiment(model="alexnet", cluster=cluster, searchers=[planner], run=run))
    if constructs and keep == "constructed":
        assert outcome.aside.entry.origin.name == "initial strategy"
        assert outcome.aside.draws.mean == outcome.initial_seconds < outcome.seconds
        return
    assert outcome.origin.name == "initial strategy"
    assert outcome.seconds == outcome.initial_seconds == outcome.result.initial_cost
    assert outcome.speedup == 1.0
    assert outcome.aside is None or outcome.seconds < 0.5 * outcome.aside.draws.mean


@pytest.mark.filterwarnings("ignore:time-limit")
@pytest.mark.parametrize("searcher", ["auto", "mcmc", "hybrid", "pipeline", "spmd"])
def test_no_plan_is_slower_than_the_start(no_time_for_the_start, searcher):
    """Even where the search has no time for the start, and it is priced after it."""
    cluster = ClusterOptions(servers=4, interface_bandwidth_gbps=10.0)
    run = RunOptions(batch_size=512, budget=5, seed=3, time_limit="20s", keep="fastest")
    outcome = optimize(Experiment(model="alexnet", topology="torus", cluster=cluster, searchers=searcher, run=run))
    assert outcome.seconds <= outcome.initial_seconds < math.inf
    assert outcome.speedup >= 1.0


def test_an_iteration_that_is_simulated_again_looks_for_no_paths(monkeypatch):
    """Ten seconds of its twelve are spent on paths: its end takes one and a half times the two that are left."""
    evaluator, first = timed(monkeypatch)
    ticks = importlib.import_module("topoplan_engine.search.driver").clock
    monkeypatch.setattr("topoplan_engine.search.evaluator.clock", ticks)
    monkeypatch.setattr("topoplan_engine.kernels.clock.clock", ticks)

    def makespan(*_):
        with routing():
            ticks.now += 10.0
        ticks.now += 2.0
        return 1.0

    monkeypatch.setattr(evaluator._simulate, "makespan", makespan)
    monkeypatch.setattr(ClassSeconds, "has_quotient", lambda *_: False)
    evaluator._begin_caches()
    evaluator.price(Candidate(base=first))
    assert evaluator.seconds_in_full(first) == pytest.approx(3.0)


def test_paths_that_were_found_before_a_search_ended_are_not_looked_for_again(monkeypatch):
    """Ten of 72 pairs a part; three parts are answered before the search must end, and the last five later."""
    monkeypatch.setattr("topoplan_engine.network.answered._AT_A_TIME", 10)
    cluster = cluster_of(9, 1)
    fabric = fabric_of("torus", cluster, {})
    src, dst = (np.array(column, dtype=np.int32) for column in zip(*itertools.permutations(range(9), 2), strict=True))
    whole = Network(fabric, cluster)
    expected = whole.rows_between(src, dst)
    network, routed, asked = Network(fabric, cluster), Network._routed, []
    monkeypatch.setattr(Network, "_routed", lambda self, keys: asked.append(len(keys)) or routed(self, keys))
    with obeyed(Stop(), lambda: 3 - len(asked)), pytest.raises(Stopped):
        network.rows_between(src, dst)
    assert asked == [10, 10, 10]
    assert network.rows_between(src, dst).tolist() == expected.tolist()
    assert asked == [10, 10, 10, 10, 10, 10, 10, 2]
    for name, column in whole.paths._asdict().items():
        assert np.array_equal(getattr(network.paths, name), column), name


def timed(monkeypatch):
    """Return an evaluator, and a state to start from; a test moves the clock of searches."""
    ticks = Ticks()
    for module in ("driver", "unpriced"):
        monkeypatch.setattr(importlib.import_module(f"topoplan_engine.search.{module}"), "clock", ticks)
    monkeypatch.setattr("topoplan_engine.search.unpriced._SMALL", 0)
    return set_up()

"""What there was no time to price, where nothing else has a price: it has the rest of the limit."""

from __future__ import annotations

import importlib
import math

import attrs
import numpy as np
import pytest
from idle_search import IdleSearch

from topoplan import Candidate, Host, PlacedStrategy, Placement, State, Trial
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.interrupt import Stop
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.search.unpriced import Unpriced

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
    unpriced = Unpriced(Candidate(base=first))
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

"""What ends a search: budget, time, patience; restarts share both, and the result says what happened."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time

import attrs
import numpy as np
import pytest
from idle_search import IdleSearch

from topoplan import Candidate, DeviceMesh, Host, PlacedStrategy, Placement, Searcher, State, TopoplanError, Trial
from topoplan.errors import TopoplanWarning, calling
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import experiment_from_toml
from topoplan_engine.interrupt import Stop, TooLargeError, check_size, obeyed
from topoplan_engine.lowering.folding.pair_messages import pair_messages
from topoplan_engine.partition import transfers
from topoplan_engine.reporting.report import outcome_rows
from topoplan_engine.search.bests import Origin, ShortlistEntry
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.draws import Draws, judge
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.limits import time_limited
from topoplan_engine.search.optimize import Ends
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.slices import Slices
from topoplan_engine.search.starting import first_state
from topoplan_engine.search.time_left import TimeLeft
from topoplan_engine.search.time_shares import TimeShares
from topoplan_engine.search.unpriced import Unpriced
from topoplan_samples.graphs import linear_operator
from topoplan_samples.long_tail import at_night
from topoplan_samples.staged import as_stages, order_of
from topoplan_searcher_baseline.rules import strategy_of

SMALL = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
    searchers="mcmc",
    run=RunOptions(batch_size=64, budget=60, seed=3),
)
FLAGS = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64"]


def small(**run):
    return attrs.evolve(SMALL, run=attrs.evolve(SMALL.run, **run))


class Ticks:
    """A clock that goes on by an eighth of a second whenever a candidate is asked for."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Walk(IdleSearch):
    """Proposes the initial state again and again, and lets a clock go on."""

    def __init__(self, ticks):
        self.ticks = ticks

    def ask(self):
        self.ticks.now += 0.125
        return [Candidate(base=self.state)]


@pytest.fixture
def walk(monkeypatch):
    """Return a searcher whose clock is that of the driver."""
    ticks = Ticks()
    for module in ("driver", "ends", "islands", "optimize", "unpriced"):
        monkeypatch.setattr(importlib.import_module(f"topoplan_engine.search.{module}"), "clock", ticks)
    members = {"__doc__": "Walks.", "name": "walk", "axis": "strategy", "build": lambda *_: Walk(ticks)}
    return type(Searcher)("Walker", (Searcher,), {"__module__": __name__, **members})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("5m", 300.0), ("1h", 3600.0), ("1.5 H", 5400.0), ("90", 90.0), (90, 90.0), (0.5, 0.5)],
)
def test_a_time_limit_is_text_or_seconds(text, seconds):
    assert RunOptions(time_limit=text).seconds == seconds


@pytest.mark.parametrize("text", ["", "-1s", "0", "5 days", "nan", "inf", "1e99h", "s", "1_0s\n2", True])
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(TopoplanError, match=r"time-limit: expected .*") as error:
        RunOptions(time_limit=text)
    assert "\n" not in str(error.value)


def test_toml_and_flags_take_it(tmp_path, run):
    file = tmp_path / "a.toml"
    file.write_text('[model]\nuse = "alexnet"\n[run]\ntime-limit = "5m"\nrestarts = 2\n')
    options = experiment_from_toml(file).run
    assert (options.seconds, options.restarts, options.ends_by_time_alone) == (300.0, 2, True)
    status, _, err = run(*FLAGS, "--time-limit", "soon")
    assert status == 2
    assert err == "error: run: time-limit: expected a duration such as 60s, 5m or 1h, at most a year, got 'soon'\n"
    file.write_text('[model]\nuse = "alexnet"\n[run]\ntime-limit = "soon"\n')
    with pytest.raises(TopoplanError, match=r"a.toml: run: time-limit: expected a duration"):
        experiment_from_toml(file)
    assert "depends on the machine" in " ".join(run("optimize", "--help")[1].replace("│", " ").split())


def test_the_budget_has_no_limit_where_only_time_has():
    assert RunOptions().budget == 1000
    assert RunOptions(time_limit="1s").ends_by_time_alone
    assert not RunOptions(time_limit="1s", budget=1000).ends_by_time_alone


def test_time_ends_a_search(walk):
    outcome = optimize(attrs.evolve(small(time_limit=2.0, budget=1000), searchers=[walk]))
    assert outcome.result.ended_by == "time limit"
    assert outcome.result.evaluations == 1 + 16
    assert outcome.result.elapsed == pytest.approx(2.0)
    assert outcome.plan.provenance["time_limit_s"] == 2.0
    assert outcome.plan.provenance["budget"] == 1000


def test_the_budget_ends_a_search_before_its_time(walk):
    result = optimize(attrs.evolve(small(time_limit=2.0, budget=5), searchers=[walk])).result
    assert (result.ended_by, result.evaluations) == ("budget", 6)


def test_patience_is_a_share_of_the_time_where_only_that_is_limited(walk):
    experiment = attrs.evolve(SMALL, run=RunOptions(batch_size=64, time_limit=2.0, patience=0.25), searchers=[walk])
    outcome = optimize(experiment)
    assert (outcome.result.ended_by, outcome.result.evaluations) == ("patience", 1 + 4)
    assert outcome.plan.provenance["budget"] is None


def test_restarts_share_the_time(walk):
    result = optimize(attrs.evolve(small(time_limit=2.0, budget=1000, restarts=4), searchers=[walk])).result
    assert [restart.seconds for restart in result.restarts] == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert result.evaluations == 4 * (1 + 4)


@pytest.mark.slow
def test_a_time_limit_that_is_not_reached_changes_nothing():
    for chains in (1, 2):
        limited, free = (optimize(small(chains=chains, time_limit=limit)) for limit in ("1h", None))
        assert limited.result.history[:, ::2].tolist() == free.result.history[:, ::2].tolist()
        assert limited.result.evaluations == free.result.evaluations
        assert limited.result.ended_by == free.result.ended_by == "budget"


def test_chains_end_by_time(walk):
    result = optimize(attrs.evolve(small(chains=2, time_limit=2.0, budget=10**8), searchers=[walk])).result
    assert (result.ended_by, result.evaluations) == ("time limit", 2 + 16)
    assert result.elapsed == pytest.approx(2.0)


def test_a_search_that_has_no_more_to_propose_says_so(walk):
    silent = type(walk)("Silent", (walk,), {"__module__": __name__, "__doc__": "s", "build": lambda *_: IdleSearch()})
    assert optimize(attrs.evolve(SMALL, searchers=[silent])).result.ended_by == "nothing left to propose"


def test_histories_have_seconds():
    history = optimize(SMALL).result.history
    assert history.shape[1] == 3
    assert (np.diff(history, axis=0)[:, :2] >= 0).all()
    assert (np.diff(history[:, 2]) < 0).all()


@pytest.mark.parametrize("chains", at_night([1, 2], 1))
def test_restarts_are_independent_and_the_best_is_the_result(chains):
    alone = optimize(small(chains=chains, budget=20)).result
    several = optimize(small(chains=chains, budget=60, restarts=3, record=True))
    result, (first, second, third) = several.result, several.result.restarts
    assert (first.evaluations, first.initial_cost, first.best_cost) == (0, alone.initial_cost, alone.best_cost)
    assert (second.evaluations, third.evaluations) == (20 + chains, 2 * (20 + chains))
    assert result.evaluations == 60 + 3 * chains
    assert len({restart.best_cost for restart in result.restarts}) > 1  # they have their own random numbers
    assert result.best_cost == min(restart.best_cost for restart in result.restarts)
    assert result.shortlist[-1].cost == result.best_cost
    assert result.history[-1, 2] == result.best_cost
    assert (np.diff(result.history, axis=0)[:, 0] > 0).all()
    assert several.plan.provenance["restarts"] == 3
    assert set(several.plan.history.chain.tolist()) == set(range(3 * chains))


@pytest.mark.slow
def test_restarts_end_where_one_search_does_if_there_is_one():
    one, none = optimize(small(restarts=1)), optimize(SMALL)
    assert one.result.history[:, ::2].tolist() == none.result.history[:, ::2].tolist()
    assert "restarts" not in none.plan.provenance


@pytest.mark.slow
def test_tables_and_json_say_what_ended_the_search(run):
    report = json.loads(run(*FLAGS, "--budget", "20", "--restarts", "2", "--json")[1])
    assert report["ended_by"] == "budget"
    assert report["history"]["evaluations"][0] == 1
    assert report["history"]["best_s"][0] == report["initial_iteration_time_s"]
    assert [restart["evaluations"] for restart in report["restarts"]] == [0, 11]
    text = run(*FLAGS, "--budget", "20", "--restarts", "2", "--details")[1]
    assert "search ended by" in text
    assert "2, whose bests are" in text


def limited(walk, **run):
    return attrs.evolve(small(time_limit=2.0, budget=1000, **run), searchers=[walk])


def test_a_search_ends_early_enough_to_simulate_its_plan_in_full(walk, monkeypatch):
    """The last simulation takes half a second, says the evaluator: so the search has a second and a half of two."""
    monkeypatch.setattr(Evaluator, "seconds_in_full", lambda *_: 0.5)
    monkeypatch.setattr(Evaluator, "tasks_in_full", lambda *_: 1000)
    result = optimize(limited(walk)).result
    assert (result.ended_by, result.elapsed) == ("time limit", pytest.approx(1.5))
    assert result.evaluations == 1 + 12


def test_a_search_ends_if_its_next_candidate_would_take_longer_than_is_left(walk, monkeypatch):
    """Each candidate takes a second to be priced: one that would begin with a quarter left is not."""
    price = Evaluator.price

    def slow(evaluator, candidate, *cutoff):
        sys.modules["topoplan_engine.search.driver"].clock.now += 1.0
        return price(evaluator, candidate, *cutoff)

    monkeypatch.setattr(Evaluator, "price", slow)
    result = optimize(attrs.evolve(small(time_limit=3.5, budget=1000), searchers=[walk])).result
    assert (result.ended_by, result.evaluations, result.elapsed) == ("time limit", 1 + 2, pytest.approx(3.25))


def test_a_time_limit_counts_from_the_start_of_the_command(walk):
    result = optimize(limited(walk), began=-1.0).result  # of the walk's clock, which says zero
    assert (result.ended_by, result.evaluations) == ("time limit", 1 + 8)


def test_a_plan_that_takes_longer_to_simulate_than_there_is_time_is_told(walk, monkeypatch):
    """It is simulated all the same, after three tenths of the time; the initial state is not."""
    monkeypatch.setattr(Evaluator, "seconds_in_full", lambda *_: 50.0)
    monkeypatch.setattr(Evaluator, "tasks_in_full", lambda *_: 10_000_000)
    message = r"^time-limit: 0.625 of 2 s have passed, and .* about 50 s more: it has 10,000,000 tasks"
    with pytest.warns(TopoplanWarning, match=message):
        outcome = optimize(limited(walk))
    assert outcome.result.evaluations == 1 + 5
    assert outcome.plan.timeline is not None


def test_a_large_start_that_does_not_fit_is_not_simulated_in_full(monkeypatch):
    """Its seconds are those of its price, without that of the bytes that do not fit."""
    experiment = attrs.evolve(small(), searchers="spmd", cluster=attrs.evolve(SMALL.cluster, memory_gb=0.7))
    outcome = optimize(experiment)
    assert not outcome.initial.fits
    monkeypatch.setattr("topoplan_engine.search.ends._LARGEST_START", 1)
    large = optimize(experiment)
    assert (outcome.initial.timeline is None, large.initial.timeline is None) == (False, True)
    assert large.initial_seconds == pytest.approx(outcome.initial.timeline.makespan, rel=1e-6)
    assert large.speedup is outcome.speedup is None


def test_an_initial_state_that_there_is_no_time_for_is_not_simulated_in_full(monkeypatch):
    experiment = small(time_limit="1h")
    monkeypatch.setattr(Ends, "has_time_for", lambda *_: False)
    outcome = optimize(experiment)
    assert outcome.initial.timeline is None
    assert outcome.initial_seconds == outcome.result.initial_cost
    assert outcome.initial.taskgraph.n_tasks == optimize(SMALL).initial.taskgraph.n_tasks
    rows = dict(outcome_rows(outcome))
    assert rows["initial iteration time"].endswith(" ms")
    never_priced = attrs.evolve(outcome, initial_draws=Draws(seconds=[float("inf")]))
    assert dict(outcome_rows(never_priced))["initial iteration time"] == "no time to simulate it"
    assert never_priced.speedup is None


def test_where_no_plan_can_be_priced_in_time_the_initial_strategy_is_priced_after_it(walk, monkeypatch):
    monkeypatch.setattr("topoplan_engine.search.evaluator._SECONDS_PER_TASK", 1.0)
    monkeypatch.setattr("topoplan_engine.search.unpriced._LATE", 1.0)  # not within it
    monkeypatch.setattr(Evaluator, "seconds_in_full", lambda *_: 0.0)
    message = r"^time-limit: no plan could be priced in 2 s; the initial strategy is the result, and took 0 s more"
    with pytest.warns(TopoplanWarning, match=message):
        outcome = optimize(attrs.evolve(limited(walk), topology="fully-connected"))
    assert outcome.origin.name == "initial strategy"
    assert outcome.seconds == optimize(attrs.evolve(SMALL, topology="fully-connected")).initial_seconds
    assert outcome.result.too_large > 0


def test_shares_of_time_follow_the_progress_of_each_searcher():
    """Near the best and bettering its own: two parts; planners and who has the best one, others half or a quarter."""
    planning, late = PortfolioMember(IdleSearch, name="planning"), PortfolioMember(IdleSearch(), name="late")
    shares = TimeShares([IdleSearch(), planning, late], limit=1e4)

    def weights() -> list[float]:
        return [shares.weight(number) for number in range(3)]

    assert weights() == [1.0, 1.0, 0.5]
    shares.take(0, [trial_of(1.0)])
    shares.end_turn(0, 2e3, is_active=True)
    assert weights() == [2.0, 1.0, 0.5]  # the turn that found it counts as fresh, however long it took
    shares.take(2, [trial_of(1.04), trial_of(0.5, fits=False)])
    shares.end_turn(2, 1.0, is_active=True)
    assert weights() == [2.0, 1.0, 2.0]  # behind, but near, and better than its own
    shares.take(0, [trial_of(1.0)])
    shares.end_turn(0, 2e3, is_active=True)
    assert weights() == [1.0, 1.0, 2.0]  # nothing better for long
    shares.take(2, [trial_of(0.9)])
    shares.end_turn(2, 1.0, is_active=True)
    assert weights() == [0.5, 1.0, 2.0]  # nor has it the best plan
    shares.take(0, [trial_of(0.85)])
    shares.end_turn(0, 1.0, is_active=True)
    shares.take(2, [trial_of(0.8)])
    assert weights() == [1.0, 1.0, 2.0]  # it gets nearer
    shares.take(0, [trial_of(0.3)])
    assert weights()[2] == pytest.approx(0.25 * 2.0 * 0.3 / 0.8)  # far behind: 8 / 3 times as slow as the best, not 2
    shares.take(0, [trial_of(0.2)])
    assert weights()[2] == pytest.approx(0.25 * 2.0 * 0.2 / 0.8)  # and farther


def test_a_planner_that_plans_on_from_the_best_plan_keeps_its_share():
    """What it spends before its next proposals is not in vain; far slower plans than the start are far behind."""
    planning = PortfolioMember(IdleSearch(), name="planning")
    shares = TimeShares([IdleSearch(), planning], limit=10.0)
    shares.take(1, [trial_of(1.0)])
    for _ in range(4):
        shares.end_turn(1, 1.0, is_active=True)  # more than a tenth of the limit, and nothing proposed
        assert shares.weight(1) == 2.0
    shares.take(1, [trial_of(1.0)])
    shares.end_turn(1, 1.0, is_active=True)
    assert shares.weight(1) == 1.0
    shares.take(0, [trial_of(0.99)])
    assert shares.weight(1) == 0.5
    shares.begins_with = trial_of(0.2)
    assert shares.weight(1) == pytest.approx(0.1)


def test_who_comes_later_on_large_problems_has_least_of_a_time_limit():
    """Llama 3 8B on 128 devices, 5 s: the first planner was at its first plan for long, as two others planned, too."""
    first = PortfolioMember(IdleSearch, 0.25, name="first", begins=0)
    second = PortfolioMember(IdleSearch, 0.25, name="second", before=[first])
    shares = TimeShares([IdleSearch(), first, second], limit=10.0)
    assert shares.weight(2) == 1.0  # nothing has a plan yet
    shares.take(1, [trial_of(1.0)])
    assert [shares.weight(number) for number in (1, 2)] == [2.0, 0.25]
    first.leave()  # it has nothing left to propose
    assert shares.weight(2) == 1.0


def test_a_planner_in_the_middle_of_a_turn_plans():
    class Building(IdleSearch):
        plans = False

        def ask(self):
            planned.append(member.plans)
            return []

    planned: list[bool] = []
    member = PortfolioMember(Building, 0.25, name="building", begins=0)
    member.ask()
    assert planned == [True]
    assert not member.plans


def test_a_start_that_takes_longer_than_there_is_time_is_not_drawn_again():
    """The initial strategy of 8,192 devices took 18 s after a limit of 10: to say whether its messages draw paths."""

    class Large:
        first_draw = 0

        def n_tasks(self, state):
            lowered.append(state)
            return 1

        def seconds_in_full(self, state):
            return 5.0 if state is first else 0.0

        def draws(self, state):
            lowered.append(state)
            return False

        def penalty(self, strategy):
            return 0.0

        def fits(self, strategy):
            return True

    first, best = (State(PlacedStrategy(()), None) for _ in range(2))
    lowered: list[State] = []
    initial = ShortlistEntry(state=first, cost=math.inf, origin=Origin("initial strategy"))
    found = ShortlistEntry(state=best, cost=1.0, origin=Origin("found by search"))
    judged_plans = judge(Large(), [found], initial, None, constructed=False, stop=Stop(), remaining=lambda: 1.0)
    assert first not in lowered
    assert judged_plans.plan.entry is found
    judge(Large(), [found], initial, None, constructed=False, stop=Stop(), remaining=lambda: 10.0)
    assert first in lowered


def test_shares_of_time_are_those_of_work():
    """Who waits, because the machine does something else, has not used its share."""

    class Waiting(IdleSearch):
        def ask(self):
            time.sleep(0.05)
            return [Candidate(base=self.state)]

    evaluator, first = set_up()
    run = SearchRun(evaluator, first, [("strategy", PortfolioMember(Waiting())), ("strategy", IdleSearch())])
    run.advance(4, Stop())
    assert 0.0 < run._shares.spent[0] < 0.1


def test_until_a_plan_fits_planners_plan_one_after_the_other():
    members = [PortfolioMember(IdleSearch, 0.25, name=name) for name in ("first", "second")]
    shares = TimeShares([IdleSearch(), *members], limit=10.0)
    shares.begins_with = trial_of(1.0)
    assert all(shares.has_turn(number, 1.0) for number in range(3))
    shares.begins_with = trial_of(1.0, fits=False)
    assert [shares.has_turn(number, 1.0) for number in range(3)] == [False, True, False]
    shares.end_turn(1, 6.0, is_active=True)  # more than half of the limit
    assert [shares.has_turn(number, 7.0) for number in range(3)] == [False, False, True]
    shares.take(2, [trial_of(2.0)])
    assert shares.has_turn(0, 7.0)


def test_calls_in_slices_leave_standard_output_to_their_caller(capsys):
    """Two planners wait in the middle of calls whose output goes to standard error, and end in the wrong order."""

    def plan(steps: int) -> None:
        with calling("a planner"):
            for step in range(steps):
                print("aside", step)
                stop_if_wanted()

    planners = [Slices(lambda: plan(2)), Slices(lambda: plan(3))]
    for _ in range(4):
        for planner in planners:
            if not planner._is_done:
                planner.go_on(lambda: True)
                print("result")
    written = capsys.readouterr()
    assert (written.out.split(), written.err.count("aside")) == (["result"] * 7, 5)


def test_what_takes_too_long_to_be_simulated_in_full_is_no_new_best(monkeypatch):
    """A quotient is priced fast, and all its tasks are simulated at the end: too late, unless the best ends as late."""
    evaluator, _ = set_up()
    left = TimeLeft(evaluator, 10.0, has_planners=True)
    seconds = {"slow": 9.0, "fast": 1.0}
    monkeypatch.setattr(Evaluator, "seconds_in_full", lambda _, state: seconds[state])
    slow, fast = (attrs.evolve(trial_of(cost), state=name) for name, cost in (("slow", 1.0), ("fast", 2.0)))
    assert left.ends_late(2.0, slow, fast)
    assert not left.ends_late(0.5, slow, fast)
    assert not left.ends_late(2.0, slow, attrs.evolve(fast, state="slow"))
    assert not left.ends_late(2.0, attrs.evolve(slow, cost=3.0), fast)  # no new best


def test_after_the_limit_the_first_plan_of_a_planner_is_priced_if_nothing_was():
    evaluator, first = set_up()
    unpriced = Unpriced(Candidate(base=first))
    later = Candidate(base=first)
    unpriced.keep(1, later)
    unpriced.keep(2, Candidate(base=first))
    assert unpriced.candidate is later
    with pytest.warns(TopoplanWarning, match=r"in 5 s; the first plan of planner 1 is the result, and took"):
        trial = unpriced.price(evaluator, 5.0, lambda number: f"planner {number}")
    assert trial.cost < float("inf")


def test_what_takes_long_is_not_priced_after_the_limit(monkeypatch):
    """Where a planner's plan has too many tasks the start is priced; where that has, too, one line says so."""
    evaluator, first = set_up()
    placements = tuple(Placement((1,) * len(op.dims), [0]) for op in evaluator.problem.graph.operators)
    planned, price_in_full = State(PlacedStrategy(placements), first.fabric), Evaluator.price_in_full
    too_large = [planned, first]

    def pricing(self, candidate):
        if candidate.base in too_large:
            check_size(10**9)
        return price_in_full(self, candidate)

    monkeypatch.setattr("topoplan_engine.search.unpriced._SMALL", 0)
    monkeypatch.setattr(Evaluator, "price_in_full", pricing)
    unpriced = Unpriced(Candidate(base=first))
    unpriced.keep(1, Candidate(base=planned))
    with pytest.raises(TopoplanError, match=r"^time-limit: no plan could be priced in 5 s of search, nor in "):
        unpriced.price(evaluator, 5.0, str)
    too_large.remove(first)
    with pytest.warns(TopoplanWarning, match=r"in 5 s; the initial strategy is the result, and took"):
        assert unpriced.price(evaluator, 5.0, str).state.strategy is first.strategy
    assert unpriced.number is None


def test_messages_of_an_all_to_all_are_counted_before_they_are_made():
    """Among 8,192 devices they are 67 million."""
    with obeyed(Stop(), most_tasks=lambda: 1e6), pytest.raises(TooLargeError):
        pair_messages(np.arange(8192)[None])


def test_placements_of_more_parts_than_there_is_time_for_are_left_before_their_bytes_are_summed(monkeypatch):
    """Their tasks are counted without any part; data parallel layers pass tensors on inside of their four devices."""
    evaluator, first = set_up()
    inside = 2 * 4 * len(evaluator.problem.graph.edges)
    assert evaluator.tasks_of(first.strategy) == evaluator.plan(first, {}).taskgraph.n_tasks + inside
    monkeypatch.setattr("topoplan_engine.search.evaluator._LARGE", 0)
    evaluator, first = set_up()
    monkeypatch.setattr(Evaluator, "memory", lambda *_: pytest.fail("bytes were summed"))
    with obeyed(Stop(), most_tasks=lambda: 1.0), pytest.raises(TooLargeError):
        evaluator.price(Candidate(base=first))


def test_a_start_that_there_was_no_time_to_price_has_no_memory(monkeypatch):
    """On 16,384 devices the bytes of its parts take longer than the limit."""
    evaluator, first = set_up()
    entry = ShortlistEntry(state=first, cost=evaluator.price(Candidate(base=first)).cost, origin=Origin(""))
    start = attrs.evolve(entry, cost=math.inf)
    memory, asked = Evaluator.memory, []
    monkeypatch.setattr(Evaluator, "memory", lambda self, strategy: asked.append(strategy) or memory(self, strategy))
    placements = tuple(Placement((1,) * len(op.dims), [0]) for op in evaluator.problem.graph.operators)
    plan = attrs.evolve(entry, state=State(PlacedStrategy(placements), first.fabric))
    found = judge(evaluator, [plan], start, None, constructed=True, stop=Stop(), evaluations=2, remaining=lambda: 9.0)
    assert (found.initial.fits, found.initial.cost) == (False, math.inf)
    assert first.strategy not in asked
    assert evaluator.unsimulated_plan(first, {}, with_memory=False).fits is None


def test_passes_of_all_micro_batches_are_counted_before_they_are_copied(monkeypatch):
    """What is folded has one task for each class of devices in each micro-batch: 300 million for a 405B model."""
    evaluator, first = set_up()
    graph, whole = evaluator.problem.graph, DeviceMesh(axes=["data"], sizes=[2])
    cuts = [lambda op: None]
    strategy = as_stages(graph, [0] * len(graph.operators), [whole], order_of("1f1b", 1, 8), cuts)
    n_tasks = evaluator.runs(State(strategy, first.fabric))[2].n_tasks
    monkeypatch.setattr("topoplan_engine.lowering.staged.StagedLowering.n_tasks", lambda *_: 0)
    evaluator, first = set_up()
    with obeyed(Stop(), most_tasks=lambda: n_tasks / 2), pytest.raises(TooLargeError):
        evaluator.price(Candidate(base=State(strategy, first.fabric)))


def test_messages_between_copies_are_counted_before_they_are_made():
    """A tensor in 16,384 terms that 16,384 devices read whole is 268 million messages, and none of them is written."""
    terms = linear_operator("terms", 8, 16384, 4)
    copies = linear_operator("copies", 8, 4, 16384)
    with obeyed(Stop(), most_tasks=lambda: 1e6), pytest.raises(TooLargeError):
        transfers(terms, terms.outputs[0], (1, 1, 16384), copies, copies.inputs[0], (1, 16384, 1))


def test_tasks_of_programs_are_counted_while_they_are_written(monkeypatch):
    """Messages between unlike places are many more than passes, by which a program is judged before."""
    evaluator, first = set_up()
    graph = evaluator.problem.graph
    program = strategy_of("ddp", graph, evaluator.problem.cluster.n_devices)
    monkeypatch.setattr("topoplan_engine.lowering.staged.StagedLowering.n_tasks", lambda *_: 0)
    with obeyed(Stop(), most_tasks=lambda: 1.0), pytest.raises(TooLargeError):
        evaluator.price(Candidate(base=State(program, first.fabric)))


def test_the_first_of_several_searches_has_its_share_of_what_their_start_left():
    """A search for a trainer had 1 of 10 s after a start of 6, and the one that no trainer limits 3."""
    assert time_limited(RunOptions(time_limit="10s"), 6.0, 0.7).seconds == pytest.approx(2.8)
    assert time_limited(RunOptions(time_limit="10s"), 6.0, 1.0).seconds == pytest.approx(4.0)
    assert time_limited(RunOptions(), 6.0, 0.7).seconds == math.inf


def trial_of(cost, *, fits=True):
    """Return a trial whose state is of no problem."""
    return Trial(state=None, cost=cost, demand=dict, fits=fits)


def set_up():
    """Return an evaluator, and a state to start from."""
    setup = set_up_search(Host.discover(), SMALL)
    return setup.evaluator, first_state(setup.evaluator, setup.strategy, np.random.default_rng(0))

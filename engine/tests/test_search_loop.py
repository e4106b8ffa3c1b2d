"""The space of placements and the driver, with a simulator simple enough to know the answers."""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, Search, Simulate, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.search.protocol import Run
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.experiment import Experiment
from topoplan_engine.fitting import check_fits_somewhere
from topoplan_engine.options import RunOptions
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.evaluator import Evaluator, memory_penalty
from topoplan_engine.search.limits import with_patience, with_patience_for
from topoplan_engine.search.whole_run import drive
from topoplan_operators import GraphBuilder
from topoplan_samples.costs import FlatCosts
from topoplan_samples.graphs import two_linears
from topoplan_samples.problems import star_problem


class CountTransfers(Simulate):
    """Iteration time = number of tasks: fewer transfers and parts are better."""

    def __call__(self, taskgraph, fabric, cluster):
        raise AssertionError("only the makespan is asked for while searching")

    def makespan(self, taskgraph, fabric, cluster, cutoff_seconds=float("inf")):
        return float(taskgraph.n_tasks)


def small_problem(graph=None, costs=None, cluster=None):
    return star_problem(graph or two_linears(), cluster or Cluster.uniform(n_hosts=4), costs or FlatCosts())


class Scripted(Search):
    """Asks for the uncut placement of one operator after the other."""

    def __init__(self, problem):
        self.problem, self.told, self.next = problem, [], 0

    def ask(self):
        if self.next == len(self.problem.graph.operators):
            return []
        op, self.next = self.next, self.next + 1
        dims = len(self.problem.graph.operators[op].dims)
        return [Candidate(base=self.state, placements={op: self.problem.space.place((1,) * dims, 0)})]

    def tell(self, trials):
        self.told += trials
        self.state = trials[-1].state


def run_scripted(budget, search=None, problem=None, simulate=None):
    problem = problem or small_problem()
    search = search or Scripted(problem)
    run = Run(problem=problem, budget=budget, seed=0, searchers=("scripted",))
    evaluator = Evaluator(problem, simulate or CountTransfers(), "ignore")
    strategy = problem.space.initial()
    return drive(run, evaluator, strategy, [("strategy", search)], np.random.default_rng(0)), search


def test_budget_zero_prices_the_initial_state_only():
    result, search = run_scripted(0)
    assert result.evaluations == 1
    assert result.best is result.initial
    assert search.told == []


class Quotients(CountTransfers):
    """Simulates quotients, of which it notes how often they are asked for."""

    in_turn_bytes = 0

    def __init__(self):
        self.asked = 0

    def has_quotient(self, fabric, cluster):
        self.asked += 1
        return True

    def has_single_paths(self, fabric, cluster):
        return True

    def quotient_makespan(self, quotient, fabric, cluster, cutoff_seconds=float("inf")):
        return float(quotient.taskgraph.n_tasks)


@pytest.mark.parametrize(("budget", "asked"), [(0, False), (1, True)])
def test_what_states_have_in_common_is_looked_for_where_there_are_several(budget, asked):
    simulate = Quotients()
    result, _ = run_scripted(budget, simulate=simulate)
    assert bool(simulate.asked) == asked
    # Three operators of four parts: two passes each, all-reduces of two linears' weights and biases, no transfer.
    assert budget or result.initial_cost == 2 * 3 * 4 + 4


def test_the_best_state_wins_and_the_run_ends_when_nobody_proposes():
    result, search = run_scripted(100)
    assert result.evaluations == 1 + 3
    assert result.best_cost == min([result.initial_cost, *(t.cost for t in search.told)])
    # All on one device: 3 operators of one part, no transfer and no all-reduce.
    assert result.best_cost == 6
    assert result.history[:, 2].tolist() == sorted(result.history[:, 2].tolist(), reverse=True)


def test_interrupt_keeps_the_best_so_far():
    class Interrupting(Scripted):
        def ask(self):
            if self.next == 2:
                signal.raise_signal(signal.SIGINT)
            return super().ask()

    problem = small_problem()
    result, search = run_scripted(100, Interrupting(problem), problem)
    assert result.interrupted
    assert result.best_cost == min([result.initial_cost, *(t.cost for t in search.told)])


def test_a_new_best_is_adopted_by_the_other_axis():
    problem = small_problem()
    adopted = []

    class Watching(Search):
        def adopt(self, trial):
            adopted.append(trial.cost)

        def ask(self):
            return []

        def tell(self, trials):
            raise AssertionError("was asked for nothing")

    run = Run(problem=problem, budget=10, seed=0, searchers=())
    searchers = [("strategy", Scripted(problem)), ("network", Watching())]
    evaluator = Evaluator(problem, CountTransfers(), "ignore")
    result = drive(run, evaluator, problem.space.initial(), searchers, np.random.default_rng(0))
    assert adopted[0] == result.initial_cost
    assert adopted[-1] == result.best_cost


class Mover(Search):
    """Offers what it is told to the driver, and notes what it is given."""

    follows, reached = False, None

    def __init__(self, follows=False, changes=()):
        self.follows, self.given, self.reached, self.changes = follows, [], None, list(changes)

    def adopt(self, trial):
        self.given.append(trial)

    def ask(self):
        return [self.changes.pop(0)(self.given[0].state)] if self.changes else []

    def tell(self, trials):
        self.reached = trials[-1]


def test_states_that_are_no_better_go_to_those_that_follow_and_new_fabrics_to_all_that_move_the_network():
    problem = small_problem()
    star = problem.build_fabric(None, None)

    def same(state):
        return Candidate(base=state)

    def better(state):
        changes = {op: problem.space.place((1,) * len(p.degrees), 0) for op, p in enumerate(state.strategy.placements)}
        return Candidate(base=state, placements=changes, fabric=star)

    run = Run(problem=problem, budget=10, seed=0, searchers=())
    for axis, across in (("strategy", "network"), ("network", "strategy")):
        mover = Mover(changes=[same, better])
        watching = [(name, Mover(follows)) for name in ("strategy", "network") for follows in (False, True)]
        evaluator = Evaluator(problem, CountTransfers(), "ignore")
        searchers = [(axis, mover), *watching]
        drive(run, evaluator, problem.space.initial(), searchers, np.random.default_rng(0))
        costs = {(name, w.follows): [t.cost for t in w.given] for name, w in watching}
        first, best = costs[axis, False][0], 6.0
        assert costs[across, False] == [first, best]
        assert costs[across, True] == [first, first, best]
        assert costs[axis, False] == costs[axis, True] == ([first] if axis == "strategy" else [first, best])
        assert [t.cost for t in mover.given] == [first]


class Failing(Scripted):
    """Raises an error in one of its methods."""

    def __init__(self, problem, method):
        super().__init__(problem)
        self.method, self.calls = method, 0

    def fail(self, method):
        if method == self.method:
            self.calls += 1
            raise TopoplanError(f"{method} fails")

    def ask(self):
        self.fail("ask")
        return super().ask()

    def tell(self, trials):
        self.fail("tell")
        super().tell(trials)

    def adopt(self, trial):
        self.fail("adopt")
        self.state = trial.state


def run_beside(searches, problem):
    run = Run(problem=problem, budget=10, seed=0, searchers=("scripted",))
    evaluator = Evaluator(problem, CountTransfers(), "ignore")
    return drive(run, evaluator, problem.space.initial(), searches, np.random.default_rng(0))


@pytest.mark.parametrize("method", ["adopt", "ask", "tell"])
def test_a_searcher_that_raises_an_error_leaves_the_others_to_search(method):
    problem = small_problem()
    alone, failing, other = Scripted(problem), Failing(problem, method), Scripted(problem)
    alone.adopt = other.adopt = lambda trial: None
    alone.state = other.state = run_scripted(0)[0].best
    plain = run_beside([("strategy", alone)], problem)
    with pytest.warns(TopoplanWarning, match=f"^{method} fails; the other searchers continue$"):
        found = run_beside([("strategy", failing), ("strategy", other)], problem)
    assert failing.calls == 1
    assert found.best_cost == plain.best_cost
    assert len(other.told) == len(alone.told)


@pytest.mark.parametrize("axes", [("strategy",), ("strategy", "network"), ("strategy", "strategy")])
def test_an_error_ends_a_search_where_no_searcher_of_strategies_is_left(axes):
    problem = small_problem()
    searches = [Failing(problem, "ask" if axis == "strategy" else "") for axis in axes]
    with pytest.warns(TopoplanWarning) if axes == ("strategy", "strategy") else nullcontext():  # noqa: SIM117
        with pytest.raises(TopoplanError, match=r"^ask fails$"):
            run_beside(list(zip(axes, searches, strict=True)), problem)


def test_patience_counts_proposals_without_a_better_state():
    problem = small_problem()
    mover = Mover(changes=[lambda state: Candidate(base=state)] * 50)
    evaluator = Evaluator(problem, CountTransfers(), "ignore")
    for share, count in ((0.2, 8), (0.01, 1), (1.0, 40)):
        run = Run(problem=problem, budget=40, seed=0, searchers=(), patience=share)
        mover.changes = [lambda state: Candidate(base=state)] * 50
        evaluator.evaluations = 0
        result = drive(run, evaluator, problem.space.initial(), [("strategy", mover)], np.random.default_rng(0))
        assert result.evaluations == 1 + count


class Vain(Search):
    """Plans in vain in each turn."""

    waits = in_vain = True

    def ask(self):
        return []


def test_turns_of_planning_in_vain_use_patience_up():
    problem = small_problem()
    mover = Mover(changes=[lambda state: Candidate(base=state)] * 50)
    run = Run(problem=problem, budget=40, seed=0, searchers=(), patience=0.2)
    evaluator = Evaluator(problem, CountTransfers(), "ignore")
    searches = [("strategy", mover), ("strategy", Vain())]
    result = drive(run, evaluator, problem.space.initial(), searches, np.random.default_rng(0))
    assert (result.evaluations, result.ended_by) == (1 + 4, "patience")


class Thinking(Search):
    """Plans for some turns, and proposes nothing."""

    def __init__(self, turns):
        self.turns = turns

    @property
    def plans(self):
        return self.turns > 0

    def ask(self):
        self.turns -= 1
        return []


def test_patience_waits_for_searchers_that_plan():
    problem = small_problem()
    for turns, count in ((0, 8), (5, 8), (20, 20), (100, 40)):
        mover = Mover(changes=[lambda state: Candidate(base=state)] * 50)
        run = Run(problem=problem, budget=40, seed=0, searchers=(), patience=0.2)
        evaluator = Evaluator(problem, CountTransfers(), "ignore")
        searches = [("strategy", mover), ("strategy", Thinking(turns))]
        result = drive(run, evaluator, problem.space.initial(), searches, np.random.default_rng(0))
        assert result.evaluations == 1 + count


@pytest.mark.parametrize(
    ("options", "searchers", "patience"),
    [
        ({}, None, 0.2),
        ({"seed": 3, "restarts": 2}, None, 0.2),
        ({"budget": 1000}, None, None),
        ({"time_limit": 60}, None, None),
        ({"patience": 1}, None, 1),
        ({}, ["mcmc"], None),
        ({}, ["auto", "mcmc"], None),
    ],
)
def test_a_default_search_is_patient_for_a_fifth_of_its_budget(options, searchers, patience):
    chosen = {} if searchers is None else {"searchers": searchers}
    experiment = Experiment(model="alexnet", run=RunOptions(**options), **chosen)
    assert with_patience(experiment).run.patience == patience
    assert with_patience(with_patience(experiment)) == with_patience(experiment)
    named = attrs.evolve(experiment, run=attrs.evolve(experiment.run, budget=400))
    assert with_patience(named).run.patience == options.get("patience")


@pytest.mark.parametrize(
    ("options", "searchers"), [({}, None), ({"patience": 0.5}, None), ({"patience": 0.2}, None), ({}, ["mcmc"])]
)
def test_a_default_search_for_a_large_problem_is_patient_for_as_much_work(options, searchers):
    problem = small_problem()
    chosen = {} if searchers is None else {"searchers": searchers}
    experiment = with_patience(Experiment(model="alexnet", run=RunOptions(**options), **chosen))
    assert with_patience_for(experiment, problem) == experiment
    large = attrs.evolve(problem, cluster=Cluster.uniform(n_hosts=2**17 // len(problem.graph.operators)))
    sized = with_patience_for(experiment, large)
    assert sized.run.patience == (experiment.run.patience if options or searchers else 0.008)
    assert with_patience_for(sized, large) == sized


def test_initial_strategy_is_data_parallel_with_tables_round_robin():
    b = GraphBuilder("tables", 8)
    tables = [b.embedding(b.input((1,), itemsize=8), 10, 4) for _ in range(6)]
    b.linear(b.concat(tables), 3)
    problem = small_problem(b.build())
    placements = problem.space.initial().placements
    assert [p.devices.tolist() for p in placements[:6]] == [[0], [1], [2], [3], [0], [1]]
    assert placements[-1].devices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("batch", "devices"), [(2, [0, 2]), (3, [0]), (1, [0]), (10, [0, 2]), (65, [0]), (12, [0, 1, 2, 3])]
)
def test_a_batch_that_the_devices_do_not_divide_starts_on_as_many_as_divide_both(batch, devices):
    problem = small_problem(two_linears(batch=batch))
    start = problem.space.initial()
    start.check(problem.graph, problem.cluster.n_devices)
    assert [placement.devices.tolist() for placement in start.placements] == [devices] * 3


def test_space_holds_only_what_can_be_priced():
    space = small_problem(costs=FlatCosts(lambda op, d: np.prod(d) == d[0])).space
    assert set(space.degrees(0)) == {(1, 1, 1), (2, 1, 1), (4, 1, 1)}
    with pytest.raises(TopoplanError, match="is not measured"):
        small_problem(costs=FlatCosts(lambda op, d: False)).space.degrees(0)


def test_soap_dimensions_can_all_be_cut():
    degrees = small_problem().space.degrees(0)
    assert (1, 1, 4) in degrees
    assert (1, 4, 1) in degrees
    assert (2, 2, 1) in degrees
    assert all(4 % np.prod(d) == 0 for d in degrees)


def test_device_sets_are_within_a_host_or_whole_hosts_at_equal_strides():
    problem = small_problem(cluster=Cluster.uniform(n_hosts=4, devices_per_host=2))
    space = problem.space
    pairs = {tuple(space.place((2, 1, 1), s).devices.tolist()) for s in range(space.starts((2, 1, 1)))}
    assert pairs == {(0, 1), (2, 3), (4, 5), (6, 7)}
    fours = {tuple(space.place((4, 1, 1), s).devices.tolist()) for s in range(space.starts((4, 1, 1)))}
    assert fours == {(0, 1, 4, 5), (2, 3, 6, 7)}
    assert space.place((4, 1, 1), 0) is space.place((4, 1, 1), 0)


def test_memory_policies():
    used, capacity = np.array([3e9, 1e9]), np.array([2e9, 2e9])
    assert memory_penalty(used, capacity, "ignore") == 0
    assert memory_penalty(used, capacity, "penalty") == pytest.approx(1.0)  # 1000 MB over at 1 ms each
    assert memory_penalty(used, capacity, "limit") == float("inf")
    assert memory_penalty(capacity, capacity, "limit") == 0


def test_a_hard_limit_makes_a_candidate_infeasible_without_simulating_it():
    problem = small_problem(costs=FlatCosts(memory=30e9))
    strategy = problem.space.initial()
    state = Candidate(base=type(run_scripted(0)[0].initial)(strategy, problem.build_fabric(None, None)))

    class Never(CountTransfers):
        def makespan(self, *given):
            raise AssertionError("simulated a candidate that does not fit")

    assert Evaluator(problem, Never(), "limit").price(state).cost == float("inf")


def test_weights_that_fit_nowhere_are_refused():
    b = GraphBuilder("huge", 8)
    b.embedding(b.input((1,), itemsize=8), 10**9, 128)
    problem = small_problem(b.build())
    with pytest.raises(TopoplanError, match=r"weights take 476.8 GiB, but the 4 devices hold 149.0 GiB together"):
        check_fits_somewhere(problem, whole_batch=False)


class Endless(Search):
    """Plans until somebody stops it."""

    def ask(self):
        while True:
            stop_if_wanted()


class Slow(Search):
    """Proposes many candidates at once, of which each takes long to be priced."""

    def ask(self):
        return [Candidate(base=self.state)] * 1000


def test_a_time_limit_ends_a_planner_before_its_first_plan():
    problem = small_problem()
    run = Run(problem=problem, budget=1000, seed=0, searchers=("endless",), time_limit=0.2)
    evaluator, rng = Evaluator(problem, CountTransfers(), "ignore"), np.random.default_rng(0)
    keep = Keep(others={0: "endless"})
    result = drive(run, evaluator, problem.space.initial(), [("strategy", Endless())], rng, keep=keep)
    assert (result.ended_by, result.unfinished) == ("time limit", "endless was planning")
    assert result.elapsed < 0.4
    assert result.best is result.initial


def test_a_batch_that_time_ends_is_not_said_to_have_spent_the_budget():
    problem = small_problem()
    evaluator = Evaluator(problem, CountTransfers(), "ignore")

    def price(candidate, fitting_cutoff=0.0):
        time.sleep(0.01)
        return Evaluator.price(evaluator, candidate, fitting_cutoff)

    evaluator.price = price
    run = Run(problem=problem, budget=1000, seed=0, searchers=("slow",), time_limit=0.1)
    result = drive(run, evaluator, problem.space.initial(), [("strategy", Slow())], np.random.default_rng(0))
    assert result.ended_by == "time limit"
    assert result.evaluations < 30


class CountTransfersInFull(CountTransfers):
    """May be asked for a timeline, too: what is priced at the end is the plan."""

    def __call__(self, *iteration):
        return SimpleNamespace(makespan=self.makespan(*iteration))


def test_an_iteration_with_too_many_tasks_for_the_time_is_not_priced():
    problem = small_problem()
    evaluator = Evaluator(problem, CountTransfersInFull(), "ignore")
    evaluator.seconds_per_task = evaluator.least_seconds_per_task = 1e3
    run = Run(problem=problem, budget=100, seed=0, searchers=("scripted",), time_limit=60.0)
    search = Scripted(problem)
    with pytest.warns(TopoplanWarning, match="no plan could be priced in 60 s; the initial strategy is the result"):
        result = drive(run, evaluator, problem.space.initial(), [("strategy", search)], np.random.default_rng(0))
    assert result.too_large == 3
    assert [trial.cost for trial in search.told] == [np.inf] * 3
    assert 0.0 < result.best_cost == result.initial_cost < np.inf
    assert result.ended_by == "nothing left to propose"


class InTurns(Scripted):
    """Proposes after some turns of planning."""

    turns = 5

    @property
    def plans(self):
        return self.turns > 0

    def ask(self):
        self.turns -= 1
        return [] if self.turns >= 0 else super().ask()


def test_a_planner_that_proposes_nothing_yet_does_not_end_the_run():
    result, search = run_scripted(100, InTurns(small_problem()))
    assert len(search.told) == 3
    assert result.ended_by == "nothing left to propose"


class EndlessPlanner(Endless):
    """Plans for ever, between the turns of others."""

    plans = True


def test_a_planner_that_plans_for_long_waits_while_others_have_their_shares_of_the_time():
    run_scripted(0)  # what is loaded at first use takes no part of the limit
    problem = small_problem()
    evaluator = Evaluator(problem, CountTransfers(), "ignore")

    def price(candidate, fitting_cutoff=0.0):
        time.sleep(0.005)
        return Evaluator.price(evaluator, candidate, fitting_cutoff)

    evaluator.price = price
    run = Run(problem=problem, budget=1000, seed=0, searchers=("slow", "endless"), time_limit=1.0)
    members = [("strategy", One()), ("strategy", PortfolioMember(EndlessPlanner(), name="endless"))]
    keep = Keep(others={0: "slow", 1: "endless"})
    result = drive(run, evaluator, problem.space.initial(), members, np.random.default_rng(0), keep=keep)
    assert (result.ended_by, result.unfinished) == ("time limit", "endless was planning")
    assert result.elapsed < 1.3
    assert result.evaluations > 10  # of about 100; before, the planner had all the time after the first turn


class One(Search):
    """Proposes the state that it has."""

    def ask(self):
        return [Candidate(base=self.state)]

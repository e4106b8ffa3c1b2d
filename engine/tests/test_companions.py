"""Searchers that another one brings along: who they are, and that one which cannot search is left out."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, Search, Searcher, TopoplanError
from topoplan.errors import PluginError, TopoplanWarning
from topoplan.testing import landscape
from topoplan_engine import Choice
from topoplan_engine.search.companions import PortfolioMember, build_member, companions_of


@attrs.frozen(kw_only=True)
class Bringer(Searcher):
    """Brings others along."""

    name = "bringer"
    axis = "strategy"
    asked: ClassVar[list[tuple[str, int]]] = []

    def companions(self, topology, n_devices):
        self.asked.append((topology.name, n_devices))
        return [Choice("refusing"), Choice("not-installed"), Choice("chosen"), Choice("refusing")]

    def without(self, kinds):
        return self

    def build(self, problem, rng):
        return Search()


def refusing(error):
    @attrs.frozen(kw_only=True)
    class Refusing(Searcher):
        """Cannot search."""

        name = "refusing"
        axis = "strategy"

        def build(self, problem, rng):
            raise error

    return Refusing


@attrs.frozen(kw_only=True)
class Chosen(Searcher):
    """Named by the user."""

    name = "chosen"
    axis = "strategy"

    def build(self, problem, rng):
        raise AssertionError


def test_installed_companions_that_the_user_has_not_named_take_part_once():
    host = Host.discover()
    for component in (Bringer, Chosen, refusing(TopoplanError("no"))):
        host.add(component)
    topology = host.make("topology", "bigswitch")
    searchers = (host.make(Searcher, "bringer"), host.make(Searcher, "chosen"))
    assert [companion.name for companion in companions_of(host, searchers, topology, 8)] == ["refusing"]
    assert Bringer.asked[-1] == ("bigswitch", 8)
    assert companions_of(host, searchers[1:], topology, 8) == ()


def test_one_that_cannot_search_proposes_nothing():
    problem, rng = landscape.problem(), np.random.default_rng(0)
    member = build_member(refusing(TopoplanError("too small"))(), problem, rng)
    member.adopt(landscape.trial(landscape.start(problem)))
    assert list(member.ask()) == []
    assert not member.plans
    member.tell([])
    assert member.reached is None
    assert member.report(None) is None


def test_one_with_a_fault_proposes_nothing_and_there_is_a_warning():
    problem, rng = landscape.problem(), np.random.default_rng(0)
    with pytest.warns(TopoplanWarning, match="broken; the other searchers continue"):
        member = build_member(refusing(PluginError("broken"))(), problem, rng)
    assert list(member.ask()) == []


def test_one_that_gives_up_proposes_nothing_more():
    class GivesUp(Search):
        asked = 0

        def ask(self):
            self.asked += 1
            if self.asked > 1:
                raise TopoplanError("no further plan")
            return [Candidate(base=self.state)]

    search = GivesUp()
    member = PortfolioMember(search)
    member.adopt(landscape.trial(landscape.start(landscape.problem())))
    assert [len(member.ask()) for _ in range(3)] == [1, 0, 0]
    assert search.asked == 2


def test_a_planner_waits_until_it_has_had_its_share():
    class Plans(Search):
        def ask(self):
            return [Candidate(base=self.state)] * 3

    member = PortfolioMember(Plans(), share=0.25)
    member.adopt(landscape.trial(landscape.start(landscape.problem())))
    assert [len(member.ask()) for _ in range(25)] == [3, *[0] * 10, 3, *[0] * 11, 3, 0]


class Planner(Search):
    """Proposes the state it adopted, in batches."""

    batch = 10

    def adopt(self, trial):
        self.state = trial.state

    def ask(self):
        return [Candidate(base=self.state)] * self.batch


def candidates_in(member, turns):
    return sum(len(member.ask()) for _ in range(turns))


def test_a_planner_has_a_quarter_of_a_candidate_a_turn_and_fifteen_while_it_leads():
    planner = Planner()
    member = PortfolioMember(planner, 0.25)
    member.adopt(landscape.trial(landscape.start(landscape.problem())))
    assert candidates_in(member, 400) == 100 + 10  # the last batch is a whole one
    member.leads, planner.batch = True, 40
    assert 15 * 1400 <= 110 + candidates_in(member, 1000) <= 15 * 1400 + 40
    member.leads = False
    assert candidates_in(member, 100) == 0


def test_a_companion_that_is_no_planner_has_every_turn():
    member = PortfolioMember(Planner())
    member.adopt(landscape.trial(landscape.start(landscape.problem())))
    assert candidates_in(member, 100) == 1000


def test_a_planner_is_built_when_the_others_have_had_their_first_turns():
    built, problem = [], landscape.problem()

    class Planning(Search):
        def ask(self):
            return [Candidate(base=self.state)]

    @attrs.frozen(kw_only=True)
    class Planner(Searcher):
        """Plans."""

        name = "planner"
        axis = "strategy"
        constructs = True

        def build(self, problem, rng):
            built.append(Planning())
            return built[0]

    member = build_member(Planner(), problem, np.random.default_rng(0))
    first = landscape.trial(landscape.start(problem))
    member.adopt(first)
    for _ in range(10):
        assert list(member.ask()) == []
    assert (member.plans, built) == (True, [])
    (candidate,) = member.ask()
    assert candidate.state() == first.state
    assert not member.plans


@pytest.mark.parametrize("large", [True, False])
def test_planners_begin_one_after_the_other_on_large_problems(monkeypatch, large):
    """The second one waits for the first, unless that gets no further turn or a time limit says that it is behind."""
    problem = landscape.problem()
    parts = len(problem.graph.operators) * problem.cluster.n_devices
    monkeypatch.setattr("topoplan_engine.search.companions._PARTS_BEFORE", (2 if large else 10) * parts)

    class Planning(Search):
        left = 20

        @property
        def plans(self):
            return self.left > 0

        def ask(self):
            self.left -= 1
            return [] if self.left else [Candidate(base=self.state)]

    @attrs.frozen(kw_only=True)
    class Planner(Searcher):
        """Plans."""

        name = "planner"
        axis = "strategy"
        constructs = True

        def build(self, problem, rng):
            return Planning()

    def members():
        first = build_member(Planner(), problem, np.random.default_rng(0))
        both = first, build_member(Planner(), problem, np.random.default_rng(0), [first])
        for member in both:
            member.adopt(landscape.trial(landscape.start(problem)))
        return both

    def begins(*, leaves=1000, behind=1000):
        first, second = members()
        for turn in range(100):
            if turn == leaves:
                first.leave()
            first.ask()
            second.behind = turn >= behind
            if second.plans_next:
                return turn
            second.ask()
        raise AssertionError

    assert begins() == (21 if large else 10)
    assert begins(leaves=15) == (15 if large else 10)
    assert begins(behind=5) == 5


def test_who_waits_for_a_planner_begins_when_that_proposed_in_vain():
    class Plans(Search):
        plans = True

        def ask(self):
            return [Candidate(base=self.state)]

    first = PortfolioMember(Plans(), share=1.0, patience=4)
    first.adopt(landscape.trial(landscape.start(landscape.problem())))
    second = PortfolioMember(Plans, share=1.0, name="second", begins=0, before=[first])
    waited = 0
    for turn in range(20):
        first.ask()
        if turn == 2:
            first.know_best(1.0)
        if second.plans_next:
            break
        waited += 1
    assert waited == 3 + 3


def test_a_planner_on_a_large_problem_holds_the_search_until_its_first_plans():
    class Plans(Search):
        plans = True

        def ask(self):
            return [Candidate(base=self.state)]

    for begins, holds in ((5, False), (10, True)):
        member = PortfolioMember(Plans(), share=0.25, begins=begins)
        member.adopt(landscape.trial(landscape.start(landscape.problem())))
        assert member.holds
        member.ask()
        assert member.holds is holds


def test_a_turn_of_planning_in_vain_is_one_of_its_last_turn():
    class Plans(Search):
        turn, in_vain = 0, False

        @property
        def waits(self):
            return self.in_vain

        def ask(self):
            self.turn += 1
            self.in_vain = self.turn == 2
            return [] if self.in_vain else [Candidate(base=self.state)]

    member = PortfolioMember(Plans(), share=1.0)
    member.adopt(landscape.trial(landscape.start(landscape.problem())))
    assert [(len(member.ask()), member.in_vain, member.waits) for _ in range(3)] == [
        (1, False, False),
        (0, True, True),
        (1, False, False),
    ]


def test_a_planner_that_follows_pipelines_is_built_once_one_is_the_best():
    built = []

    class Plans(Search):
        plans = True

        def ask(self):
            return [Candidate(base=self.state)]

    class Planner(Searcher):
        name = "planner"
        axis = "strategy"
        constructs = True

        def follows_pipelines(self, problem):
            return True

        def build(self, problem, rng):
            built.append(1)
            return Plans()

    problem = landscape.problem()
    member = build_member(Planner(), problem, np.random.default_rng(0))
    member.adopt(landscape.trial(landscape.start(problem)))
    for _ in range(30):
        assert member.ask() == []
        member.know_stages(1)
    assert not built
    assert not member.plans
    assert member.left_out == "planner: not asked, for no pipeline was the best plan (-s planner asks it)"
    member.know_stages(2)
    assert member.plans
    assert len(member.ask()) == 1
    assert built
    member.know_stages(1)
    assert member.plans

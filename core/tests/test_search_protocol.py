"""The defaults of a search: it keeps the state that it goes on from, and reports nothing."""

from __future__ import annotations

from topoplan import Candidate, Search, State, Trial
from topoplan.testing import reference


class Repeating(Search):
    """Proposes the state that it has."""

    def ask(self):
        return [] if self.state is None else [Candidate(base=self.state)]


def test_a_search_goes_on_from_the_state_adopted_last():
    plan = reference.plan()
    states = [State(plan.strategy, reference.ring()) for _ in range(3)]
    trials = [Trial(state=state, cost=1.0, demand=reference.demand) for state in states]
    search = Repeating()
    assert search.ask() == []
    for trial in trials[:2]:
        search.adopt(trial)
        assert [candidate.base for candidate in search.ask()] == [trial.state]
    search.tell(trials[2:])
    assert search.state is states[1]
    assert (search.reached, search.follows, search.acceptance, search.report(plan.strategy)) == (
        None,
        False,
        None,
        None,
    )

"""The search: it constructs the plan that is stated, and proposes it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topoplan import Candidate, Problem, Search, State, Strategy, TopoplanError
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import words_of
from topoplan_searcher_stated.settings import settings_of

__all__ = ["StatedSearch"]


class StatedSearch(Search):
    """Proposes one strategy and ignores its cost; refuses one that a trainer of the problem does not run."""

    def __init__(self, options: Stated, problem: Problem) -> None:
        self._options = settings_of(options, problem.graph)
        self._strategy, self._degrees = strategy_of(self._options, problem.graph, problem.cluster.n_devices)
        self._asked = False
        restriction = problem.restriction
        if restriction is not None and (why := restriction.refusal(problem.graph, problem.cluster, self._strategy)):
            raise TopoplanError(why)

    def ask(self) -> Sequence[Candidate]:
        """Propose the strategy, then nothing."""
        if self.state is None or self._asked:
            return []
        self._asked = True
        return [Candidate(base=State(self._strategy, self.state.fabric))]

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the whole plan, with what was left out."""
        options, degrees = self._options, self._degrees
        return {
            "plan": words_of(options, degrees),
            "micro_batches": degrees.micro_batches,
        }

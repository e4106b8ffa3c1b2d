"""The search: it constructs the plan that is stated, and proposes it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from topoplan import (
    Candidate,
    OperatorGraph,
    Problem,
    Restriction,
    Search,
    StagedStrategy,
    State,
    Strategy,
    TopoplanError,
    Trial,
)
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import Degrees, short_words_of, words_of
from topoplan_searcher_stated.launchable import rules_for
from topoplan_searcher_stated.settings import Settings, settings_of
from topoplan_searcher_stated.smaller import nearest_that_fits

__all__ = ["StatedSearch"]


#: The last problem and options, and what they state: a large problem asks for it twice.
_last: tuple[OperatorGraph, int, Settings, Restriction | None, tuple[StagedStrategy, Degrees]] | None = None


def stated_strategy(options: Stated, problem: Problem) -> tuple[StagedStrategy, Degrees]:
    """Return what is stated for a problem, and its degrees; see `strategy_of`."""
    global _last
    settings, graph, n_devices = settings_of(options, problem.graph), problem.graph, problem.cluster.n_devices
    if _last is None or _last[0] is not graph or _last[1:4] != (n_devices, settings, problem.restriction):
        strategy = strategy_of(settings, graph, n_devices, rules_for(problem))
        _last = graph, n_devices, settings, problem.restriction, strategy
    return _last[4]


class StatedSearch(Search):
    """Proposes one strategy, and looks for one that fits where it does not.

    It refuses a strategy that a trainer of the problem does not run.
    """

    def __init__(self, options: Stated, problem: Problem) -> None:
        self._options = settings_of(options, problem.graph)
        strategy, self._degrees = stated_strategy(options, problem)
        self._strategy = attrs.evolve(strategy)  # the one that is proposed is not the start itself, even if equal
        self._asked, self._nearest = False, ""
        self._problem = problem
        restriction = problem.restriction
        if restriction is not None and (why := restriction.refusal(problem.graph, problem.cluster, self._strategy)):
            raise TopoplanError(why)

    def ask(self) -> Sequence[Candidate]:
        """Propose the strategy, then nothing."""
        if self.state is None or self._asked:
            return []
        self._asked = True
        return [Candidate(base=State(self._strategy, self.state.fabric))]

    def tell(self, trials: Sequence[Trial]) -> None:
        """If it does not fit, look for the nearest plan that does."""
        for trial in trials:
            if not trial.fits:
                self._nearest = nearest_that_fits(self._options, self._problem, trial.state.fabric)

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the whole plan, with what was left out, and the nearest that fits where it does not."""
        options, degrees = self._options, self._degrees
        return {
            "plan": words_of(options, degrees),
            "short": short_words_of(options, degrees),
            "micro_batches": degrees.micro_batches,
            **({"nearest_that_fits": f"--plan {self._nearest}"} if self._nearest else {}),
        }

"""What is priced after a time limit, where nothing was priced within it: a search has a result where that is soon.

Data flow: the driver keeps the first state, and the first candidate of a planner that there was no time for; at the end
it prices the latter, which is in stages and may fit, or else the former.  Both together may take a tenth of the limit
longer, unless the search is written down to be repeated without a clock; small iterations take no time to speak of.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import attrs

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.search.protocol import Candidate, Trial
from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop, TooLargeError, obeyed
from topoplan_engine.kernels.clock import clock
from topoplan_engine.search.evaluator import Evaluator

__all__ = ["Unpriced", "UnpricedError"]

#: Share of a time limit, and seconds at least, for which something is priced after it.
_GRACE, _LEAST_GRACE = 0.1, 0.5

#: Tasks of an iteration that is priced, however late it is.
_SMALL = 50_000


class UnpricedError(TopoplanError):
    """A time limit ended a search before any plan had a time."""


@attrs.frozen
class _Kept:
    """A candidate, and the number of the planner that proposed it; None for the first state."""

    candidate: Candidate
    number: int | None


class Unpriced:
    """Candidates that there was no time for.

    Attributes:
        candidate: the one that is priced first: that of a planner, if there is one.
        number: of the planner that proposed it; None of the first state.
    """

    def __init__(self, first: Candidate) -> None:
        self._first = _Kept(first, None)
        self._kept = self._first

    @property
    def candidate(self) -> Candidate:
        """What is priced first."""
        return self._kept.candidate

    @property
    def number(self) -> int | None:
        """The planner that proposed it."""
        return self._kept.number

    def keep(self, number: int, candidate: Candidate, cost: float = math.inf) -> None:
        """Keep the first candidate of a planner that has no cost."""
        if self.number is None and cost == math.inf:
            self._kept = _Kept(candidate, number)

    def price(self, evaluator: Evaluator, limit: float, name_of: Callable[[int], str], *, whole: bool = False) -> Trial:
        """Price one in full, and warn of how long that took.

        Args:
            evaluator: of the search.
            limit: seconds of the search.
            name_of: names a planner.
            whole: however long it takes.

        Raises:
            UnpricedError: none can be priced soon.
        """
        began, grace = clock(), math.inf if whole else max(_GRACE * limit, _LEAST_GRACE)
        choices = [self._kept] if self._kept is self._first else [self._kept, self._first]
        for number, choice in enumerate(choices):
            until = began + grace * (number + 1) / len(choices)
            trial = _priced_by(until, evaluator, choice.candidate)
            if trial is None:
                continue
            self._kept = choice
            what = "initial strategy" if choice.number is None else f"first plan of {name_of(choice.number)}"
            warnings.warn(
                TopoplanWarning(
                    f"time-limit: no plan could be priced in {limit:.3g} s; the {what} is the result, and took "
                    f"{clock() - began:.3g} s more"
                ),
                stacklevel=3,
            )
            return trial
        tasks = evaluator.tasks_in_full(self._first.candidate.state())
        raise UnpricedError(
            f"time-limit: no plan could be priced in {limit:.3g} s of search, nor in {clock() - began:.2g} s after it "
            f"(the initial strategy has {tasks:,} tasks): allow it more time, or fewer devices"
        )


def _priced_by(until: float, evaluator: Evaluator, candidate: Candidate) -> Trial | None:
    """Price a candidate in full; None where that takes longer.  A small one is never left."""
    strategy = candidate.state().strategy
    if until == math.inf or evaluator.tasks_of(strategy) <= _SMALL:
        return evaluator.price_in_full(candidate)
    try:
        with obeyed(Stop(), lambda: until - clock(), lambda: (until - clock()) / evaluator.least_seconds_per_task):
            return evaluator.price_in_full(candidate)
    except (Stopped, TooLargeError):
        return None

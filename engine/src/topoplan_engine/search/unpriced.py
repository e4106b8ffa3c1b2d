"""What there was no time to price, where nothing else has a price: a search has a result where there may be one.

While nothing has a price, no candidate may take long, for the next one may be the one that is priced soon.  The driver
keeps the first state, and the candidates of planners that were left.  Where a good part of a time limit is over and
still nothing that fits has a price, they are priced in the rest of it, that of the fewest tasks first.  Once a plan
fits, the first state alone is: it may be the better one, and others start from it.
At the end, if nothing has a price, one of them is, which is in stages and may fit, or else the first state.  Both
together may take a tenth of the limit longer, unless the search is written down to be repeated without a clock; small
iterations take no time to speak of.
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

#: Shares of a time limit after which what was left is priced in the rest of it: where every planner has proposed
#: something, and in any case; and how many candidates are kept.
_LATE, _LATEST, _MOST = 0.4, 0.6, 8

#: Share of a time limit, and of what is left of it, that the first state may take beside a plan that fits.
_BESIDE, _BESIDE_OF_REST = 0.3, 0.5

#: Tasks of an iteration that is priced, however late it is.
_SMALL = 50_000


class UnpricedError(TopoplanError):
    """A time limit ended a search before any plan had a time."""


@attrs.frozen
class _Kept:
    """A candidate, the number of the planner that proposed it (None for the first state), and seconds in vain."""

    candidate: Candidate
    number: int | None
    seconds: float = 0.0


class Unpriced:
    """Candidates that there was no time for.

    Attributes:
        candidate: what was priced at last, or is to be priced: that of a planner, if there is one.
        number: of the planner that proposed it; None of the first state.
        has_first: there was no time for the first state, either.
    """

    def __init__(self, first: Candidate, *, has_first: bool = True) -> None:
        self._first, self.has_first = _Kept(first, None), has_first
        self._kept = self._first
        #: Those of planners, and the ones that had no time but their turn; the first state is one of these.
        self._planned: list[_Kept] = []
        self._waiting: list[_Kept] = [self._first] if has_first else []

    @property
    def candidate(self) -> Candidate:
        """What was, or is to be priced."""
        return self._kept.candidate

    @property
    def number(self) -> int | None:
        """The planner that proposed it."""
        return self._kept.number

    def keep(self, number: int, candidate: Candidate, seconds: float = 0.0) -> None:
        """Keep a candidate of a planner that was left after so many seconds."""
        if len(self._planned) < _MOST:
            self._planned.append(_Kept(candidate, number, seconds))
            self._waiting.append(self._planned[-1])
            self._kept = self._planned[0]

    def price_early(
        self, evaluator: Evaluator, elapsed: float, limit: float, *, others_plan: bool = False
    ) -> Trial | None:
        """Price what was left in the rest of a limit, once a good part of it is over.

        That of the fewest tasks comes first; each has half of the time that is left, and the last one all, if that is
        more than it had before.  Where the first state alone comes after one, they share by the squares of their
        tasks: what has clearly fewer is the one to be priced, and gets nearly all.

        Args:
            evaluator: of the search.
            elapsed, limit: seconds of the search.
            others_plan: a planner that has proposed nothing is planning.

        Returns:
            The first that has a cost; None if none has, or it is too early.
        """
        if not self._waiting or elapsed < (_LATEST if others_plan else _LATE) * limit:
            return None
        end = clock() + limit - elapsed
        self._waiting.sort(key=lambda entry: evaluator.tasks_of(entry.candidate.state().strategy))
        while self._waiting and (seconds := end - clock()) > 0.0:
            entry = self._waiting.pop(0)
            seconds *= self._share(entry, evaluator)
            if seconds <= entry.seconds:
                continue
            if (trial := self._priced(entry, seconds, evaluator)) is not None:
                return trial
        return None

    def price_first(self, evaluator: Evaluator, elapsed: float, limit: float) -> Trial | None:
        """Price the first state beside a plan that fits, where that takes no more than a share of the limit.

        Args:
            evaluator: of the search.
            elapsed, limit: seconds of the search.

        Returns:
            Its trial; None where there is no time for it, or it has no cost.
        """
        if self._first not in self._waiting:
            return None
        self._waiting = []
        seconds = min(_BESIDE * limit, _BESIDE_OF_REST * (limit - elapsed))
        tasks = evaluator.tasks_of(self._first.candidate.state().strategy)
        has_time = tasks * evaluator.least_seconds_per_task < seconds
        return self._priced(self._first, seconds, evaluator) if has_time else None

    def _share(self, entry: _Kept, evaluator: Evaluator) -> float:
        """Return the share of the time that one has of those that wait."""
        if self._waiting != [self._first]:
            return 0.5 if self._waiting else 1.0
        tasks, first = (evaluator.tasks_of(each.candidate.state().strategy) for each in (entry, self._first))
        return first**2 / (tasks**2 + first**2) if first else 0.5

    def _priced(self, entry: _Kept, seconds: float, evaluator: Evaluator) -> Trial | None:
        """Price one in so many seconds, and take note that it was; None where it has no cost."""
        trial = _priced_by(clock() + seconds, evaluator, entry.candidate)
        if trial is None or trial.cost == math.inf:
            return None
        self._kept, self.has_first = entry, self.has_first and entry is not self._first
        return trial

    def price(self, evaluator: Evaluator, limit: float, name_of: Callable[[int], str], *, whole: bool = False) -> Trial:
        """Price one in full, and warn of how long that took.

        Args:
            evaluator: of the search.
            limit: seconds of the search.
            name_of: names a planner.
            whole: however long it takes.

        Raises:
            UnpricedError: none can be priced soon.
            TopoplanError: the first state can never be.
        """
        began, grace = clock(), math.inf if whole else max(_GRACE * limit, _LEAST_GRACE)
        planned = sorted(self._planned, key=lambda entry: evaluator.tasks_of(entry.candidate.state().strategy))
        choices = [*planned[:1], self._first]
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
        if why := evaluator.oversize(self._first.candidate.state().strategy):
            raise TopoplanError(why)
        raise UnpricedError(
            f"time-limit: no plan could be priced in {limit:.3g} s of search, nor in {clock() - began:.2g} s after it "
            f"({self._needs(evaluator, name_of)}): allow it more time, or fewer devices"
        )

    def _needs(self, evaluator: Evaluator, name_of: Callable[[int], str]) -> str:
        """Say how large what there was no time for is."""
        first = f"the initial strategy has {evaluator.tasks_of(self._first.candidate.state().strategy):,} tasks"
        if not self._planned:
            return first
        tasks = [evaluator.tasks_of(entry.candidate.state().strategy) for entry in self._planned]
        number = self._planned[tasks.index(min(tasks))].number
        assert number is not None
        return f"{first}, the smallest plan of {name_of(number)} {min(tasks):,}"


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

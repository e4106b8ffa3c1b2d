"""Shares that the searchers of a portfolio have of a time limit.

A searcher whose plans are about as fast as the best, and become better, has most.  Who has the best plan, members that
still plan, and searchers that brought members along as long as they better their own plan, have less; who proposed
nothing better for long, less again; and who proposed nothing but far slower plans, least, the less the slower they are.
A searcher has its turn if it has used no more than its share so far.

On large problems planners begin one after the other (`topoplan_engine.search.companions`): once a plan is known that
fits, those that proposed nothing have least, too, while one before them plans.

While no plan is known that fits, planners plan one after the other: each gets to its first plan the sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan.search.protocol import Search, Trial
from topoplan_engine.search.companions import PortfolioMember

__all__ = ["TimeShares"]

#: Share of a time limit from which on searchers have theirs.
_BEGINNING = 0.03

#: Weights: of who betters its own best plan, which is near the best of all; of who has that one, of members that still
#: plan, and of searchers that brought the members along and better their own; of who proposed nothing better for long;
#: of planners whose turn is not yet, and of who has nothing but far slower plans, while these are just far.
_LEADS, _PLANS, _FOLLOWS, _LATER = 2.0, 1.0, 0.5, 0.25

#: Share of a time limit that who leads spends without a better plan before it has the share of any other; a planner
#: that plans on from its last one has proposed nothing in vain.
_FRESH = 0.1

#: Share of a time limit after which a planner is no longer alone, though no plan is known that fits.
_ALONE = 0.25

#: A searcher's best plan that takes so many times as long as the best of all is near it; from another factor on, far.
_NEAR, _FAR = 1.05, 2.0


class TimeShares:
    """Who has used how much of a time limit.

    Attributes:
        spent: (searchers,) CPU seconds that each took to propose, and its candidates to be priced: what else the
            machine does is no searcher's share.
        begins_with: the state at the start, once it is priced.
    """

    def __init__(self, searches: Sequence[Search], limit: float) -> None:
        """``limit``: seconds; infinite where there is none."""
        self._searches, self._limit = searches, limit
        self.spent = [0.0] * len(searches)
        self.begins_with: Trial | None = None
        #: Seconds of the best plan of each that fits, and what it had spent at the end of the turn that found it, and
        #: of the last turn that proposed something.
        self._own_best, self._found_at = [math.inf] * len(searches), [0.0] * len(searches)
        self._proposed_at = [0.0] * len(searches)
        self._has_found = self._has_proposed = False
        #: Those that have something to propose, as far as their last turns say.
        self._active = set(range(len(searches)))

    def has_turn(self, number: int, elapsed: float) -> bool:
        """Say whether it is a searcher's turn: if it has had no more than its share so far.

        The share is of the time of those that have something to propose: who has nothing is always asked.
        """
        if elapsed < _BEGINNING * self._limit:
            return True
        if (planner := self.alone()) is not None:
            return number == planner
        peers = self._active | {number}
        share = sum(self.spent[peer] for peer in peers) * self.weight(number) / sum(map(self.weight, peers))
        search, is_behind = self._searches[number], self.spent[number] <= share
        if isinstance(search, PortfolioMember):
            search.behind = is_behind
        return is_behind or number not in self._active

    def alone(self) -> int | None:
        """Return the planner that plans alone, because no plan is known that fits."""
        begins_with = self.begins_with
        if begins_with is None or (begins_with.cost < math.inf and begins_with.fits) or min(self._own_best) < math.inf:
            return None
        for number, search in enumerate(self._searches):
            plans_first = isinstance(search, PortfolioMember) and search.constructs and not search.proposed
            if plans_first and self.spent[number] <= _ALONE * self._limit:
                assert isinstance(search, PortfolioMember)
                search.behind = True
                return number
        return None

    def weight(self, number: int) -> float:
        """Return the weight of a searcher's share.  Who has found nothing better for long leads no more."""
        search, begins_with = self._searches[number], self.begins_with
        start = begins_with.cost if begins_with is not None and begins_with.fits else math.inf
        best = min(start, *self._own_best)
        times = self._own_best[number] / best if best < math.inf else math.inf
        is_fresh = self._proposed_at[number] - self._found_at[number] <= _FRESH * self._limit
        if times <= _NEAR and is_fresh:
            return _LEADS
        if isinstance(search, PortfolioMember) and search.comes_later and min(self._own_best) < math.inf:
            return _LATER
        if _FAR < times < math.inf:
            return _LATER * _FAR / times
        plans = not search.proposed if isinstance(search, PortfolioMember) else is_fresh
        return _PLANS if plans or times <= 1.0 else _FOLLOWS

    def end_turn(self, number: int, seconds: float, is_active: bool) -> None:
        """Take note of a turn, and whether the searcher has something to propose."""
        self.spent[number] += seconds
        if self._has_found:
            self._found_at[number] = self.spent[number]
        if self._has_proposed:
            self._proposed_at[number] = self.spent[number]
        self._has_found = self._has_proposed = False
        (self._active.add if is_active else self._active.discard)(number)

    def take(self, number: int, trials: Sequence[Trial]) -> None:
        """Take note of what the candidates of a searcher cost, whose turn it is."""
        self._has_proposed = True
        cost = min((trial.cost for trial in trials if trial.fits), default=math.inf)
        if cost < self._own_best[number]:
            self._own_best[number], self._has_found = cost, True

    def know(self, number: int, trial: Trial) -> None:
        """Take note of what a candidate of a searcher costs that was priced in no turn of its own."""
        if trial.fits:
            self._own_best[number] = min(self._own_best[number], trial.cost)

"""Shares that the searchers of a portfolio have of a time limit.

The searcher that leads has most, until it has found nothing better for long; members that proposed no better plan have
least.  A searcher has its turn if it has used no more than its share so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoplan.search.protocol import Search
from topoplan_engine.search.companions import PortfolioMember

__all__ = ["TimeShares"]

#: Share of a time limit from which on searchers have theirs.
_BEGINNING = 0.03

#: Weights: of who found the best state; of members that still plan, and searchers that brought the members along; of
#: members that proposed nothing better.
_LEADS, _PLANS, _FOLLOWS = 2.0, 1.0, 0.5

#: Share of a time limit that who leads spends without a better state before it has the share of any other.
_FRESH = 0.1


class TimeShares:
    """Who has used how much of a time limit.

    Attributes:
        spent: (searchers,) seconds that each took to propose, and its candidates to be priced.
        leader: who found the best state; None if no searcher did.
    """

    def __init__(self, searches: Sequence[Search], limit: float) -> None:
        """``limit``: seconds; infinite where there is none."""
        self._searches, self._limit = searches, limit
        self.spent = [0.0] * len(searches)
        self.leader: int | None = None
        self._led_at = 0.0
        #: Those that have something to propose, as far as their last turns say.
        self._active = set(range(len(searches)))

    def has_turn(self, number: int, elapsed: float) -> bool:
        """Say whether it is a searcher's turn: if it has had no more than its share so far.

        The share is of the time of those that have something to propose: who has nothing is always asked.
        """
        if elapsed < _BEGINNING * self._limit:
            return True
        peers = self._active | {number}
        share = sum(self.spent[peer] for peer in peers) * self.weight(number) / sum(map(self.weight, peers))
        search, is_behind = self._searches[number], self.spent[number] <= share
        if isinstance(search, PortfolioMember):
            search.behind = is_behind
        return is_behind or number not in self._active

    def weight(self, number: int) -> float:
        """Return the weight of a searcher's share.  Who has found nothing better for long leads no more."""
        search = self._searches[number]
        if number == self.leader and self.spent[number] - self._led_at <= _FRESH * self._limit:
            return _LEADS
        return _FOLLOWS if isinstance(search, PortfolioMember) and search.proposed else _PLANS

    def end_turn(self, number: int, seconds: float, is_active: bool) -> None:
        """Take note of a turn, and whether the searcher has something to propose."""
        self.spent[number] += seconds
        (self._active.add if is_active else self._active.discard)(number)

    def lead(self, number: int) -> None:
        """Take note of who found a better state."""
        self.leader, self._led_at = number, self.spent[number]

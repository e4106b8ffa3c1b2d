"""The shortlist of a search: its last best states, with their origins.

A searcher that constructs its answer stands for the strategies that it proposes.  States of another searcher count by
their time alone.  So a search has two bests, the fastest of all and the fastest constructed one, and the user says
which one is the result.  Of either, the last few are stored: if messages draw one of several paths, a time is one draw
of many, and it takes more draws to decide which state is the best (`topoplan_engine.search.draws`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from topoplan.search.protocol import State, Trial

__all__ = ["LAST", "Bests", "Keep", "Origin", "ShortlistEntry", "almost_best"]

#: Best states that are stored.
LAST = 8

#: Cost of a constructed state, as a multiple of the best, up to which other draws of paths may decide between them.
_ALMOST = 1.05


@attrs.frozen(kw_only=True)
class Keep:
    """Which of the two bests is the result of a search.

    Attributes:
        constructing: names of the searchers that construct their answers, by their numbers in the order of turns.
        others: names of the other searchers of strategies, likewise.
        constructed: the result is the best that they constructed, if there is one; else the fastest of all.
        stated: users have stated the one plan that is constructed: it is the result, though it may not fit.
    """

    constructing: Mapping[int, str] = attrs.field(factory=dict)
    others: Mapping[int, str] = attrs.field(factory=dict)
    constructed: bool = False
    stated: bool = False

    def prefers(self, constructed: Trial | None, fastest: Trial) -> bool:
        """Say whether the best that was constructed, if anything was, is the result in place of the fastest of all."""
        if not self.constructed or constructed is None:
            return False
        return self.stated or constructed.fits or not fastest.fits


@attrs.frozen
class Origin:
    """Where a strategy comes from.

    Attributes:
        name: a few words: ``initial strategy``, ``constructed by hpgo``, ``found by mcmc``.
        searcher: the searcher that constructed it and stands for it; empty if none does.
        report: the report of that searcher, once it has been asked.
    """

    name: str
    searcher: str = ""
    report: Mapping[str, Any] | None = None

    @property
    def constructed(self) -> bool:
        """Whether a searcher stands for it."""
        return bool(self.searcher)


@attrs.frozen(kw_only=True, eq=False)
class ShortlistEntry:
    """A state that was the best of its kind when it was priced, and its cost in seconds, as the search priced it."""

    state: State
    cost: float
    origin: Origin


class Bests:
    """The last states, each better than all before it."""

    def __init__(self) -> None:
        self._last: deque[Trial] = deque(maxlen=LAST)

    @property
    def best(self) -> Trial | None:
        """The best one; None before the first."""
        return self._last[-1] if self._last else None

    @property
    def last(self) -> tuple[Trial, ...]:
        """The last ones, the best one at the end."""
        return tuple(self._last)

    def take(self, trial: Trial) -> bool:
        """Store a trial if it is feasible and better than all before it; say whether it is."""
        if trial.cost == float("inf") or (self._last and trial.rank >= self._last[-1].rank):
            return False
        self._last.append(trial)
        return True


def almost_best(kinds: Iterable[Bests], last: Sequence[Trial]) -> list[Trial]:
    """Return the fastest state of each kind, of those not in ``last``, if it is almost as fast as the last of these."""
    fastest = [bests.best for bests in kinds]
    return [
        trial
        for trial in fastest
        if trial is not None
        and trial.cost <= _ALMOST * last[-1].cost
        and all(trial.state is not shortlisted.state for shortlisted in last)
    ]

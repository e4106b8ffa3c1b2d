"""The best states of a search, with where they come from: what a plan is chosen from at the end.

A searcher that constructs its answer stands for the strategies that it proposes, another one for none: what it reaches
counts by its time alone.  So a search has two bests, the fastest of all and the fastest that was constructed, and the
user says which one is kept.  Of either, the last few are remembered: a time is one draw of many where messages draw
one of several paths, and it takes more draws to tell which of them is the best (`topoplan_engine.search.draws`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.search.protocol import State, Trial

__all__ = ["LAST", "Bests", "Keep", "Origin", "ShortlistEntry"]

#: Bests that are remembered.
LAST = 8


@attrs.frozen(kw_only=True)
class Keep:
    """Which of the two bests is the result of a search.

    Attributes:
        constructing: names of the searchers that construct their answers, by their numbers in the order of turns.
        constructed: the best that they constructed is kept, where there is one; else the fastest of all.
    """

    constructing: Mapping[int, str] = attrs.field(factory=dict)
    constructed: bool = False


@attrs.frozen
class Origin:
    """Where a strategy comes from.

    Attributes:
        name: what it is, in a few words: ``initial strategy``, ``constructed by hpgo``, ``found by search``.
        searcher: the searcher that constructed it and stands for it; empty where none does.
        report: what that searcher says of it, where that is known already.
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
    """The last states each of which was better than all before."""

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
        """Remember a trial if it is feasible and better than all before; say whether it is."""
        if trial.cost == float("inf") or (self._last and trial.rank >= self._last[-1].rank):
            return False
        self._last.append(trial)
        return True

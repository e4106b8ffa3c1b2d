"""What a search found: the value that the driver, islands and restarts return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.model.recording import SearchHistory
from topoplan.search.protocol import State
from topoplan_engine.search.bests import ShortlistEntry
from topoplan_engine.search.limits import Ending

__all__ = ["Restart", "Result"]


@attrs.frozen(kw_only=True)
class Restart:
    """One of several independent searches of a result.

    Attributes:
        evaluations, seconds: of the searches before it.
        initial_cost, best_cost: seconds per iteration of the state that it began with, and of the best that it found.
    """

    evaluations: int
    seconds: float
    initial_cost: float
    best_cost: float


@attrs.frozen(kw_only=True)
class Result:
    """What a search found.

    Attributes:
        best, initial: the states, and in ``*_cost`` their seconds per iteration as the search priced them, memory
            penalty included.
        shortlist: the last states that were the best, ``best`` at the end.
        aside: where a constructed plan is kept, the fastest state of all; where the fastest is, the best that was
            constructed.  None where that is ``best`` itself, or where there is none.
        reports: where nothing that searchers constructed could be simulated, what they say of it all the same.
        planning: seconds that searchers took to propose, all chains together.
        elapsed: seconds that the search took.  Both are without those that kernels took to compile.
        history: (k, 3) float64, rows (evaluations, seconds, best cost): the initial state, and whenever there was a
            new best one.  The second cost may be above the first where a constructed plan is kept.
        rank: sort key of results, smallest for the best (`topoplan_engine.search.driver.SearchRun.rank`).
        ended_by: what ended it.
        unfinished: what that ended in the middle of: ``pipeline was planning``; empty if nothing was.
        too_large: candidates that were not priced, because that would take too long for the time limit, or more tasks
            or memory than there may be.
        left_out: searchers that another one brought along and that took no part, and why: ``pipeline: ...``.
        recorded: evaluations of all chains, where they are written down.
        restarts: the independent searches, in their order, if there were several.
    """

    best: State
    best_cost: float
    initial: State
    initial_cost: float
    shortlist: tuple[ShortlistEntry, ...]
    aside: ShortlistEntry | None
    reports: Mapping[str, Mapping[str, Any]]
    evaluations: int
    planning: float
    elapsed: float
    acceptance: float | None
    history: np.ndarray
    rank: tuple[bool, bool, float]
    ended_by: Ending
    unfinished: str = ""
    too_large: int = 0
    left_out: tuple[str, ...] = ()
    recorded: SearchHistory | None = None
    restarts: tuple[Restart, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.ended_by == "interrupt"

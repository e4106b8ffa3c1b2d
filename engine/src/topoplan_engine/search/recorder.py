"""The history of a search, written down while it runs: every evaluation of a short one, a choice of a long one's.

Evaluations whose number is a multiple of a power of two are kept, and all that were new bests; when there are too many
rows the power is doubled.  So a history depends on the search alone, and never has more rows than its limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from topoplan.model.recording import SearchHistory

__all__ = ["MOST_ROWS", "NoRecorder", "Row", "SearchRecorder", "history_of"]

#: Rows of a history, all chains together.
MOST_ROWS = 2000


class Row(NamedTuple):
    """One evaluation: its number, seconds since the start, costs of the state after it and of the best one."""

    evaluation: int
    seconds: float
    current: float
    best: float
    accepted: bool


class NoRecorder:
    """What a search has that is not written down."""

    def note(self, row: Row, *, new_best: bool) -> None:
        """Forget an evaluation."""

    def pass_over(self, row: Row, count: int) -> None:
        """Forget evaluations."""

    def rows(self) -> list[Row]:
        """Return nothing."""
        return []


class SearchRecorder(NoRecorder):
    """The rows of one chain."""

    def __init__(self, chains: int = 1) -> None:
        """Keep the share of one of so many chains."""
        self._limit = max(2, MOST_ROWS // chains) - 1  # the last evaluation is a row, too
        self._step = 1
        self._rows: list[tuple[Row, bool]] = []
        self._last: Row | None = None

    def note(self, row: Row, *, new_best: bool) -> None:
        """Take note of an evaluation."""
        self._last = row
        if new_best or row.evaluation % self._step == 0:
            self._rows.append((row, new_best))
        while len(self._rows) > self._limit:
            self._thin()

    def pass_over(self, row: Row, count: int) -> None:
        """Take note of so many evaluations that changed nothing; ``row`` is the first of them."""
        for number in range(count):
            self.note(row._replace(evaluation=row.evaluation + number), new_best=False)

    def _thin(self) -> None:
        """Double the step; where there are too many new bests alone, leave out every other one, but not the last."""
        self._step *= 2
        rows = [(row, best) for row, best in self._rows if best or row.evaluation % self._step == 0]
        if all(best for _, best in rows) and len(rows) > self._limit:
            rows = rows[::-2][::-1]
        self._rows = rows

    def rows(self) -> list[Row]:
        """Return the rows in order, the last evaluation among them."""
        rows = [row for row, _ in self._rows]
        return rows if self._last is None or rows[-1:] == [self._last] else [*rows, self._last]


def history_of(chains: Iterable[list[Row]]) -> SearchHistory:
    """Put the rows of chains behind each other."""
    rows = [(chain, row) for chain, of_chain in enumerate(chains) for row in of_chain][:MOST_ROWS]
    columns = np.array([row for _, row in rows], dtype=np.float64).reshape(-1, len(Row._fields)).T
    evaluation, seconds, current, best, accepted = columns
    return SearchHistory(
        chain=[chain for chain, _ in rows],
        evaluation=evaluation,
        seconds=seconds,
        current=current,
        best=best,
        accepted=accepted,
    )

"""Compressed sparse rows (CSR): rows of different lengths, one after the other in one column.

``indptr`` has one element more than there are rows; the entries of row ``i`` are ``indptr[i] .. indptr[i + 1] - 1``.
Results have the integer type of what they are made of, so that a large table of int32 stays one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I32, I64

__all__ = ["GrowingColumns", "append", "expand", "frozen", "indptr", "row_of_entry", "select"]

#: Elements from which on a column has room to grow.
_LONG = 1 << 16


def indptr(lengths: Any, dtype: Any = np.int64) -> Any:
    """(n+1,) row pointers of rows with these (n,) lengths."""
    pointers = np.zeros(len(lengths) + 1, dtype=dtype)
    np.cumsum(lengths, out=pointers[1:])
    return pointers


def row_of_entry(pointers: I32 | I64) -> I64:
    """(e,) row that each entry is in; for the successors of a task graph, the task that each edge leaves."""
    return np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))


def expand(first: Any, lengths: Any) -> tuple[Any, Any]:
    """Return, for ranges ``first[i] .. first[i] + lengths[i] - 1`` one after the other, each ``i`` and each number."""
    ends = indptr(lengths, first.dtype)
    owner = np.repeat(np.arange(len(lengths), dtype=first.dtype), lengths)
    return owner, np.arange(ends[-1], dtype=first.dtype) + (first - ends[:-1])[owner]


def select(pointers: I32 | I64, rows: I32 | I64) -> tuple[I64, I64]:
    """Return the entries of some rows: which of ``rows`` (by position) each is in, and its place."""
    wide = pointers.astype(np.int64, copy=False)
    owner, entry = expand(wide[rows], wide[rows + 1] - wide[rows])
    return owner, entry


def append(column: NDArray[Any], *more: NDArray[Any]) -> NDArray[Any]:
    """Append to a column; the result is read-only, as `topoplan.arrays` wants it, without a second copy."""
    return frozen(np.concatenate([column, *more], dtype=column.dtype, casting="same_kind"))


class GrowingColumns:
    """Columns that are often appended to: long ones are views of rooms with space to spare, which is written once."""

    def __init__(self) -> None:
        self._rooms: dict[str, NDArray[Any]] = {}
        self._ends: dict[str, int] = {}

    def append(self, name: str, column: NDArray[Any], *more: NDArray[Any]) -> NDArray[Any]:
        """Do what `append` does to the column of a name, which is what was returned for it the last time."""
        total = len(column) + sum(map(len, more))
        if total < _LONG:
            return append(column, *more)
        room, end = self._rooms.get(name), len(column)
        if room is None or self._ends[name] != end or len(room) < total:
            room = self._rooms[name] = np.empty(total + total // 2, column.dtype)
            room[:end] = column
        for part in more:
            room[end : end + len(part)] = part
            end += len(part)
        self._ends[name] = end
        return frozen(room[:end])


def frozen(column: NDArray[Any]) -> NDArray[Any]:
    """Make a column that only the caller has read-only, as `topoplan.arrays` wants it, and return it: no copy."""
    column.setflags(write=False)
    return column

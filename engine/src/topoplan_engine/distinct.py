"""Distinct values of long columns, alone and numbered: of small integers, and of names.

Rows of integers are combined one by one, which takes a tenth of sorting them as records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I32, I64

__all__ = ["Distinct", "distinct_columns", "distinct_values", "numbered_names"]


class Distinct(NamedTuple):
    """The different columns of a table, in lexicographic order; k of them.

    Attributes:
        first: (k,) the first column of each kind.
        number: (n,) the kind of each column.
    """

    first: I64
    number: I64

    @property
    def counts(self) -> I64:
        """(k,) how many columns there are of each kind."""
        return np.bincount(self.number, minlength=len(self.first))


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the (k,) different values of an array without NaN, in order.

    `numpy.unique` does so, too, and imports masked arrays to see whether it was given one: at its first call, that
    takes a twentieth of a short command.

    >>> distinct_values(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def distinct_columns(*rows: Any) -> Distinct:
    """Return the different columns of (n,) rows of integers.

    >>> distinct_columns(np.array([1, 0, 1, 1]), np.array([2, 9, 2, -1]))
    Distinct(first=array([1, 3, 0]), number=array([2, 0, 2, 1]))
    """
    number, count = np.zeros(len(rows[0]), np.int64), 1
    for row in rows:
        if not len(row) or (row == row[0]).all():
            continue
        low, high = int(row.min()), int(row.max())
        if high - low > 8 * len(row):  # far apart: number them first
            row, low = np.unique(row, return_inverse=True)[1].ravel(), 0
            high = int(row.max())
        size = high - low + 1
        number = number * size + (row - low)
        if count * size > 8 * len(row) + 64:
            values, number = np.unique(number, return_inverse=True)
            count = len(values)
            continue
        present = np.zeros(count * size, np.bool_)
        present[number] = True
        count = int(present.sum())
        number = (np.cumsum(present) - 1)[number]
    first = np.empty(count if len(number) else 0, np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    return Distinct(first, number)


def numbered_names(names: Sequence[str]) -> tuple[list[str], I32]:
    """Return the different names in a column, by first occurrence, and (n,) the number of each one.

    >>> numbered_names(("H100", "H100", "A100"))
    (['H100', 'A100'], array([0, 0, 1], dtype=int32))
    """
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    if len(number) == 1:
        return list(number), np.zeros(len(names), np.int32)
    return list(number), np.fromiter(map(number.__getitem__, names), np.int32, len(names))

"""Numbers and words in the cells of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.rows import Cells

__all__ = ["count", "number", "word"]

#: The largest number that a cell may have.
_LARGEST = 1e15


def number(cells: Cells, column: str) -> float:
    """Return the number above 0 of a cell.

    Raises:
        TopoplanError: it is empty or none.

    Examples:
        >>> number({"iteration_ms": "12.5"}, "iteration_ms")
        12.5
    """
    text = cells.get(column, "")
    try:
        value = float(text)
    except ValueError:
        raise TopoplanError(f"{column}: {shown(text)} is no number" if text else f"{column}: is empty") from None
    if not 0 < value <= _LARGEST or math.isnan(value):
        raise TopoplanError(f"{column}: {shown(text)} is no number above 0")
    return value


def count(cells: Cells, column: str, default: int | None = None) -> int:
    """Return the whole number of a cell, 1 or more; an empty one is the default, if there is one.

    Raises:
        TopoplanError: it is empty, or no whole number above 0.
    """
    if default is not None and not cells.get(column):
        return default
    value = number(cells, column)
    if value != int(value):
        raise TopoplanError(f"{column}: {shown(cells[column])} is no whole number")
    return int(value)


def word(cells: Cells, column: str, words: Sequence[str]) -> str:
    """Return the word of a cell, one of those that are known; an empty one is the first of them.

    Raises:
        TopoplanError: it is another one.

    Examples:
        >>> word({"compiled": "eager"}, "compiled", ("compile", "eager")), word({}, "compiled", ("compile", "eager"))
        ('eager', 'compile')
    """
    text = cells.get(column) or words[0]
    if text not in words:
        raise TopoplanError(f"{column}: {shown(text)} is none of {', '.join(words)}")
    return text

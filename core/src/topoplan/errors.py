"""Errors that a user can cause, told in one line.

Every message reads ``where: what (what would be right)``.  The command line prints it without a
traceback and exits with status 2.  Anything that is not a `TopoplanError` is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["NoPlanFitsError", "TopoplanError", "TopoplanWarning", "nearest", "shown"]

#: Characters of the longest message; of a longer one the middle is left out.
_LONGEST = 1000
#: Names that a message lists.
_LISTED = 30


class TopoplanError(Exception):
    """Something in the input is wrong; the message says where, what, and what would be right.

    Attributes:
        status: with which the command line ends.
    """

    status = 2

    def __init__(self, message: str = "") -> None:
        # Cut first, because the message may be huge, and again, because signs that are written out are longer.
        super().__init__(_cut(_one_line(_cut(str(message), _LONGEST)), _LONGEST))


class NoPlanFitsError(TopoplanError):
    """Nothing in the input is wrong, but no plan fits the devices; the message says what it lacks and what helps."""

    status = 1


class TopoplanWarning(UserWarning):
    """Something went wrong that does not end the run: an observer of a plugin that raised, for example."""


def shown(value: Any, longest: int = 60) -> str:
    """Return ``repr(value)`` for a message, with its middle left out where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list nested too deeply
        text = f"<{type(value).__name__}>"
    return _cut(text, longest)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of ``known``, or some of what exists, each name cut."""
    names = sorted(known)
    # What is much longer than every name resembles none; to compare it would take long.
    key = name.lower()
    lower = {one.lower(): one for one in names}
    longer = [one for low, one in lower.items() if low.startswith(f"{key}-")]
    close = difflib.get_close_matches(key, lower, n=1, cutoff=0.6) if len(name) <= 200 and not longer else []
    if longer:
        names = longer
    if close:
        return f"; did you mean {shown(lower[close[0]])}?"
    listed = [_cut(name, 60) for name in names[:_LISTED]]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f" (have: {', '.join(listed) or 'none'}{more})"


def _one_line(text: str) -> str:
    """Write what a terminal does not show, or would obey, in letters; a file may hold anything."""
    if text.isprintable():
        return text
    plain = " ".join(text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def _cut(text: str, longest: int) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= longest:
        return text
    gap = " ... "
    half = (longest - len(gap)) // 2
    return f"{text[: longest - len(gap) - half]}{gap}{text[len(text) - half :]}"

"""Errors that a user can cause, told in one line.

Every message reads ``where: what (what would be right)``.  The command line prints it without a
traceback and exits with status 2.  Anything that is not a `TopoplanError` is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["TopoplanError", "nearest"]


class TopoplanError(Exception):
    """Something in the input is wrong; the message says where, what, and what would be right."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of ``known``, or the list of what exists."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f" (have: {', '.join(names) or 'none'})"

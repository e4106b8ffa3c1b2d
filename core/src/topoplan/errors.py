"""Errors that a user can cause, each in one line.

Every message reads ``where: what (what would be right)``.  The command line prints it without a
traceback and exits with status 2.  Anything that is not a `TopoplanError` is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "CodeRefusedError",
    "NoPlanFitsError",
    "PluginError",
    "TopoplanError",
    "TopoplanWarning",
    "calling",
    "exception_line",
    "expect",
    "nearest",
    "shown",
]

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


class CodeRefusedError(TopoplanError):
    """A file asks for code of others to be run, and the user has not said that it may."""


class PluginError(TopoplanError):
    """Code of a plugin returned what it must not, or raised what is no `TopoplanError`, and the cause of this one."""


class TopoplanWarning(UserWarning):
    """Something went wrong that does not end the run: an observer of a plugin that raised, for example."""


def shown(value: Any, longest: int = 60) -> str:
    """Return ``repr(value)`` for a message, with its middle left out where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list nested too deeply
        text = f"<{type(value).__name__}>"
    return _cut(text, longest)


def exception_line(error: BaseException) -> str:
    """Return one line for an exception of somebody else's code."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Name ``what`` (``searcher 'x' (plugin 'y'): ask``) in the place of what its code raises meanwhile."""
    try:
        yield
    except TopoplanError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may raise anything at all
        raise PluginError(f"{what} raised {exception_line(error)}") from error


def expect(value: Any, kind: Any, what: str, right: str = "") -> None:
    """Raise `PluginError` where ``what`` returned no value of a type."""
    if not isinstance(value, kind):
        returned = "None" if value is None else f"{type(value).__name__} {shown(value, 40)}"
        raise PluginError(f"{what} returned {returned} (must return {right or kind.__name__})")


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of ``choices``, or some of what exists, each name cut."""
    names = sorted(choices)
    key = name.lower()
    lower = {each.lower(): each for each in names}
    longer = [each for low, each in lower.items() if low.startswith(f"{key}-")]
    # What is much longer than every name resembles none; to compare it would take long.
    if not longer and len(name) <= 200 and (close := difflib.get_close_matches(key, lower, n=1, cutoff=0.6)):
        return f"; did you mean {shown(lower[close[0]])}?"
    names = longer or names
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

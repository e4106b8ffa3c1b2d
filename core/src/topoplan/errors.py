"""Errors that a user can cause, each in one line.

Every message reads ``where: what (what would be right)``.  The command line prints it without a
traceback and exits with status 2.  Anything that is not a `TopoplanError` is a bug.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

__all__ = [
    "CodeRefusedError",
    "FabricError",
    "NoPlanFitsError",
    "PluginError",
    "TopoplanError",
    "TopoplanWarning",
    "calling",
    "exception_line",
    "expect",
    "nearest",
    "printable",
    "printing_aside",
    "shown",
]

#: Characters of the longest message; of a longer one the middle is left out.
_LONGEST = 1000
#: Names that a message lists.
_LISTED = 30
#: Values within a value of which a message writes all, before it cuts; of more, some of each list in a few levels.
_WRITTEN = 1000
_SOME = reprlib.Repr()
_SOME.maxlevel, _SOME.maxdict, _SOME.maxset, _SOME.maxfrozenset = 3, 8, 8, 8
_SOME.maxlist = _SOME.maxtuple = _SOME.maxarray = _SOME.maxdeque = 8
_SOME.maxstring = _SOME.maxother = _SOME.maxlong = 200


class TopoplanError(Exception):
    """Something in the input is wrong; the message says where, what, and what would be right.

    Attributes:
        status: with which the command line ends.
    """

    status = 2

    def __init__(self, message: str = "") -> None:
        # Cut first, because the message may be huge, and again, because signs that are written out are longer.
        super().__init__(_cut(printable(_cut(str(message), _LONGEST)), _LONGEST))


class NoPlanFitsError(TopoplanError):
    """Nothing in the input is wrong, but no plan fits the devices; the message says what it lacks and what helps."""


class CodeRefusedError(TopoplanError):
    """A file asks for code of others to be run, and the user has not said that it may."""


class FabricError(TopoplanError):
    """A fabric is none, or none that its hosts can have or use."""

    def of(self, who: str) -> FabricError:
        """Return the same error, with the name of the component that the fabric comes from in front of it."""
        return self if str(self).startswith(who) else FabricError(f"{who}: {self}")


class PluginError(TopoplanError):
    """Code of a plugin returned what it must not, or raised what is no `TopoplanError`, and the cause of this one."""


class TopoplanWarning(UserWarning):
    """Something went wrong that does not end the run: an observer of a plugin that raised, for example."""


def shown(value: Any, longest: int = 60) -> str:
    """Return ``repr(value)`` for a message, with its middle left out where it is long.

    What is left out is not written in between: a list that holds one list many times, which may hold another one
    many times, would fill the memory.

    >>> shown([[1, 2]] * 3)
    '[[1, 2], [1, 2], [1, 2]]'
    >>> shown("x" * 1000, 20)
    "'xxxxxxx ... xxxxxx'"
    """
    if isinstance(value, str | bytes) and len(value) > 4 * longest:
        ends: Any = value[: 2 * longest], value[-2 * longest :]
        value = ends[0] + ends[1]
    try:
        text = repr(value) if _is_small(value) else _SOME.repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list nested too deeply
        text = f"<{type(value).__name__}>"
    return _cut(text, longest)


def _is_small(value: Any) -> bool:
    """Say whether a value holds at most some hundred values, each as often as it is written, and no long text."""
    waiting, count = [iter((value,))], 0
    while waiting:
        for item in islice(waiting.pop(), _WRITTEN + 1):
            count += 1
            if isinstance(item, str | bytes):
                count += len(item) // 100
            elif isinstance(item, Mapping):
                waiting += [iter(item.keys()), iter(item.values())]
            elif isinstance(item, list | tuple | set | frozenset):
                waiting.append(iter(item))
            if count > _WRITTEN:
                return False
    return True


def exception_line(error: BaseException) -> str:
    """Return one line for an exception of somebody else's code."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class printing_aside:  # noqa: N801  a context, as those of contextlib, which takes five times as long
    """Send what is printed meanwhile to standard error: standard output is for the results of commands."""

    def __enter__(self) -> None:
        self._stdout, sys.stdout = sys.stdout, sys.stderr

    def __exit__(self, *error: object) -> None:
        sys.stdout = self._stdout


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Name ``what`` (``searcher 'x' (plugin 'y'): ask``) in the place of what its code raises meanwhile.

    What the code prints goes to standard error.
    """
    with printing_aside():
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
    names, key = sorted(choices), name.lower()
    lower = {each.lower(): each for each in names}
    longer = [each for low, each in lower.items() if low.startswith(f"{key}-")]
    from difflib import get_close_matches  # errors alone need it

    # What is much longer than every name resembles none; to compare it would take long.
    close = get_close_matches(key, lower, n=1, cutoff=0.6) if len(name) <= 200 else []
    if not longer and (close := close or [low for low in lower if low.partition("-")[1:] == ("-", key)]):
        return f"; did you mean {shown(lower[close[0]])}?"
    names = longer or names
    listed = [_cut(name, 60) for name in names[:_LISTED]]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f" (have: {', '.join(listed) or 'none'}{more})"


def printable(text: str) -> str:
    r"""Write what a terminal does not show, or would obey, in letters, on one line; a file may name things anything.

    >>> print(printable("red \x1b[31m and\nbackwards \u202e"))
    red \x1b[31m and backwards \u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\n", " "))


def _cut(text: str, longest: int) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= longest:
        return text
    gap = " ... "
    half = (longest - len(gap)) // 2
    return f"{text[: longest - len(gap) - half]}{gap}{text[len(text) - half :]}"

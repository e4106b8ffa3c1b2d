"""Parameters of which some run on every save, and all with the slow tests.

A test with many cases of one kind keeps those here that find most of what all of them find; the others have the mark
``slow``, and run every night.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def at_night(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases as parameters of a test: those of ``kept`` as they are, all others marked as slow.

    A tuple has the values of several arguments.  Raises ValueError if a case to be kept is none of the cases, so that
    a renamed one is not lost.

    >>> [getattr(case, "marks", ()) for case in at_night([1, 2], 1)]
    [(), (MarkDecorator(mark=Mark(name='slow', args=(), kwargs={})),)]
    """
    every = list(cases)
    if unknown := [case for case in kept if case not in every]:
        raise ValueError(f"no such cases: {unknown}")
    return [case if case in kept else _slow(case) for case in every]


def _slow(case: Any) -> Any:
    """Return a case, of one argument or of a tuple of them, as slow parameters, with the marks that it has."""
    if hasattr(case, "marks"):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

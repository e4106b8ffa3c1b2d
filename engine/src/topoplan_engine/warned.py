"""Warnings of a part of a run, which say of which part they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from topoplan.errors import TopoplanWarning

__all__ = ["warn", "warnings_named"]


@contextmanager
def warnings_named(name: str) -> Iterator[None]:
    """Put ``name`` and a colon before what the block warns of, where it is shown.

    Filters stay as they are: what was shown before is not shown again, and where warnings are errors they have no name.

    >>> with warnings.catch_warnings(record=True) as shown:
    ...     warnings.simplefilter("always")
    ...     with warnings_named("free plan"):
    ...         warnings.warn("time-limit: too short", TopoplanWarning)
    >>> print(shown[0].message)
    free plan: time-limit: too short
    """
    printer = warnings.showwarning

    def show_named(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> None:
        named_message = category(f"{name}: {message}") if issubclass(category, TopoplanWarning) else message
        printer(named_message, category, *place, **line)

    warnings.showwarning = show_named
    try:
        yield
    finally:
        warnings.showwarning = printer


def warn(text: str) -> None:
    """Warn of something that does not end the run.

    >>> with warnings.catch_warnings(record=True) as shown:
    ...     warnings.simplefilter("always")
    ...     warn("free plan: too large to be priced")
    >>> print(shown[0].message)
    free plan: too large to be priced
    """
    warnings.warn(TopoplanWarning(text), stacklevel=3)

"""Clocks that stand still while kernels are compiled: for rates, for times of planning, and for shares of work.

Kernels are compiled once on a machine; a time that holds for every other run leaves that out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

__all__ = ["clock", "cpu_clock", "routing", "seconds_of_compilation", "seconds_of_routing"]


class _Watch(event.Listener):  # type: ignore[misc]
    """Adds up how long this process has compiled; one kernel's compilation may hold those of others."""

    def __init__(self) -> None:
        self.seconds, self.cpu_seconds, self._depth = 0.0, 0.0, 0
        self._started, self._cpu_started = 0.0, 0.0

    def on_start(self, event: object) -> None:
        if self._depth == 0:
            self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._depth += 1

    def on_end(self, event: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._started
            self.cpu_seconds += time.process_time() - self._cpu_started


_watch = _Watch()
event.register("numba:compile", _watch)


def seconds_of_compilation() -> float:
    """Return the seconds for which this process has compiled kernels."""
    return _watch.seconds


def clock() -> float:
    """Return a time in seconds that stands still while kernels are compiled."""
    return time.monotonic() - _watch.seconds


def cpu_clock() -> float:
    """Return CPU seconds of this process, those of compilation left out: they do not depend on what else runs."""
    return time.process_time() - _watch.cpu_seconds


_routing = [0.0]


@contextmanager
def routing() -> Iterator[None]:
    """Count the seconds of a block as those of a search for paths."""
    began = clock()
    try:
        yield
    finally:
        _routing[0] += clock() - began


def seconds_of_routing() -> float:
    """Return the seconds for which this process has looked for paths.

    They are known from then on: an iteration that is simulated once more takes none of this time.

    >>> before = seconds_of_routing()
    >>> with routing():
    ...     pass
    >>> 0.0 <= seconds_of_routing() - before < 1.0
    True
    """
    return _routing[0]

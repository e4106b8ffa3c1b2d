"""What ends a search before it is done: Ctrl-C, a clock, and iterations of more tasks than there is time for.

A KeyboardInterrupt that arrives while compiled code returns is turned into a SystemError by the
interpreter, and one that arrives between pricing and telling would lose a result.  So a loop that must keep
what it has asks `Stop` once per step.

Within such a step the driver lets `topoplan.search.stopping.stop_if_wanted` leave what plans or prices as soon as the
search must end (`obeyed`); kernels ask the same (`topoplan_engine.kernels.jit.interrupted`).  An iteration of more
tasks than there is time for is not even lowered (`check_size`).
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from topoplan.errors import TopoplanError
from topoplan.search.stopping import must_end, stop_if_wanted

__all__ = [
    "OversizeError",
    "Stop",
    "TooLargeError",
    "check_size",
    "interruptible",
    "obeyed",
    "raise_if_interrupted",
    "terminable",
]


class Stop:
    """Whether the user has asked to stop."""

    wanted = False


class TooLargeError(Exception):
    """Leaves the pricing of one candidate, because its iteration has too many tasks for the time that there is."""


class OversizeError(TooLargeError, TopoplanError):
    """An iteration is too large to be simulated, however much time there is; a search leaves the candidate out."""


def _no_limit() -> float:
    return math.inf


#: Says how many tasks an iteration may have that is priced in this context.
_most_tasks: ContextVar[Callable[[], float]] = ContextVar("topoplan_most_tasks", default=_no_limit)


@contextmanager
def obeyed(
    stop: Stop, remaining: Callable[[], float] = _no_limit, most_tasks: Callable[[], float] = _no_limit
) -> Iterator[None]:
    """Let `topoplan.search.stopping.stop_if_wanted` raise `topoplan.search.stopping.Stopped` in this block.

    Args:
        stop: once it is wanted.
        remaining: once this says that no seconds are left.
        most_tasks: of an iteration, for `check_size`.
    """
    ends, tasks = must_end.set(lambda: stop.wanted or remaining() <= 0.0), _most_tasks.set(most_tasks)
    try:
        yield
    finally:
        must_end.reset(ends)
        _most_tasks.reset(tasks)


def raise_if_interrupted(error: BaseException) -> None:
    """Raise the `KeyboardInterrupt` that compiled code turned into an error, if it is one.

    >>> raise_if_interrupted(ValueError("of the code itself"))
    """
    cause: BaseException | None = error if isinstance(error, SystemError) else None
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        cause = cause.__cause__ or cause.__context__


def check_size(tasks: int) -> None:
    """Leave the pricing of an iteration of so many tasks if there is no time for it.

    >>> with obeyed(Stop(), most_tasks=lambda: 1e6):
    ...     check_size(1000)

    Raises:
        TooLargeError: it has too many tasks.
        Stopped: as `topoplan.search.stopping.stop_if_wanted`.
    """
    stop_if_wanted()
    if tasks > _most_tasks.get()():
        raise TooLargeError


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Let the first Ctrl-C set ``wanted``; a second one raises `KeyboardInterrupt` as ever.

    Signals belong to the main thread: elsewhere nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.wanted:
            raise KeyboardInterrupt
        stop.wanted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminable() -> Iterator[None]:
    """Let an end that the system or ``timeout`` asks for (SIGTERM) raise `KeyboardInterrupt`, as a second Ctrl-C does.

    So what this block has made is tidied up, which the system's own way to end a process does not.  Signals belong to
    the main thread: elsewhere nothing changes.

    >>> try:
    ...     with terminable():
    ...         signal.raise_signal(signal.SIGTERM)
    ... except KeyboardInterrupt:
    ...     print("tidied up")
    tidied up
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""How a search is left in the middle: planners and simulators ask whether they must end, and know no clock.

What plans or prices for seconds calls `stop_if_wanted` between its steps.  The driver lets that raise `Stopped`
(`obeyed`) as soon as the search must end, because of a clock or of the user, and keeps the best so far.  An iteration
is simulated in one piece: one of more tasks than there is time for is left before (`check_size`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Stop", "Stopped", "TooLargeError", "check_size", "obeyed", "stop_if_wanted"]


class Stop:
    """Whether the user has asked to stop."""

    wanted = False


class Stopped(BaseException):
    """Leaves what plans or prices, because the search must end.  No `Exception`: whoever handles those lets it pass."""


class TooLargeError(Exception):
    """Leaves the pricing of one candidate, because its iteration has too many tasks for the time that there is."""


class _Limit:
    """What ends the search that runs in this context: the user, or a clock."""

    def __init__(self, stop: Stop, remaining: Callable[[], float], most_tasks: Callable[[], float]) -> None:
        self.stop, self.remaining, self.most_tasks = stop, remaining, most_tasks


_limit: ContextVar[_Limit | None] = ContextVar("topoplan_search_limit", default=None)


def _no_limit() -> float:
    return math.inf


@contextmanager
def obeyed(
    stop: Stop, remaining: Callable[[], float] = _no_limit, most_tasks: Callable[[], float] = _no_limit
) -> Iterator[None]:
    """Let `stop_if_wanted` raise `Stopped` in this block.

    Args:
        stop: once it is wanted.
        remaining: once this says that no seconds are left.
        most_tasks: of an iteration, for `check_size`: it is simulated in one piece.
    """
    token = _limit.set(_Limit(stop, remaining, most_tasks))
    try:
        yield
    finally:
        _limit.reset(token)


def stop_if_wanted() -> None:
    """Leave what plans or prices if the search that runs must end; nothing happens outside of a search.

    It takes about a microsecond: to be called in loops whose rounds take longer, at least every second.

    Raises:
        Stopped: the user asked to stop, or the time is up.
    """
    limit = _limit.get()
    if limit is not None and (limit.stop.wanted or limit.remaining() <= 0.0):
        raise Stopped


def check_size(tasks: int) -> None:
    """Leave the pricing of an iteration of so many tasks if there is no time for it.

    >>> with obeyed(Stop(), most_tasks=lambda: 1e6):
    ...     check_size(1000)

    Raises:
        TooLargeError: it has too many tasks.
        Stopped: as `stop_if_wanted`.
    """
    stop_if_wanted()
    limit = _limit.get()
    if limit is not None and tasks > limit.most_tasks():
        raise TooLargeError

"""How a search is left in the middle: planners and simulators ask whether they must end, and know no clock.

What plans or prices for seconds calls `stop_if_wanted` between its steps.  The driver of a search says in `must_end`
whether that raises `Stopped`, because of a clock or of the user, and keeps the best so far.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

__all__ = ["Stopped", "must_end", "stop_if_wanted"]

#: Says whether the search that runs in this context must end; None outside of a search.
must_end: ContextVar[Callable[[], bool] | None] = ContextVar("topoplan_search_must_end", default=None)


class Stopped(BaseException):
    """Leaves what plans or prices, because the search must end.  No `Exception`: whoever handles those lets it pass."""


def stop_if_wanted() -> None:
    """Leave what plans or prices if the search that runs must end; nothing happens outside of a search.

    It takes about a microsecond: to be called in loops whose rounds take longer, at least every second.

    Raises:
        Stopped: the user asked to stop, or the time is up.
    """
    ends = must_end.get()
    if ends is not None and ends():
        raise Stopped

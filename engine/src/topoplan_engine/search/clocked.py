"""Places where a clock ends something: asked while a search runs, and answered from its journal when it is repeated.

A search depends on nothing but its options and a clock.  Prices are written down, and so is every place where a clock
ended something: a search or a round of it, a call of a planner that was left in the middle, draws of paths that there
was no time for.  A place is known by its number since the line before it in the journal, so that a search that is
repeated ends there and nowhere else, however fast it gets there.

Data flow: `Clocked` asks a `topoplan_engine.search.journal.Journal` first, then the clock, and tells the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop
from topoplan_engine.search.journal import NoJournal

__all__ = ["Clocked"]

T = TypeVar("T")


def _no_seconds() -> float:
    return 0.0


@attrs.frozen
class Clocked:
    """What a clock may end, in a search that may have run before.

    Attributes:
        journal: of the search.
        stop: whether the user ends it, which is no part of the search.
        elapsed: seconds of the search so far.

    >>> Clocked().says(lambda: True), Clocked().call(lambda: 3)
    (True, 3)
    """

    journal: NoJournal = attrs.field(factory=NoJournal)
    stop: Stop = attrs.field(factory=Stop)
    elapsed: Callable[[], float] = _no_seconds

    def says(self, is_over: Callable[[], bool]) -> bool:
        """Say whether a clock ends something here; ``is_over`` asks it."""
        if self.journal.ending() is not None:
            return True
        if self.journal.replaying or not is_over():
            return False
        self.journal.end("time limit", self.elapsed())
        return True

    def call(self, call: Callable[[], T]) -> T:
        """Call what asks `topoplan.search.stopping.stop_if_wanted`.

        Raises:
            Stopped: it was left, now or when the search ran before.
        """
        if self.journal.ending() is not None:
            raise Stopped
        try:
            return call()
        except Stopped:
            if not self.stop.wanted:
                self.journal.end("time limit", self.elapsed())
            raise

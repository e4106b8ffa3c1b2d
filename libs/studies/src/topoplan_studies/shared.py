"""Runs of a study that several processes share through the folder of finished runs.

Every participant has the same list of runs.  It claims one before it starts it (`topoplan_engine.executors.claims`),
and looks now and then which ones others have finished.  One that joins others begins at another place of the list, so
that they seldom want the same run.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from topoplan_engine.executors.claims import Claims
from topoplan_studies.store import Store

__all__ = ["SharedRuns"]

#: Seconds between two looks at what others have finished and claimed.
_LOOK = 2.0


class SharedRuns:
    """A queue of runs (`topoplan_engine.executors.JobQueue`) that gives out those that this process has claimed.

    Args:
        keys: of the runs that were not finished, by their numbers.
        store: the folder that participants share.
        claims: of this process.
        on_found: called with the number of a run that another participant has finished, and its result.
        wait: stay until all are finished; otherwise end when others do what is left.
    """

    def __init__(
        self,
        keys: Mapping[int, str],
        store: Store,
        claims: Claims,
        on_found: Callable[[int, dict[str, Any]], None],
        *,
        wait: bool,
    ) -> None:
        self._keys, self._store, self._claims, self._on_found, self._wait = keys, store, claims, on_found, wait
        first = zlib.crc32(claims.name.encode()) % len(keys)
        order = list(keys)
        self._left = dict.fromkeys(order[first:] + order[:first]) if claims.others() else dict.fromkeys(order)
        self._free: deque[int] = deque()
        self._look()

    def take(self) -> int | None:
        """Return the number of a run that this process has claimed; None if others do all that is left."""
        if time.monotonic() - self._looked >= _LOOK:
            self._look()
        while self._free:
            number = self._free.popleft()
            if number not in self._left or not self._claims.take(self._keys[number]):
                continue
            del self._left[number]
            result = self._store.get(self._keys[number])
            if result is None:
                return number
            self._claims.release(self._keys[number])  # it was finished just before
            self._on_found(number, result)
        return None

    @property
    def finished(self) -> bool:
        """Whether nothing is left, or nothing that nobody does if this process is not to wait."""
        return not self._left or not (self._wait or self._free)

    def release(self, number: int) -> None:
        """Give up the claim on a run whose result is stored."""
        self._claims.release(self._keys[number])

    def _look(self) -> None:
        """See what others have finished, and which runs nobody has claimed."""
        finished = self._store.names()
        for number in [number for number in self._left if self._keys[number] in finished]:
            result = self._store.get(self._keys[number])
            if result is not None:
                del self._left[number]
                self._on_found(number, result)
        claimed = self._claims.others()
        self._free = deque(number for number in self._left if self._keys[number] not in claimed)
        self._looked = time.monotonic()

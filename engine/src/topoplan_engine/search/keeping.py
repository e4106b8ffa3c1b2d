"""The best plan so far, written into the folder of a run while its search goes on."""

from __future__ import annotations

import time

from topoplan.model.plan import Plan
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan.search.protocol import State
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.run_folder import RunFolder

__all__ = ["Keeper"]

#: Seconds between two plans at least, and how many times longer than writing one the search goes on in between.
_EVERY, _LONGER = 8.0, 20.0


class Keeper:
    """Writes the best state of a search as a plan, at intervals.

    Args:
        folder: of the run.
        host: has the exporter.
        evaluator: simulates the plan.
    """

    def __init__(self, folder: RunFolder, host: Host, evaluator: Evaluator) -> None:
        self._folder, self._exporter, self._evaluator = folder, host.make(Exporter, "json", {}), evaluator
        self._best: tuple[tuple[bool, bool, float], State] | None = None
        self._rank: tuple[bool, bool, float] | None = None
        self._next = time.monotonic() + _EVERY

    def note(self, rank: tuple[bool, bool, float], state: State) -> None:
        """Remember a state if it is the best so far."""
        if self._rank is None or rank < self._rank:
            self._best, self._rank = (rank, state), rank

    def write_now_and_then(self) -> None:
        """Write the best state, if it is a new one and the last was written long ago."""
        began = time.monotonic()
        if self._best is None or began < self._next or self._best[0][2] == float("inf"):
            return
        self.write(self._evaluator.plan(self._best[1], {}))
        self._best = None
        now = time.monotonic()
        self._next = now + max(_EVERY, _LONGER * (now - began))

    def write(self, plan: Plan) -> None:
        """Write a plan in place of the last one."""
        self._folder.keep_best(self._exporter.write(plan))

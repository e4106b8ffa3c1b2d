"""Searchers and simulators under way whose calls are checked; see `topoplan.plugin.guard`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.guard import calling, expect
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Candidate, Search, Trial

__all__ = ["GuardedSearch", "GuardedSimulate"]


class GuardedSimulate(Simulate):
    """A simulator whose full runs are checked; the shortcuts that it has are its own."""

    def __init__(self, simulate: Simulate, who: str) -> None:
        self._simulate, self._who = simulate, who
        for name, default in vars(Simulate).items():
            if not name.startswith("_") and getattr(type(simulate), name) is not default:
                setattr(self, name, getattr(simulate, name))

    def __call__(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> Timeline:
        """Run one iteration."""
        timeline = self._simulate(taskgraph, fabric, cluster)
        expect(timeline, Timeline, f"{self._who}: a run")
        return timeline


class GuardedSearch(Search):
    """A searcher under way whose every call is checked."""

    def __init__(self, search: Search, who: str) -> None:
        self._search, self._who = search, who

    def ask(self) -> list[Candidate]:
        """Propose candidates."""
        with calling(f"{self._who}: ask"):
            candidates = self._search.ask()
        expect(candidates, Sequence, f"{self._who}: ask", "a sequence of Candidate")
        for candidate in candidates:
            expect(candidate, Candidate, f"{self._who}: ask: an element of what it")
        return list(candidates)

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the prices of candidates."""
        with calling(f"{self._who}: tell"):
            self._search.tell(trials)

    def adopt(self, trial: Trial) -> None:
        """Go on from a state."""
        with calling(f"{self._who}: adopt"):
            self._search.adopt(trial)

    @property
    def reached(self) -> Trial | None:
        """Trial that the last `tell` moved it to."""
        return self._search.reached

    @property
    def follows(self) -> bool:
        """Whether it adopts what others reached."""
        return self._search.follows

    @property
    def acceptance(self) -> float | None:
        """Share of its candidates that it accepted."""
        return self._search.acceptance

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return what the searcher reports; None, and a warning, where it cannot: the search is done by then."""
        try:
            with calling(f"{self._who}: report"):
                report = self._search.report(strategy)
            if report is not None:
                expect(report, Mapping, f"{self._who}: report", "a mapping of JSON values")
        except TopoplanError as error:
            warnings.warn(TopoplanWarning(f"{error}; it is left out"), stacklevel=2)
            return None
        return report

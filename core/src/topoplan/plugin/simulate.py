"""What a simulator builds: from task graph, fabric and cluster to a timeline, and what makes a search cheaper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from topoplan.arrays import F64
    from topoplan.model.cluster import Cluster
    from topoplan.model.reconfigurable import AnyFabric
    from topoplan.model.taskgraph import TaskGraph
    from topoplan.model.timeline import Timeline

__all__ = ["Simulate"]


class Simulate(ABC):
    """A simulator, built.  A run is all that it must have; the other methods have defaults that follow from it.

    A method that is replaced must keep to what a full run says.  A `ReconfigurableFabric` is rebuilt during
    the iteration: `topoplan_engine.simulation.phases` runs it stretch by stretch on any simulator, and one that does
    without must refuse what is no `Fabric`.

    Attributes:
        lower_bounds: `makespan` stops at its cutoff, and `link_seconds` bounds what it returns from below.
    """

    lower_bounds: bool = False

    @abstractmethod
    def __call__(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> Timeline:
        """Run one iteration.

        Raises:
            TopoplanError: a cycle, a starved task or an unreachable pair; the message names the tasks.  Or a fabric
                that it cannot simulate.
        """

    def makespan(
        self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = np.inf
    ) -> float:
        """Return the seconds of an iteration; it may be ``inf`` once they are proven to be no less than the cutoff."""
        return self(taskgraph, fabric, cluster).makespan

    def link_seconds(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> F64:
        """(n, E) seconds that the messages of operators 0 .. n-1 surely keep each link busy; no rows: unknown.

        Columns are the links of the fabric, then what else messages share, such as the inside of hosts.
        """
        return np.zeros((0, fabric.links.n_links))

    def draws(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether the time is one draw of many: some message has several equal paths to take."""
        return False

    def with_seed(self, seed: int) -> Simulate:
        """Return the same simulator with other draws of paths."""
        return self

    def makespans(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, seeds: Sequence[int]) -> F64:
        """(n,) seconds under each of n seeds, all equal where nothing is drawn."""
        differ = self.draws(taskgraph, fabric, cluster)
        times = [self.with_seed(seed).makespan(taskgraph, fabric, cluster) for seed in (seeds if differ else seeds[:1])]
        return np.full(len(seeds), times, dtype=np.float64)

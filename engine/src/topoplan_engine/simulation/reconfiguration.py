"""When rebuilding a fabric between phases pays: the delay at which it is as fast as one that stays.

With a barrier at every rebuild, iteration time is at_once + rebuilds * delay (`topoplan_engine.simulation.phases`),
so the delay at which it equals that of a static fabric follows from one simulation of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.simulate import Simulate
from topoplan_engine.simulation.phases import segments

__all__ = ["BreakEven", "break_even", "rebuilds"]


@attrs.frozen(kw_only=True)
class BreakEven:
    """What rebuilding takes and saves, for one task graph.

    Attributes:
        rebuilds: how often the wires change in an iteration, the way back to the first ones included.
        delay: seconds of one rebuild.
        at_once: seconds of the iteration if a rebuild took none.
        static: seconds of the iteration on the best fabric that stays as it is.
    """

    rebuilds: int
    delay: float
    at_once: float
    static: float

    @property
    def break_even_delay(self) -> float:
        """Seconds of a rebuild at which both are equally fast: not positive where rebuilding never pays.

        Without any rebuild the delay does not matter: infinite where that is as fast, else minus infinite.
        """
        if self.rebuilds == 0:
            return float("inf") if self.at_once <= self.static else float("-inf")
        return (self.static - self.at_once) / self.rebuilds


def rebuilds(taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> int:
    """Return how often a fabric is rebuilt in an iteration; a fabric without phases never is."""
    if fabric.phases is None:
        return 0
    return sum(segment.rebuilt for segment in segments(taskgraph, fabric, cluster.device_host))


def break_even(
    simulate: Simulate, taskgraph: TaskGraph, rebuilt: Fabric, static: Sequence[Fabric], cluster: Cluster
) -> BreakEven:
    """Compare a fabric that is rebuilt between phases with the best of ``static`` ones; there must be one at least."""
    assert rebuilt.phases is not None
    at_once = Fabric.from_phases(attrs.evolve(rebuilt.phases, delay=0.0))
    return BreakEven(
        rebuilds=rebuilds(taskgraph, rebuilt, cluster),
        delay=rebuilt.phases.delay,
        at_once=simulate(taskgraph, at_once, cluster).makespan,
        static=min(simulate(taskgraph, fabric, cluster).makespan for fabric in static),
    )

"""When rebuilding a fabric between phases pays: the delay at which it is as fast as one that stays.

With a barrier at every rebuild, iteration time is at_once + rebuilds * delay (`topoplan_engine.simulation.phases`),
so the delay at which it equals that of a static fabric follows from one simulation of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs

from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.reconfigurable import AnyFabric, ReconfigurableFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.components import TopologyContext
from topoplan.plugin.simulate import Simulate

__all__ = ["BreakEven", "HoldsStatic", "break_even", "rebuilds"]


@runtime_checkable
class HoldsStatic(Protocol):
    """A topology that says what else the hardware can hold than the phases of the fabrics that it builds."""

    def static_fabrics(self, context: TopologyContext) -> Sequence[Fabric]:
        """Return fabrics that the hardware can hold throughout an iteration.

        Raises:
            TopoplanError: the cluster cannot be wired so.
        """


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


def rebuilds(taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> int:
    """Return how often a fabric is rebuilt in an iteration; one that stays as it is never is."""
    if isinstance(fabric, Fabric):
        return 0
    from topoplan_engine.simulation.phases import segments

    return sum(segment.rebuilt for segment in segments(taskgraph, fabric, cluster.device_host))


def break_even(
    simulate: Simulate,
    taskgraph: TaskGraph,
    rebuilt: ReconfigurableFabric,
    static: Sequence[AnyFabric],
    cluster: Cluster,
) -> BreakEven:
    """Compare a fabric that is rebuilt between phases with the best of ``static`` ones; there must be one at least."""
    at_once = attrs.evolve(rebuilt, delay=0.0)
    return BreakEven(
        rebuilds=rebuilds(taskgraph, rebuilt, cluster),
        delay=rebuilt.delay,
        at_once=simulate(taskgraph, at_once, cluster).makespan,
        static=min(simulate(taskgraph, fabric, cluster).makespan for fabric in static),
    )

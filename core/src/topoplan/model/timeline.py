"""The timeline: when every task of a simulated iteration started and finished, and what bounds it."""

from __future__ import annotations

import attrs

from topoplan.arrays import ARRAY_EQ, F64, OneLine, f64

__all__ = ["Bounds", "Timeline"]


@attrs.frozen(kw_only=True)
class Bounds:
    """Lower bounds on the iteration time, in seconds; no schedule of the task graph beats any of them.

    Attributes:
        device: compute of the busiest device.
        link: bytes over bandwidth of the busiest link.
        chain: the longest chain of dependent tasks, each at the time it takes alone.
        collective: what the members of all-reduces must at least send and receive, over the bandwidth of
            their interfaces, plus one latency (`topoplan_engine.simulation.bounds.collective_bound`).
    """

    device: float
    link: float
    chain: float
    collective: float = 0.0

    @property
    def best(self) -> float:
        """The largest, hence the tightest, of the bounds."""
        return max(self.device, self.link, self.chain, self.collective)


@attrs.frozen(kw_only=True, repr=False)
class Timeline(OneLine):
    """One simulated iteration.

    Attributes:
        start, finish: (T,) seconds, for every task of the task graph.
        makespan: seconds until everything is done: the iteration time.
        device_busy: (D,) seconds of compute on each device.
        link_bytes: (L,) bytes that crossed each link of the fabric.
        link_busy: (L,) seconds that each link needs for these bytes at full speed.
        bounds: lower bounds on the makespan.
        events: how many events the simulator processed.
    """

    start: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    finish: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    makespan: float
    device_busy: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    link_bytes: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    link_busy: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    bounds: Bounds
    events: int

"""What one device does during a simulated iteration: computation, communication, and both at once.

The words and the overlap ratio are those of HiDup's breakdown of iterations (Zhang et al., SoCC 2022, section 6.8 and
table 4): computation time is the time in which the device computes, communication time the time in which it takes part
in a transfer or a collective, each counted once however many run at a time.  The overlap ratio is the time of both at
once over the smaller of the two.  All times come from the starts and ends of tasks, so every simulator has them.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.simulation.deferred import of_first

__all__ = ["TimeBreakdown", "time_breakdown"]


@attrs.frozen(kw_only=True)
class TimeBreakdown:
    """What one device does in an iteration, in seconds; wall + overlapped = computation + communication + idle.

    Attributes:
        device: the device.
        wall: of the iteration.
        computation: in which the device computes.
        communication: in which the device takes part in a transfer or a collective.
        overlapped: in which it does both.
        idle: in which it does neither.
    """

    device: int
    wall: float
    computation: float
    communication: float
    overlapped: float
    idle: float

    @property
    def overlap_ratio(self) -> float:
        """The time of both over the smaller of the two; 0 if the device only computes or only communicates."""
        smaller = min(self.computation, self.communication)
        return min(1.0, self.overlapped / smaller) if smaller > 0 else 0.0


def time_breakdown(tasks: TaskGraph, timeline: Timeline, device: int | None = None) -> TimeBreakdown:
    """Return what a device does in an iteration; the one that computes longest unless given, the first of equal ones.

    A transfer or a collective runs from the end of the last task that it waits for to its own end, as a kernel of a
    communication library does.  Where one device stands for all, all messages of an all-to-all end with its last one.
    """
    if device is None:
        tasks, timeline = of_first(tasks, timeline)
    if device is None:
        device = int(np.argmax(timeline.device_busy)) if len(timeline.device_busy) else 0
    computes = (tasks.device == device) & (tasks.kind <= TaskKind.UPDATE)
    sent = (tasks.kind == TaskKind.TRANSFER) & ((tasks.src == device) | (tasks.dst == device))
    owner = np.repeat(np.arange(tasks.n_groups), np.diff(tasks.group_ptr))
    groups = owner[tasks.group_members == device]
    together = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective != Collective.JOIN)
    communicates = sent | (together & np.isin(tasks.group, groups))
    computation = _covered(timeline, computes)
    communication = _covered(timeline, communicates)
    busy = _covered(timeline, computes | communicates)
    return TimeBreakdown(
        device=device,
        wall=timeline.makespan,
        computation=computation,
        communication=communication,
        overlapped=max(0.0, computation + communication - busy),
        idle=max(0.0, timeline.makespan - busy),
    )


def _covered(timeline: Timeline, chosen: np.ndarray) -> float:
    """Return the seconds that the chosen (T,) tasks cover, counting once where several run."""
    start, finish = timeline.start[chosen], timeline.finish[chosen]
    order = np.argsort(start, kind="stable")
    start, finish = start[order], finish[order]
    latest: F64 = np.maximum.accumulate(finish, out=finish)
    before = np.concatenate([start[:1], latest[:-1]])
    return float(np.maximum(0.0, latest - np.maximum(start, before)).sum())

"""Task graph and timeline -> slices on tracks, and the dependencies between slices.

A device has a process, with tracks for compute, for what it sends, and for collectives.  Slices of one track never
overlap: where two run at a time, a second track of the same sort takes the second.  Times are whole nanoseconds; starts
and ends are rounded by one rule, so that what ended before another began still does.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np

from topoplan import Plan, TaskGraph, TaskKind, TopoplanError

__all__ = ["SORTS", "Slice", "dependencies_of", "slices_of"]

#: Sorts of tracks, in the order in which they stand below a device.
SORTS = ("compute", "send", "collective")


@attrs.frozen
class Slice:
    """A task on a track of a device.

    Attributes:
        task: row of the task graph.
        device: whose track it is.
        sort: one of `SORTS`.
        lane: which of the device's tracks of this sort.
        start, end: nanoseconds.
    """

    task: int
    device: int
    sort: str
    lane: int
    start: int
    end: int


def slices_of(plan: Plan) -> list[Slice]:
    """Return the slices of all tasks, by start; a collective has one on each of its members.

    Raises:
        TopoplanError: the plan has no timeline.
    """
    tasks, timeline = plan.taskgraph, plan.timeline
    if timeline is None:
        raise TopoplanError("perfetto: this plan has no timeline; `topoplan simulate FILE -x perfetto=…` gives it one")
    starts, ends = np.rint(timeline.start * 1e9).astype(int), np.rint(timeline.finish * 1e9).astype(int)
    busy: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)  # (end, lane) of what runs
    free: dict[tuple[int, str], list[int]] = defaultdict(list)
    lanes: dict[tuple[int, str], int] = defaultdict(int)
    slices = []
    for task in np.lexsort((np.arange(tasks.n_tasks), ends, starts)).tolist():
        start_ns, end_ns = int(starts[task]), int(ends[task])
        for device, sort in _tracks(tasks, task):
            track = device, sort
            while busy[track] and busy[track][0][0] <= start_ns:
                heapq.heappush(free[track], heapq.heappop(busy[track])[1])
            if free[track]:
                lane = heapq.heappop(free[track])
            else:
                lane, lanes[track] = lanes[track], lanes[track] + 1
            # A slice without length holds its lane for a nanosecond, so that none begins with it and becomes its child.
            heapq.heappush(busy[track], (max(end_ns, start_ns + 1), lane))
            slices.append(Slice(task, device, sort, lane, start_ns, end_ns))
    return slices


def _tracks(tasks: TaskGraph, task: int) -> list[tuple[int, str]]:
    """Return the devices on which a task is shown, and the sort of their tracks."""
    if tasks.kind[task] == TaskKind.TRANSFER:
        return [(int(tasks.src[task]), "send")]
    if tasks.kind[task] == TaskKind.COLLECTIVE:
        return [(device, "collective") for device in tasks.members(task).tolist()]
    return [(int(tasks.device[task]), "compute")]


def dependencies_of(tasks: TaskGraph, slices: list[Slice]) -> Iterator[tuple[Slice, Slice]]:
    """Go through the dependencies of tasks: a slice that ends, and one that waits for it.

    Of a collective it is the slice on the other task's device, or on its first member's where that is none of them.
    """
    shown: dict[int, dict[int, Slice]] = defaultdict(dict)
    for each in slices:
        shown[each.task][each.device] = each
    for before, after in zip(*(ends.tolist() for ends in tasks.edges()), strict=True):
        sources, targets = shown[before], shown[after]
        target = next((targets[device] for device in sources if device in targets), next(iter(targets.values())))
        yield sources.get(target.device, next(iter(sources.values()))), target

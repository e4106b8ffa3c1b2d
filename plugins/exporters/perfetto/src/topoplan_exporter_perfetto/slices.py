"""Task graph and timeline -> slices on tracks, and the dependencies between slices: columns, a row for each slice.

A device has tracks for compute, for what it sends, and for collectives.  Slices of one track never overlap: where two
run at a time, a second lane of the same track takes the second.  Times are whole nanoseconds; starts and ends are
rounded by one rule, so that what ended before another began still does.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from topoplan import Collective, Plan, StagedStrategy, TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import F64, I64

__all__ = [
    "SORTS",
    "Slices",
    "causes_first",
    "dependencies",
    "lanes_of",
    "nanoseconds",
    "slices_of",
    "stages_of",
    "task_names",
]

#: Sorts of tracks, in the order in which they stand below a device.
SORTS = ("compute", "send", "collective")


class Slices(NamedTuple):
    """(n,) slices, by device, sort, lane and time.

    Attributes:
        task: row of the task graph.
        device: whose track it is.
        sort: index into `SORTS`.
        lane: which of the device's tracks of this sort.
        start, end: nanoseconds.
    """

    task: I64
    device: I64
    sort: I64
    lane: I64
    start: I64
    end: I64


def nanoseconds(seconds: F64) -> I64:
    """Round to whole nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def slices_of(plan: Plan) -> Slices:
    """Return the slices of all tasks; a collective has one on each of its members.

    Raises:
        TopoplanError: the plan has no timeline.
    """
    tasks, timeline = plan.taskgraph, plan.timeline
    if timeline is None:
        raise TopoplanError("perfetto: this plan has no timeline; `topoplan simulate FILE -x perfetto=…` gives it one")
    single = np.flatnonzero(tasks.kind != TaskKind.COLLECTIVE)
    sends = tasks.kind[single] == TaskKind.TRANSFER
    several = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
    first = tasks.group_ptr[tasks.group[several]].astype(np.int64)
    sizes = tasks.group_ptr[tasks.group[several] + 1] - first
    member = np.arange(int(sizes.sum())) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
    task = np.concatenate([single, np.repeat(several, sizes)]).astype(np.int64)
    device = np.concatenate([np.where(sends, tasks.src[single], tasks.device[single]), tasks.group_members[member]])
    sort = np.concatenate([sends.astype(np.int64), np.full(len(member), 2)])
    start, end = nanoseconds(timeline.start)[task], nanoseconds(timeline.finish)[task]
    order = np.lexsort((task, end, start, sort, device))
    task, device, sort, start, end = (column[order] for column in (task, device.astype(np.int64), sort, start, end))
    lane = lanes_of(device * len(SORTS) + sort, start, end)
    order = np.lexsort((end, start, lane, sort, device))
    return Slices(*(column[order] for column in (task, device, sort, lane, start, end)))


def lanes_of(track: I64, start: I64, end: I64) -> I64:
    """(n,) the first lane that is free when each slice begins; slices by track and start.

    Tracks on which no slice begins before the one before it has ended are not looked at twice.  A slice without length
    holds its lane for a nanosecond, so that none begins with it and becomes its child.
    """
    lane = np.zeros(len(track), dtype=np.int64)
    free_from = np.maximum(end, start + 1)
    bounds = np.flatnonzero(np.diff(track, prepend=-1, append=-1))
    overlaps = np.flatnonzero((track[1:] == track[:-1]) & (start[1:] < free_from[:-1]))
    for row in np.unique(np.searchsorted(bounds, overlaps, "right") - 1).tolist():
        first, last = int(bounds[row]), int(bounds[row + 1])
        lane[first:last] = _lanes(start[first:last].tolist(), free_from[first:last].tolist())
    return lane


def _lanes(starts: list[int], ends: list[int]) -> list[int]:
    """Return the lanes of the slices of one track."""
    busy: list[tuple[int, int]] = []  # (end, lane) of what runs
    free: list[int] = []
    lanes, count = [], 0
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def dependencies(tasks: TaskGraph, slices: Slices) -> tuple[I64, I64]:
    """(e,) for each dependency, the slice that ends and the one that waits for it.

    Of a collective it is the slice on the other task's device, or on its first one where that is none of its members.
    """
    tails, heads = tasks.edges()
    order = np.lexsort((slices.device, slices.task))
    first = order[np.searchsorted(slices.task[order], np.arange(tasks.n_tasks))]
    key = slices.task[order] * tasks.n_devices + slices.device[order]

    def beside(task: I64, neighbour: I64) -> I64:
        wanted_key = task * tasks.n_devices + slices.device[neighbour]
        place = np.minimum(np.searchsorted(key, wanted_key), len(key) - 1)
        return np.where(key[place] == wanted_key, order[place], first[task])

    targets = beside(heads, first[tails])
    return beside(tails, targets), targets


def causes_first(slices: Slices, sources: I64, targets: I64) -> I64:
    """(n,) rows of slices by start; of those that start together, a slice before all that wait for it.

    Args:
        slices: all of them.
        sources, targets: (e,) dependencies between rows, which have no cycle and no slice that starts before its cause.
    """
    together = slices.start[sources] == slices.start[targets]
    tails, heads = sources[together], targets[together]
    depth = np.zeros(len(slices.start), dtype=np.int64)
    # Invariant: depth is at most the longest path of such dependencies that leads to a slice.
    while np.any(late := depth[heads] <= depth[tails]):
        np.maximum.at(depth, heads[late], depth[tails[late]] + 1)
    return np.lexsort((depth, slices.start)).astype(np.int64)


def task_names(tasks: TaskGraph) -> tuple[list[str], I64]:
    """Return names, and (T,) which of them each task has.

    They say what a task does, for example ``conv1 forward``, ``linear1 to device 3`` or ``linear1 all-reduce``.
    """
    unnamed = (tasks.op < 0) | (tasks.op >= len(tasks.op_names))
    op = np.where(unnamed, len(tasks.op_names) + np.arange(tasks.n_tasks), tasks.op).astype(np.int64)
    what = np.where(tasks.kind == TaskKind.COLLECTIVE, tasks.collective, tasks.dst).astype(np.int64)
    keys, which = np.unique(np.stack([op, tasks.kind.astype(np.int64), what]), axis=1, return_inverse=True)
    return [_name(tasks, *key) for key in keys.T.tolist()], which.ravel().astype(np.int64)


def stages_of(plan: Plan) -> I64 | None:
    """(T,) the stage of a pipeline that each task belongs to, -1 for none; None where there are no stages.

    An interleaved pipeline has several on each device, its chunks.
    """
    tasks, strategy = plan.taskgraph, plan.strategy
    if not isinstance(strategy, StagedStrategy) or len(strategy.stages) < 2 or strategy.copy_of.any():
        return None
    if strategy.program is not None:  # its parts are no stages of a pipeline
        return None
    operators = np.append(strategy.stage_of, -1).astype(np.int64)
    return operators[np.where((tasks.op >= 0) & (tasks.op < len(strategy.placements)), tasks.op, -1)]


def _name(tasks: TaskGraph, op: int, kind: int, what: int) -> str:
    count = len(tasks.op_names)
    operator = tasks.op_names[op] if op < count else f"task {op - count}"
    if kind == TaskKind.TRANSFER:
        return f"{operator} to device {what}"
    if kind == TaskKind.COLLECTIVE:
        return f"{operator} {Collective(what).label}"
    return f"{operator} {TaskKind(kind).name.lower()}"

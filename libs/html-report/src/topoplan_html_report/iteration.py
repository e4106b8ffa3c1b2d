"""The iteration as slices in rows: what devices compute and send, and what groups reduce together.

    task graph + timeline ─► devices that do the same at the same times are one row ─► lanes ─► columns of slices
                                          at most so many rows, and slices: `topoplan_html_report.reduction`

Slices of one lane do not overlap, but for the last lane of a row that has as many as a reader can follow.  Times are
compared in nanoseconds and written in seconds.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.reporting.printing import spelled_time
from topoplan_html_report.alike import classes_of, named
from topoplan_html_report.columns import packed
from topoplan_html_report.limits import Limits
from topoplan_html_report.reduction import Slices, reduced

__all__ = ["iteration"]

#: Most kinds of devices that are kept apart where they differ in times alone, and then the share of an iteration that
#: they may differ by.
_DEVICES, _NEARLY = 16, 0.01
#: Kinds of devices with the same tasks that a device is compared with.
_FIRSTS = 64
#: Most lanes of what a device sends, and of collectives.
_SENT, _TOGETHER = 4, 24


@attrs.frozen
class _Row:
    """A row: its label and sort, the devices it stands for, and the (n,) tasks in their (n,) lanes, by start."""

    label: str
    sort: str
    devices: list[int]
    tasks: I64
    lanes: I64
    counts: I64


def iteration(plan: Plan, critical: I64, limits: Limits, number: I64) -> dict[str, Any]:
    """Return rows, the columns of their slices, and what is left out.

    Args:
        plan: with a timeline.
        critical: (K,) tasks of the critical path.
        limits: of slices and of kinds of devices.
        number: (operators,) the number by which the page knows each operator, -1 where it does not.
    """
    tasks, timeline = plan.taskgraph, plan.timeline
    assert timeline is not None
    on_path = np.zeros(tasks.n_tasks, dtype=bool)
    on_path[critical] = True
    rows, marked, left_out = _device_rows(tasks, timeline, on_path, limits.kinds)
    together, marked_together = _collective_rows(tasks, timeline, on_path)
    rows, shown = rows + together, np.concatenate([*marked, *marked_together, np.zeros(0, dtype=bool)])
    task = np.concatenate([row.tasks for row in rows] or [np.zeros(0, dtype=np.int64)])
    lane = np.concatenate([row.lanes for row in rows] or [np.zeros(0, dtype=np.int64)])
    count = np.concatenate([row.counts for row in rows] or [np.zeros(0, dtype=np.int64)])
    row = np.repeat(np.arange(len(rows)), [len(each.tasks) for each in rows])
    slices = reduced(
        row, lane, timeline.start[task], timeline.finish[task], tasks.kind[task], tasks.size[task], shown, limits.slices
    )
    task = task[slices.task]
    per_row = np.bincount(row[slices.task], minlength=len(rows)).tolist()
    return {
        "seconds": timeline.makespan,
        "said": [*left_out, *_said_of(slices, len(row))],
        "rows": [
            {
                "label": row.label,
                "sort": row.sort,
                "devices": row.devices[:1],
                "lanes": int(row.lanes.max(initial=0)) + 1,
                "slices": slice_count,
            }
            for row, slice_count in zip(rows, per_row, strict=True)
        ],
        "start": packed(slices.start, "float64"),
        "finish": packed(slices.finish, "float64"),
        "lane": packed(lane[slices.task], "uint8"),
        "kind": packed(tasks.kind[task], "uint8"),
        "collective": packed(np.maximum(tasks.collective[task], 0), "uint8"),
        "operator": packed(np.append(number, -1)[tasks.op[task]], "int32"),
        "critical": packed(slices.marked, "uint8"),
        "bytes": packed(slices.summed, "float32"),
        "from": packed(tasks.src[task], "int32"),
        "to": packed(tasks.dst[task], "int32"),
        "members": packed(_member_counts(tasks)[task], "int32"),
        "count": packed(count[slices.task], "int32"),
        "tasks": packed(slices.tasks, "int32"),
        "microBatch": None if tasks.micro_batch is None else packed(tasks.micro_batch[task], "int32"),
    }


def _said_of(slices: Slices, count: int) -> list[str]:
    """Return the sentence that says which of so many slices are drawn as runs, if any."""
    if not slices.stretch:
        return []
    runs = int((slices.tasks > 1).sum())
    single_count = len(slices.tasks) - runs
    return [
        f"Of {count:,} slices {single_count:,} are drawn one by one, among them the longest; the other "
        f"{count - single_count:,} are drawn as {runs:,} runs, each of one kind and in one stretch of "
        f"{spelled_time(slices.stretch)}, as long as its tasks together."
    ]


def _member_counts(tasks: TaskGraph) -> I64:
    """(T,) members of each collective; 0 for other tasks."""
    sizes = np.append(np.diff(tasks.group_ptr), 0).astype(np.int64)
    return np.asarray(np.where(tasks.kind == TaskKind.COLLECTIVE, sizes[tasks.group], 0))


def _device_rows(
    tasks: TaskGraph, timeline: Timeline, on_path: Any, most: int
) -> tuple[list[_Row], list[Any], list[str]]:
    """Return the rows of devices, for each its (n,) flags of the critical path: of any device of the row; what is not.

    There are rows of ``most`` kinds of devices.
    """
    computes = _by_device(tasks.device, np.flatnonzero(tasks.device >= 0), timeline, tasks.n_devices)
    sends = _by_device(tasks.src, np.flatnonzero(tasks.kind == TaskKind.TRANSFER), timeline, tasks.n_devices)
    columns = (_nanoseconds(timeline.start), _nanoseconds(timeline.finish), tasks.op, tasks.kind)
    keys = [
        tuple(column[part[device]].tobytes() for part in (computes, sends) for column in columns)
        for device in range(tasks.n_devices)
    ]
    classes, how = classes_of(keys), "equal"
    if len(classes) > _DEVICES:
        classes, how = _nearly_alike(tasks, timeline, computes), "nearly equal"
    classes = [devices for devices in classes if len(computes[devices[0]]) or any(len(sends[d]) for d in devices)]
    classes, left_out = _worth_a_row(classes, computes, timeline, on_path, most)
    rows, flags = [], []
    for devices in classes:
        # The one that shows most of the critical path stands for all.
        first = max(devices, key=lambda device: sum(int(on_path[part[device]].sum()) for part in (computes, sends)))
        label = named("device", devices, how)
        for sort, part, lanes in (("compute", computes, 1), ("send", sends, _SENT)):
            chosen = part[first]
            if sort == "send" and not len(chosen):
                continue
            rows.append(
                _Row(
                    label if sort == "compute" else "sends",
                    sort,
                    devices,
                    chosen,
                    _lanes(timeline, chosen, lanes),
                    np.full(len(chosen), len(devices)),
                )
            )
            same = [part[device] for device in devices if len(part[device]) == len(chosen)]
            flags.append(np.any(on_path[np.stack(same)], axis=0) if sort == "compute" else on_path[chosen])
    return rows, flags, left_out


def _worth_a_row(
    classes: list[list[int]], computes: list[I64], timeline: Timeline, on_path: Any, most: int
) -> tuple[list[list[int]], list[str]]:
    """Return ``most`` classes of devices in their order, and what is said of the others.

    Those that compute for the critical path come first, then those that compute longest.
    """
    if len(classes) <= most:
        return classes, []
    key = [
        (-bool(any(on_path[computes[device]].any() for device in members)), -float(timeline.device_busy[members[0]]))
        for members in classes
    ]
    chosen = sorted(sorted(range(len(classes)), key=key.__getitem__)[:most])
    shown = sum(len(classes[number]) for number in chosen)
    devices = sum(map(len, classes))
    return [classes[number] for number in chosen], [
        f"Of {devices:,} devices that have tasks, in {len(classes):,} kinds, {shown:,} are drawn, in {most:,} kinds: "
        "those of the critical path first, then those that compute longest."
    ]


def _nearly_alike(tasks: TaskGraph, timeline: Timeline, computes: list[I64]) -> list[list[int]]:
    """Return classes of devices that compute the same, none of it earlier or later than the first by `_NEARLY`.

    A device is compared with the first ones of at most `_FIRSTS` classes; more are not drawn.
    """
    classes: dict[bytes, list[tuple[Any, list[int]]]] = {}
    for device, chosen in enumerate(computes):
        ordered = chosen[np.lexsort((chosen, timeline.start[chosen], tasks.kind[chosen], tasks.op[chosen]))]
        times = np.stack([timeline.start[ordered], timeline.finish[ordered]])
        same = classes.setdefault(np.stack([tasks.op[ordered], tasks.kind[ordered]]).tobytes(), [])
        for first, members in same[:_FIRSTS]:
            if np.abs(times - first).max(initial=0.0) <= _NEARLY * timeline.makespan:
                members.append(device)
                break
        else:
            same.append((times, [device]))
    classes_found = [members for same in classes.values() for _, members in same]
    return sorted(classes_found, key=lambda members: members[0])


def _by_device(owner: Any, chosen: I64, timeline: Timeline, n_devices: int) -> list[I64]:
    """Return the chosen tasks of each device, by start."""
    order = chosen[np.lexsort((chosen, timeline.finish[chosen], timeline.start[chosen], owner[chosen]))]
    ends = np.searchsorted(owner[order], np.arange(n_devices + 1))
    return [order[a:b] for a, b in itertools.pairwise(ends)]


def _collective_rows(tasks: TaskGraph, timeline: Timeline, on_path: Any) -> tuple[list[_Row], list[Any]]:
    """Return one row of all collectives: those that nothing but their members tells apart are one slice."""
    chosen = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective != Collective.JOIN))
    if not len(chosen):
        return [], []
    columns = (
        _nanoseconds(timeline.start)[chosen],
        _nanoseconds(timeline.finish)[chosen],
        tasks.op[chosen],
        tasks.collective[chosen],
        tasks.size[chosen],
        _member_counts(tasks)[chosen],
    )
    order = np.lexsort(columns[::-1])  # ascending by start, then finish
    begins = np.zeros(len(order), dtype=bool)
    begins[0] = True
    for column in columns:
        begins[1:] |= np.diff(column[order]) != 0
    first = np.flatnonzero(begins)
    marked = np.logical_or.reduceat(on_path[chosen[order]], first)
    counts = np.diff(np.append(first, len(order)))
    picked = chosen[order[first]]
    row = _Row("collectives", "collective", [], picked, _lanes(timeline, picked, _TOGETHER), counts)
    return [row], [marked]


def _lanes(timeline: Timeline, chosen: I64, most: int) -> I64:
    """Return a (n,) lane for each of the tasks, which are sorted by start: the lowest that is free."""
    lanes = np.zeros(len(chosen), dtype=np.int64)
    if most == 1:
        return lanes
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    used = 0
    starts, finishes = timeline.start[chosen].tolist(), timeline.finish[chosen].tolist()
    for number, (start, finish) in enumerate(zip(starts, finishes, strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (finish, lane))
        lanes[number] = min(lane, most - 1)
    return lanes


def _nanoseconds(seconds: Any) -> I64:
    return np.asarray(np.rint(seconds * 1e9), dtype=np.int64)

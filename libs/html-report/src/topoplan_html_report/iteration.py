"""The iteration as slices in rows: what devices compute and send, and what groups reduce together.

    task graph + timeline ─► devices that do the same at the same times are one row ─► lanes ─► columns of slices

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
from topoplan_html_report.alike import classes_of, named
from topoplan_html_report.columns import packed

__all__ = ["iteration"]

#: Most kinds of devices that are kept apart where they differ in times alone, and then the share of an iteration that
#: they may differ by.
_DEVICES, _NEARLY = 16, 0.01
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


def iteration(plan: Plan, critical: I64) -> dict[str, Any]:
    """Return rows and the columns of their slices.

    Args:
        plan: with a timeline.
        critical: (K,) tasks of the critical path.
    """
    tasks, timeline = plan.taskgraph, plan.timeline
    assert timeline is not None
    on_path = np.zeros(tasks.n_tasks, dtype=bool)
    on_path[critical] = True
    rows, marked = _device_rows(tasks, timeline, on_path)
    together, marked_together = _collective_rows(tasks, timeline, on_path)
    rows, shown = rows + together, np.concatenate([*marked, *marked_together, np.zeros(0, dtype=bool)])
    task = np.concatenate([row.tasks for row in rows] or [np.zeros(0, dtype=np.int64)])
    lane = np.concatenate([row.lanes for row in rows] or [np.zeros(0, dtype=np.int64)])
    count = np.concatenate([row.counts for row in rows] or [np.zeros(0, dtype=np.int64)])
    return {
        "seconds": timeline.makespan,
        "rows": [
            {
                "label": row.label,
                "sort": row.sort,
                "devices": row.devices[:1],
                "lanes": int(row.lanes.max(initial=0)) + 1,
                "slices": len(row.tasks),
            }
            for row in rows
        ],
        "start": packed(timeline.start[task], "float64"),
        "finish": packed(timeline.finish[task], "float64"),
        "lane": packed(lane, "uint8"),
        "kind": packed(tasks.kind[task], "uint8"),
        "collective": packed(np.maximum(tasks.collective[task], 0), "uint8"),
        "operator": packed(tasks.op[task], "int32"),
        "critical": packed(shown, "uint8"),
        "bytes": packed(tasks.size[task], "float64"),
        "from": packed(tasks.src[task], "int32"),
        "to": packed(tasks.dst[task], "int32"),
        "members": packed(_member_counts(tasks)[task], "int32"),
        "count": packed(count, "int32"),
        "microBatch": None if tasks.micro_batch is None else packed(tasks.micro_batch[task], "int32"),
    }


def _member_counts(tasks: TaskGraph) -> I64:
    """(T,) members of each collective; 0 for other tasks."""
    sizes = np.append(np.diff(tasks.group_ptr), 0).astype(np.int64)
    return np.asarray(np.where(tasks.kind == TaskKind.COLLECTIVE, sizes[tasks.group], 0))


def _device_rows(tasks: TaskGraph, timeline: Timeline, on_path: Any) -> tuple[list[_Row], list[Any]]:
    """Return the rows of devices, and for each its (n,) flags of the critical path: of any device of the row."""
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
    rows, flags = [], []
    for devices in classes:
        if not any(len(part[device]) for part in (computes, sends) for device in devices):
            continue
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
    return rows, flags


def _nearly_alike(tasks: TaskGraph, timeline: Timeline, computes: list[I64]) -> list[list[int]]:
    """Return classes of devices that compute the same, none of it earlier or later than the first by `_NEARLY`."""
    classes: dict[bytes, list[list[int]]] = {}
    for device, chosen in enumerate(computes):
        order = np.lexsort((chosen, timeline.start[chosen], tasks.kind[chosen], tasks.op[chosen]))
        key = np.stack([tasks.op[chosen], tasks.kind[chosen]])[:, order].tobytes()
        times = np.stack([timeline.start[chosen], timeline.finish[chosen]])[:, order]
        for members in classes.setdefault(key, []):
            first = computes[members[0]]
            order_of_first = np.lexsort((first, timeline.start[first], tasks.kind[first], tasks.op[first]))
            apart = np.abs(times - np.stack([timeline.start[first], timeline.finish[first]])[:, order_of_first])
            if apart.max(initial=0.0) <= _NEARLY * timeline.makespan:
                members.append(device)
                break
        else:
            classes[key].append([device])
    return sorted((members for same in classes.values() for members in same), key=lambda members: members[0])


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
    kinds, first, which = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    marked = np.bincount(which.ravel(), on_path[chosen], kinds.shape[1]) > 0
    counts = np.bincount(which.ravel(), minlength=kinds.shape[1])
    picked = chosen[first]  # ascending by start, then finish
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

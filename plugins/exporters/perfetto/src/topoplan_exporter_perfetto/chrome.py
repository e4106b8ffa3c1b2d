"""Slices -> Chrome's trace event format (JSON), which Perfetto and chrome://tracing read.

Every slice is a complete event (``ph`` X).  Times are microseconds; readers multiply them by 1000 and cut off what is
left of the nanosecond, so each number is the least one that gives its nanoseconds back.  A dependency is a flow: it
starts in the last nanosecond of one slice (``s``) and ends where the other begins (``f`` with ``bp`` e, which binds it
to the slice around that time).  HiDup's traces have the same events (readme of its release, experiment VI.G).
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from topoplan import Plan, TaskGraph, TaskKind
from topoplan_exporter_perfetto.slices import SORTS, dependencies, slices_of, task_names

__all__ = ["microseconds", "write"]


class Slice(NamedTuple):
    """A row of `topoplan_exporter_perfetto.slices.Slices`."""

    task: int
    device: int
    sort: str
    lane: int
    start: int
    end: int


def write(plan: Plan) -> bytes:
    """Write the timeline of a plan.

    Raises:
        TopoplanError: the plan has no timeline.
    """
    columns, tasks = slices_of(plan), plan.taskgraph
    names, name = task_names(tasks)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    slices = [Slice(task, device, SORTS[sort], lane, start, end) for task, device, sort, lane, start, end in rows]
    threads = _threads(slices)
    events = [*_names(plan, threads), *(_complete(tasks, each, names[name[each.task]], threads) for each in slices)]
    ends = (column.tolist() for column in dependencies(tasks, columns))
    for number, (source, target) in enumerate(zip(*ends, strict=True)):
        events += _flow(number, slices[source], slices[target], threads)
    lines = ",\n".join(json.dumps(event, separators=(",", ":"), ensure_ascii=False) for event in events)
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'.encode()


def microseconds(nanoseconds: int) -> float:
    """Return the least number of microseconds that is so many nanoseconds when it is multiplied by 1000 and cut off."""
    number = nanoseconds / 1000
    return number if int(number * 1000) == nanoseconds else math.nextafter(number, math.inf)


def _threads(slices: list[Slice]) -> dict[tuple[int, str, int], int]:
    """Number the tracks of each device from 1, by sort and lane."""
    tracks = sorted(
        {(each.device, each.sort, each.lane) for each in slices},
        key=lambda track: (track[0], SORTS.index(track[1]), track[2]),
    )
    first = {device: index for index, (device, _, _) in reversed(list(enumerate(tracks)))}
    return {track: index - first[track[0]] + 1 for index, track in enumerate(tracks)}


def _names(plan: Plan, threads: dict[tuple[int, str, int], int]) -> list[dict[str, Any]]:
    """Name and sort processes and threads.  Process 0 is the idle process of operating systems, so they begin at 1."""
    cluster, events = plan.cluster, []
    for device in dict.fromkeys(device for device, _, _ in threads):
        name = f"device {device} ({cluster.device_preset[device]}, host {cluster.device_host[device]})"
        events.append(_metadata("process_name", device, 0, name=name))
        events.append(_metadata("process_sort_index", device, 0, sort_index=device))
    for (device, sort, lane), thread in threads.items():
        events.append(_metadata("thread_name", device, thread, name=f"{sort} {lane + 1}" if lane else sort))
        events.append(_metadata("thread_sort_index", device, thread, sort_index=thread))
    return events


def _metadata(kind: str, device: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": device + 1, "tid": thread, "args": arguments}


def _complete(tasks: TaskGraph, each: Slice, name: str, threads: dict[tuple[int, str, int], int]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": each.sort,
        "pid": each.device + 1,
        "tid": threads[each.device, each.sort, each.lane],
        "ts": microseconds(each.start),
        "dur": microseconds(each.end - each.start),
        "args": _arguments(tasks, each.task),
    }


def _flow(
    number: int, source: Slice, target: Slice, threads: dict[tuple[int, str, int], int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both ends of a dependency."""
    ends = []
    for phase, each, time in (("s", source, max(source.start, source.end - 1)), ("f", target, target.start)):
        place = {"pid": each.device + 1, "tid": threads[each.device, each.sort, each.lane], "ts": microseconds(time)}
        ends.append({"ph": phase, "name": "waits for", "cat": "dependency", "id": number, **place})
    ends[1]["bp"] = "e"
    return ends[0], ends[1]


def _arguments(tasks: TaskGraph, task: int) -> dict[str, Any]:
    """Say what a reader of one slice may want to know."""
    arguments: dict[str, Any] = {"task": task}
    if tasks.size[task]:
        arguments["bytes"] = int(tasks.size[task])
    if tasks.kind[task] == TaskKind.COLLECTIVE:
        arguments["members"] = tasks.members(task).tolist()
    if tasks.micro_batch is not None and tasks.micro_batch[task] >= 0:
        arguments["micro-batch"] = int(tasks.micro_batch[task])
    return arguments

"""What a plan's trace shows beside its tasks: busy links and their rates, memory, and the critical path; as columns.

All of it comes from the plan's recording (`topoplan.model.recording`); a plan without one has no rows here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan import Fabric, Plan
from topoplan.arrays import F64, I64
from topoplan.model.recording import Cause, LinkUse, MemoryLevels
from topoplan_exporter_perfetto.slices import lanes_of, nanoseconds

__all__ = ["Busy", "Levels", "busy_links", "link_name", "link_rates", "memory_totals", "path_slices", "waits"]


class Busy(NamedTuple):
    """(n,) stretches of time in which a task uses a link without a gap, by link, lane and time; nanoseconds."""

    link: I64
    lane: I64
    task: I64
    start: I64
    end: I64
    nbytes: I64


class Levels(NamedTuple):
    """(n,) whole numbers that hold from a time (nanoseconds) on, by ``owner`` and time."""

    owner: I64
    time: I64
    value: I64


def busy_links(rows: LinkUse) -> Busy:
    """Join the rows of a task on a link where one ends in the nanosecond in which the next begins."""
    order = np.lexsort((rows.start, rows.task, rows.link))
    link, task = (column[order].astype(np.int64) for column in (rows.link, rows.task))
    start, end, nbytes = nanoseconds(rows.start[order]), nanoseconds(rows.finish[order]), rows.nbytes[order]
    latest = _latest(link * (1 + int(task.max(initial=0))) + task, end)
    new = np.ones(len(link), dtype=bool)
    new[1:] = (np.diff(link) != 0) | (np.diff(task) != 0) | (start[1:] > latest[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(link)) - 1
    total = np.rint(np.add.reduceat(nbytes, first)).astype(np.int64) if len(first) else np.zeros(0, np.int64)
    link, task, start, end = link[first], task[first], start[first], latest[last]
    order = np.lexsort((end, start, link))
    link, task, start, end, total = (column[order] for column in (link, task, start, end, total))
    lane = lanes_of(link, start, end)
    order = np.lexsort((end, start, lane, link))
    return Busy(*(column[order] for column in (link, lane, task, start, end, total)))


def _latest(owner: I64, end: I64) -> I64:
    """(n,) the latest end of the rows of each owner so far; owners ascend."""
    if not len(end):
        return end
    span = int(end.max()) + 1
    rank = np.cumsum(np.diff(owner, prepend=owner[0]) != 0)
    latest: I64 = np.maximum.accumulate(end + rank * span) - rank * span
    return latest


def link_rates(rows: LinkUse) -> Levels:
    """Return bytes/s over each link, all its tasks together."""
    rate = rows.nbytes / (rows.finish - rows.start)
    owner = np.concatenate([rows.link, rows.link]).astype(np.int64)
    time = nanoseconds(np.concatenate([rows.start, rows.finish]))
    level, running = _sums(owner, time, np.concatenate([rate, -rate]), np.repeat([1.0, -1.0], len(rate)))
    value = np.where(running.value > 0, np.maximum(level.value, 0), 0)  # what rounding leaves over is nothing
    return _changes(level._replace(value=value))


def memory_totals(levels: MemoryLevels) -> Levels:
    """Return the bytes on each device, all uses together."""
    order = np.lexsort((np.arange(len(levels.time)), levels.kind, levels.device))
    owner = levels.device[order].astype(np.int64) * 128 + levels.kind[order]
    nbytes = levels.nbytes[order]
    before = np.concatenate([[0.0], nbytes[:-1]])
    before[np.flatnonzero(np.diff(owner, prepend=-1))] = 0.0
    (total,) = _sums(levels.device[order].astype(np.int64), nanoseconds(levels.time[order]), nbytes - before)
    return _changes(total)


def _sums(owner: I64, time: I64, *changes: F64) -> list[Levels]:
    """Add up changes of one or several kinds, owner by owner; the last level of each nanosecond stays."""
    order = np.lexsort((time, owner))
    owner, time = owner[order], time[order]
    last = np.flatnonzero((np.diff(owner, append=-1) != 0) | (np.diff(time, append=-1) != 0))
    first = np.flatnonzero(np.diff(owner, prepend=-1))  # rows of an owner begin here
    of_last = np.searchsorted(first, last, side="right") - 1
    sums = []
    for change in changes:
        level = np.cumsum(change[order])
        before = np.where(first > 0, level[first - 1], 0.0)
        sums.append(Levels(owner[last], time[last], np.rint(level[last] - before[of_last]).astype(np.int64)))
    return sums


def _changes(levels: Levels) -> Levels:
    """Leave out what repeats the level before."""
    new = (np.diff(levels.owner, prepend=-1) != 0) | (np.diff(levels.value, prepend=0) != 0)
    return Levels(*(column[new] for column in levels))


def path_slices(plan: Plan) -> tuple[I64, I64, I64]:
    """Return (K,) tasks on the critical path, and when each begins and ends there: where the next one begins."""
    assert plan.recording is not None
    assert plan.timeline is not None
    task = plan.recording.critical.task.astype(np.int64)
    start, end = nanoseconds(plan.timeline.start[task]), nanoseconds(plan.timeline.finish[task])
    begins = np.maximum.accumulate(start)
    return task, begins, np.maximum(begins, np.minimum(end, np.append(begins[1:], end[-1:])))


def waits(plan: Plan) -> list[str]:
    """Say of each task on the critical path what it waited for."""
    assert plan.recording is not None
    path, links = plan.recording.critical, plan.fabric.links
    texts = []
    for cause, by in zip(path.cause.tolist(), path.by.tolist(), strict=True):
        if cause == Cause.PREDECESSOR:
            texts.append(f"task {by}")
        elif cause == Cause.DEVICE:
            texts.append(f"device {by}")
        elif cause == Cause.LINK:
            texts.append(link_name(links, by, modelled=plan.cluster.host is not None))
        else:
            texts.append("a new fabric" if cause == Cause.REBUILD else "nothing")
    return texts


def link_name(links: Fabric, link: int, *, modelled: bool = False) -> str:
    """Name a link by its ends; those inside hosts stand behind the fabric's, two for each device unless modelled."""
    if link >= links.n_links and modelled:
        return "a NIC, or a link inside a host"
    if link >= links.n_links:
        device, down = divmod(link - links.n_links, 2)
        return f"{'into' if down else 'out of'} device {device}, inside its host"
    if link < 0:
        return "a link"
    return " to ".join(links.node_name(int(ends[link])) for ends in (links.link_src, links.link_dst))

"""The critical path of a run: from the last end back, each time to what the task waited for last.

A task that began when its last predecessor ended waited for that one.  One that began later waited for its device, if
it is compute, or else for the first link on its path: for the task that held it until then.  A message that took longer
than it takes alone waited for a link, too; the path goes on with its predecessor.  Starts and ends of what follows each
other are the same number in all simulators, so that nothing is compared with a tolerance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan.model.recording import Cause, LinkUse
from topoplan_engine.csr import indptr
from topoplan_engine.simulation.columns import Outcome, TaskColumns

__all__ = ["Run", "path_of"]

#: Share by which a message must take longer than alone to have waited for a link.
_LONGER = 1e-6


class Run(NamedTuple):
    """What was simulated.

    Attributes:
        tasks: columns of the task graph.
        outcome: times of its tasks.
        links: rows by link and time, of all links of the network.
        bandwidth: (E,) bytes/s of these links.
        alone: (T,) seconds that each task takes at least.
    """

    tasks: TaskColumns
    outcome: Outcome
    links: LinkUse
    bandwidth: F64
    alone: F64


class _Index(NamedTuple):
    """Where to look for what a task waited for.

    Attributes:
        pred_ptr, pred: compressed rows, predecessors of each task.
        by_finish: tasks by end, then by start.
        rows_of: row of ``links`` by task.
        row_ptr: first of these of each task.
        link_ptr: first row of each link.
    """

    pred_ptr: I64
    pred: I32
    by_finish: I64
    rows_of: I64
    row_ptr: I64
    link_ptr: I64


def path_of(run: Run) -> tuple[I64, I8, I64]:
    """Return (K,) tasks in the order of time, the cause of each, and the predecessor, device or link of that."""
    index, start, finish = _index(run), run.outcome.start, run.outcome.finish
    task = int(np.lexsort((-start, finish))[-1])
    visited: set[int] = set()
    steps: list[tuple[int, Cause, int]] = []
    while task >= 0:
        visited.add(task)
        before, cause, by = _waited_for(run, index, task, visited)
        steps.append((task, cause, by))
        task = before
    tasks, causes, holders = zip(*reversed(steps), strict=True)
    return np.array(tasks, np.int64), np.array(causes, np.int8), np.array(holders, np.int64)


def _index(run: Run) -> _Index:
    tasks, n_tasks = run.tasks, len(run.tasks.kind)
    tails = np.repeat(np.arange(n_tasks), np.diff(tasks.succ_ptr))
    order = np.argsort(tasks.succ, kind="stable")
    return _Index(
        indptr(np.bincount(tasks.succ, minlength=n_tasks)),
        tails[order].astype(np.int32),
        np.lexsort((run.outcome.start, run.outcome.finish)),
        np.argsort(run.links.task, kind="stable"),
        indptr(np.bincount(run.links.task, minlength=n_tasks)),
        indptr(np.bincount(run.links.link, minlength=len(run.bandwidth))),
    )


def _waited_for(run: Run, index: _Index, task: int, visited: set[int]) -> tuple[int, Cause, int]:
    """Return the task that comes before one on the path (-1: none), the cause, and what held it."""
    start, finish = run.outcome.start, run.outcome.finish
    preds = index.pred[index.pred_ptr[task] : index.pred_ptr[task + 1]]
    device = int(run.tasks.device[task])
    before = -1
    if len(preds):
        before = int(preds[np.lexsort((start[preds], -finish[preds]))[0]])
    if before >= 0 and finish[before] >= start[task]:
        link = -1 if device >= 0 else _shared_link(run, index, task)
        return (before, Cause.PREDECESSOR, before) if link < 0 else (before, Cause.LINK, link)
    if start[task] <= 0.0:
        return -1, Cause.START, -1
    if device >= 0:
        return _ends_at(run, index, start[task], device, visited), Cause.DEVICE, device
    link, holder = _held_link(run, index, task)
    return (holder if holder not in visited else -1), Cause.LINK, link


def _ends_at(run: Run, index: _Index, time: float, device: int, visited: set[int]) -> int:
    """Return the task that occupied a device until a time; where none ended then, the last one of all before."""
    ends = run.outcome.finish[index.by_finish]
    first, last = np.searchsorted(ends, time, "left"), np.searchsorted(ends, time, "right")
    candidates = [int(task) for task in index.by_finish[first:last] if int(task) not in visited]
    on_device = [task for task in candidates if run.tasks.device[task] == device]
    for task in on_device + candidates:
        return task
    return next((int(task) for task in index.by_finish[:first][::-1] if int(task) not in visited), -1)


def _held_link(run: Run, index: _Index, task: int) -> tuple[int, int]:
    """Return the link that a message waited for before it began, and the task that held it until then; or -1."""
    links, time = run.links, run.outcome.start[task]
    for row in index.rows_of[index.row_ptr[task] : index.row_ptr[task + 1]]:
        if links.start[row] <= time and row > index.link_ptr[links.link[row]] and links.finish[row - 1] == time:
            return int(links.link[row]), int(links.task[row - 1])
    return -1, -1


def _shared_link(run: Run, index: _Index, task: int) -> int:
    """Return the link that others used most while a message crossed it, if it took longer than alone; else -1."""
    start, finish = run.outcome.start[task], run.outcome.finish[task]
    if finish - start <= run.alone[task] * (1 + _LONGER):
        return -1
    links, fullest, used = run.links, -1, 0.0
    crossings = index.rows_of[index.row_ptr[task] : index.row_ptr[task + 1]]
    for link in np.unique(links.link[crossings]).tolist():
        rows = slice(*index.link_ptr[link : link + 2])
        foreign = links.task[rows] != task
        begins, ends = np.maximum(links.start[rows], start), np.minimum(links.finish[rows], finish)
        within = foreign & (ends > begins)
        lasted = np.maximum(links.finish[rows] - links.start[rows], 1e-300)
        nbytes = (links.nbytes[rows] * (ends - begins) / lasted)[within].sum()
        if nbytes / run.bandwidth[link] > used:
            fullest, used = link, nbytes / run.bandwidth[link]
    return fullest

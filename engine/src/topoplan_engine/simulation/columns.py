"""What every kernel reads and returns, and what is said about it.

Data flow: `columns` picks the columns of a task graph that kernels need; after a kernel has run,
`check_finished` turns tasks that never ended into an error.  `Outcome` is what a kernel returns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.taskgraph import TaskGraph

__all__ = ["Outcome", "TaskColumns", "check_finished", "check_not_slowed", "columns", "device_busy"]


class TaskColumns(NamedTuple):
    """The columns of a `TaskGraph` that kernels read, and (T,) how many edges enter each task."""

    kind: I8
    device: I32
    seconds: F64
    size: I64
    succ_ptr: I32
    succ: I32
    preds: I32
    collective: I8


class Outcome(NamedTuple):
    """What a kernel returns.

    Attributes:
        start, finish: (T,) seconds; -1 for a task that never started or ended.
        link_bytes: (E,) bytes that crossed each link, those inside hosts included.
        makespan: seconds until everything is done.
        events: how many events were processed.
    """

    start: F64
    finish: F64
    link_bytes: F64
    makespan: float
    events: int


def columns(taskgraph: TaskGraph) -> TaskColumns:
    """Pick the columns of ``taskgraph`` that kernels read."""
    return TaskColumns(
        taskgraph.kind,
        taskgraph.device,
        taskgraph.seconds,
        taskgraph.size,
        taskgraph.succ_ptr,
        taskgraph.succ,
        taskgraph.predecessor_counts(),
        taskgraph.collective,
    )


def check_finished(taskgraph: TaskGraph, finish: F64) -> None:
    """Raise `TopoplanError` when a task did not end: it is on a cycle of the task graph, or behind one."""
    unfinished = np.flatnonzero(finish < 0)
    if len(unfinished):
        names = ", ".join(taskgraph.label(int(task)) for task in unfinished[:3])
        more = f" and {len(unfinished) - 3} more" if len(unfinished) > 3 else ""
        raise TopoplanError(f"task graph: {names}{more} never run (the graph must not have a cycle)")


def check_not_slowed(taskgraph: TaskGraph, where: str) -> None:
    """Raise `TopoplanError` where devices compute slower beside messages, which ``where`` has no way to say."""
    if len(taskgraph.slowdown):
        most = f"slowdown={taskgraph.slowdown.max():.3g}"
        raise TopoplanError(f"{where}: devices compute slower beside messages, {most} (0, or simulator fluid alone)")


def device_busy(taskgraph: TaskGraph, seconds: F64, n_devices: int) -> F64:
    """(D,) seconds of compute on each device, where task ``t`` runs ``seconds[t]``."""
    runs = taskgraph.device >= 0
    return np.bincount(taskgraph.device[runs], seconds[runs], n_devices).astype(np.float64)

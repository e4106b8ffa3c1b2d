"""Task graphs of several jobs as one, and of several iterations of a job as one.

A simulator runs one task graph on one fabric.  Jobs that share a network are therefore merged: `union` puts their
tasks one after the other, each job's devices mapped to those that it got, and nothing joins one job to another
but the links that they share.  `unroll` chains iterations of one job, so that a short one goes on while a
long one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import indptr
from topoplan_engine.network.exchanged import factors_of

__all__ = ["union", "unroll"]


def union(jobs: Sequence[TaskGraph], devices: Sequence[I32], n_devices: int) -> TaskGraph:
    """Return the task graph of all jobs, tasks job by job.

    Args:
        jobs: at least one.
        devices: for each job, the device (0 .. n_devices-1) that each of its own stands for.
        n_devices: of the whole cluster.

    Raises:
        TopoplanError: a job has another number of devices than it got, or two got the same one.
    """
    all_devices = np.concatenate(devices)
    for number, (job, of_job) in enumerate(zip(jobs, devices, strict=True)):
        if len(of_job) != job.n_devices:
            raise TopoplanError(f"job {number}: has {job.n_devices} devices, but got {len(of_job)}")
    if len(np.unique(all_devices)) < len(all_devices) or all_devices.min() < 0 or all_devices.max() >= n_devices:
        raise TopoplanError(f"jobs: devices must be different ones of 0 .. {n_devices - 1}")

    def joined(column: str) -> Any:
        return np.concatenate([getattr(job, column) for job in jobs])

    def mapped(column: str) -> Any:
        """Map devices; -1 stays."""
        return np.concatenate(
            [np.append(of_job, -1)[getattr(job, column)] for job, of_job in zip(jobs, devices, strict=True)]
        )

    def shifted(column: str, counts: Sequence[int]) -> Any:
        """Renumber what ``column`` points to; -1 stays."""
        rows = [getattr(job, column).astype(np.int64) for job in jobs]
        return np.concatenate([np.where(row < 0, row, row + by) for row, by in zip(rows, _before(counts), strict=True)])

    def pointer(column: str) -> Any:
        return indptr(np.concatenate([np.diff(getattr(job, column)) for job in jobs]))

    unequal = any(job.shares for job in jobs)
    slowdown = np.zeros(n_devices if any(len(job.slowdown) for job in jobs) else 0)
    for job, of_job in zip(jobs, devices, strict=True):
        if len(job.slowdown):
            slowdown[of_job] = job.slowdown
    return TaskGraph(
        kind=joined("kind"),
        device=mapped("device"),
        seconds=joined("seconds"),
        size=joined("size"),
        src=mapped("src"),
        dst=mapped("dst"),
        group=shifted("group", [job.n_groups for job in jobs]),
        group_ptr=pointer("group_ptr"),
        group_members=mapped("group_members"),
        shares=tuple(factors_of(job, group) for job in jobs for group in range(job.n_groups)) if unequal else (),
        succ_ptr=pointer("succ_ptr"),
        succ=shifted("succ", [job.n_tasks for job in jobs]),
        op=shifted("op", [len(job.op_names) for job in jobs]),
        op_names=tuple(name for job in jobs for name in job.op_names),
        micro_batch=None if any(job.micro_batch is None for job in jobs) else joined("micro_batch"),
        collective=joined("collective"),
        slowdown=slowdown,
        n_devices=n_devices,
    )


def unroll(taskgraph: TaskGraph, times: int, wait: float = 0.0) -> TaskGraph:
    """Return ``times`` iterations, each of which starts when everything of the one before has ended.

    The tasks of the iterations follow each other, then come barriers without duration, one before each iteration;
    that before the first one takes ``wait`` seconds.
    """
    if times == 1 and wait == 0:
        return taskgraph
    count, number = taskgraph.n_tasks, np.arange(times)
    tails, heads = taskgraph.edges()
    first = np.flatnonzero(np.bincount(taskgraph.succ, minlength=count) == 0)
    last = np.flatnonzero(np.diff(taskgraph.succ_ptr) == 0)
    shift, barrier = number[:, None] * count, times * count + number[:, None]
    edges = np.concatenate(
        [
            _edges(tails + shift, heads + shift),
            _edges(last + shift[:-1], barrier[1:]),
            _edges(barrier, first + shift),
        ]
    )
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    runs = taskgraph.device[taskgraph.device >= 0]
    barriers: dict[str, Any] = {
        "kind": int(TaskKind.BARRIER),
        "device": runs[0] if len(runs) else 0,
        "seconds": np.where(number == 0, wait, 0.0),
        "size": 0,
        **dict.fromkeys(("src", "dst", "group", "op", "collective"), -1),
    }
    columns: dict[str, Any] = {
        name: np.concatenate([np.tile(getattr(taskgraph, name), times), np.broadcast_to(value, times)])
        for name, value in barriers.items()
    }
    degree = np.bincount(edges[:, 0], minlength=times * count + times)
    columns |= {
        "succ_ptr": indptr(degree),
        "succ": edges[:, 1],
        "micro_batch": None,
        "foreign": {},
    }
    return attrs.evolve(taskgraph, **columns)


def _edges(tails: I64, heads: I64) -> I64:
    """(e, 2) edges from each tail to its head, of all that the two arrays broadcast to."""
    return np.stack([part.ravel() for part in np.broadcast_arrays(tails, heads)], axis=1)


def _before(counts: Sequence[int]) -> list[int]:
    """Sums of all counts before each."""
    return [0, *np.cumsum(counts).tolist()][:-1]

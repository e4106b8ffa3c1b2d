"""Task graphs written by hand: a list of tasks, and pairs (task, task that waits for it)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from topoplan import Collective, TaskGraph, TaskKind

__all__ = ["Task", "collective", "compute", "task_graph", "transfer"]


class Task(NamedTuple):
    """A row of a task graph; of a collective also its members, in ring order."""

    kind: TaskKind
    device: int = -1
    seconds: float = 0.0
    size: int = 0
    src: int = -1
    dst: int = -1
    op: int = -1
    collective: int = -1
    members: tuple[int, ...] = ()


def compute(device, seconds=1e-3, kind=TaskKind.FORWARD, op=-1):
    return Task(kind, device, seconds, op=op)


def transfer(src, dst, size, op=-1):
    return Task(TaskKind.TRANSFER, size=size, src=src, dst=dst, op=op)


def collective(members, size, seconds=0.0, kind=Collective.ALL_REDUCE, op=-1):
    return Task(TaskKind.COLLECTIVE, seconds=seconds, size=size, op=op, collective=kind, members=tuple(members))


def task_graph(tasks, edges=(), n_devices=4, op_names=()):
    """Return the task graph of some tasks; each collective has a group of its own."""
    *columns, members = zip(*tasks, strict=True)
    columns = dict(zip(Task._fields, columns, strict=False))
    numbers = itertools.count()
    group = [next(numbers) if kind == TaskKind.COLLECTIVE else -1 for kind in columns["kind"]]
    group_ptr, group_members = _rows(row for row, number in zip(members, group, strict=True) if number >= 0)
    successors = [[] for _ in tasks]
    for task, after in edges:
        successors[task].append(after)
    succ_ptr, succ = _rows(successors)
    return TaskGraph(
        **columns,
        group=group,
        group_ptr=group_ptr,
        group_members=group_members,
        succ_ptr=succ_ptr,
        succ=succ,
        op_names=op_names,
        n_devices=n_devices,
    )


def _rows(rows):
    """Return where each row starts, and the members of all, one row after the other."""
    rows = list(rows)
    return [0, *itertools.accumulate(map(len, rows))], list(itertools.chain.from_iterable(rows))

"""The order in which the nodes of all ranks are written: tasks, and messages between ranks that no task sends.

A dependency between two tasks that no rank has in common is a message of one byte.  Everything stands behind what it
waits for, in the order of simulated starts.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from topoplan import TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import F64

__all__ = ["Order", "Place"]


class Place(NamedTuple):
    """Where a task, or a message after it, stands in the order of all ranks."""

    seconds: float
    level: int
    task: int
    target: int
    """Rank that a message goes to; -1 for the task itself."""


@attrs.frozen
class Order:
    """What comes after what.

    Attributes:
        places: tasks and messages, sorted.
        ends: for each task, the ranks that know when it has ended.
        entries: for each task, the ranks whose nodes hold it back.
        waits: for each task, what it waits for, and the place of that edge among the successors there.
    """

    places: list[Place]
    ends: list[list[int]]
    entries: list[list[int]]
    waits: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, graph: TaskGraph, start: F64, finish: F64) -> Order:
        """Order a task graph by the (T,) seconds in which its tasks start and finish.

        Raises:
            TopoplanError: the tasks wait for each other in a circle.
        """
        times = _times(graph, start.tolist(), finish.tolist())
        ends = [_ranks(graph, task) for task in range(graph.n_tasks)]
        transfer = (graph.kind == TaskKind.TRANSFER).tolist()
        entries = [ranks[1:] if transfer[task] else ranks for task, ranks in enumerate(ends)]
        waits: list[list[tuple[int, int]]] = [[] for _ in ends]
        places = {Place(seconds, 2 * level, task, -1) for task, (seconds, _, level) in enumerate(times)}
        for task, (_, seconds, level) in enumerate(times):
            informed = set(ends[task])
            for number, after in enumerate(graph.successors(task).tolist()):
                waits[after].append((task, number))
                if informed.isdisjoint(entries[after]):
                    places.add(Place(seconds, 2 * level + 1, task, entries[after][0]))
        return cls(sorted(places), ends, entries, waits)


def _ranks(graph: TaskGraph, task: int) -> list[int]:
    """Return the ranks that know when a task has ended, a transfer's destination first."""
    if graph.kind[task] == TaskKind.TRANSFER:
        return [int(graph.dst[task]), int(graph.src[task])]
    if graph.kind[task] == TaskKind.COLLECTIVE:
        return list(map(int, graph.members(task)))
    return [int(graph.device[task])]


def _times(graph: TaskGraph, start: list[float], finish: list[float]) -> list[tuple[float, float, int]]:
    """Return when each task starts and finishes, never before what it waits for, and how many stand before it."""
    waits = graph.predecessor_counts().tolist()
    ready = [task for task, count in enumerate(waits) if not count]
    level = [0] * graph.n_tasks
    ptr, succ = graph.succ_ptr.tolist(), graph.succ.tolist()
    finished = 0
    while ready:
        task = ready.pop()
        finished += 1
        finish[task] = max(finish[task], start[task])
        for after in succ[ptr[task] : ptr[task + 1]]:
            start[after] = max(start[after], finish[task])
            level[after] = max(level[after], level[task] + 1)
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    if finished < graph.n_tasks:
        stuck = next(task for task, count in enumerate(waits) if count)
        raise TopoplanError(f"chakra: {graph.label(stuck)} waits for itself (dependencies must have no cycle)")
    return list(zip(start, finish, level, strict=True))

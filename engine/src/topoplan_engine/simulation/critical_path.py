"""Lower bounds on the makespan, and on the time from the start of each task to the end of the iteration.

A search proposes candidates with a cutoff.  `critical_path_bound` gives a bound before anything is simulated, with
which a simulation is skipped; and for every task the least time from its start to the end of all, with which a
simulation is stopped early.

The words are those of Carlier's one-machine problem (Eur. J. Oper. Res. 11, 1982).  The *head* of a task is a lower
bound on its start, its *processing time* on how long it takes, and its *tail* on the time from its end to the end of
the iteration.  A machine (a link or a device) that some tasks need cannot be done before the least of their heads, the
sum of their seconds on it, and the least of their tails.  Three kinds of bounds follow:

- chains of tasks: heads and tails go along the edges;
- the transfers that one task releases, or waits for, and that share a link: they need it one after the other
  (`_shared_link`);
- all tasks of a machine from some head on; heads are compared with a fixed number of times only, so that nothing is
  sorted (`_one_machine`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.topological import sort_tasks

__all__ = ["STEPS", "LinkUses", "critical_path_bound"]

#: Times that heads are compared with.
STEPS = 32
#: Columns of the tasks of a machine in a step.
_SECONDS, _HEAD, _TAIL = range(3)
_TRANSFER = int(TaskKind.TRANSFER)


class LinkUses(NamedTuple):
    """Seconds for which each task is guaranteed to take links, between its start and its end, as CSR."""

    ptr: I64
    link: I32
    seconds: F64


class _Graph(NamedTuple):
    """The task graph, and what is known of its tasks before heads and tails.

    Attributes:
        tasks, uses: see `critical_path_bound`.
        processing_time: (T,) seconds.
        order: (T,) the sorted tasks first, every one behind its predecessors.
        pred_ptr, pred: CSR, the predecessors of each task.
    """

    tasks: TaskColumns
    processing_time: F64
    uses: LinkUses
    order: I32
    pred_ptr: I64
    pred: I32


class _Times(NamedTuple):
    """(T,) seconds: heads, tails, and ``time_to_end``, which is the processing time and the tail."""

    head: F64
    tail: F64
    time_to_end: F64


class _Scratch(NamedTuple):
    """Room of `_shared_link`, which leaves links as it finds them.

    Attributes:
        seconds: (E,) seconds of the transfers so far; 0.
        nearest: (E,) the least head or tail of them; infinite.
        visit: (T,) the visit in which each transfer was counted last.
    """

    seconds: F64
    nearest: F64
    visit: I64


def critical_path_bound(
    tasks: TaskColumns, processing_time: F64, uses: LinkUses, n_links: int, n_devices: int
) -> tuple[float, F64]:
    """Return lower bounds on the makespan, and (T,) on the time from each task's start to the end of all, in seconds.

    Args:
        tasks: the task graph; tasks on a cycle, or behind one, are left out.
        processing_time: (T,) lower bound on the seconds that each task takes.
        uses: of links.
        n_links, n_devices: how many there are.
    """
    n_tasks, n_machines = len(tasks.kind), n_links + n_devices
    order, waits = np.empty(n_tasks, np.int32), tasks.preds.copy()
    pred_ptr, pred = np.zeros(n_tasks + 1, np.int64), np.empty(len(tasks.succ), np.int32)
    graph = _Graph(tasks, processing_time, uses, order, pred_ptr, pred)
    times = _Times(np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks))
    scratch = _Scratch(np.zeros(n_links), np.full(n_links, np.inf), np.full(n_tasks, -1, np.int64))
    machines = np.full((n_machines, STEPS, 3), np.inf)
    machines[:, :, _SECONDS] = 0.0
    return _bound(graph, waits, times, scratch, machines, n_links), times.time_to_end


@kernel
def _bound(graph: _Graph, waits: I32, times: _Times, scratch: _Scratch, machines: F64, n_links: int) -> float:
    """Fill the times of all tasks, and return the lower bound on the makespan."""
    n_sorted = sort_tasks(graph.tasks, waits, graph.pred_ptr, graph.pred, graph.order)
    _chains(graph, n_sorted, times, scratch)
    return float(_one_machine(graph, n_sorted, times, n_links, machines))


@inline_kernel
def _chains(graph: _Graph, n_sorted: int, times: _Times, scratch: _Scratch) -> None:
    """Write heads along the edges, then tails against them.

    Invariant: when a task is looked at, the heads of all its predecessors (the tails of all its successors) are final.
    """
    tasks, pred_ptr, pred = graph.tasks, graph.pred_ptr, graph.pred
    head, tail = times.head, times.tail
    for i in range(n_sorted):
        t = graph.order[i]
        first, last, latest = pred_ptr[t], pred_ptr[t + 1], 0.0
        for k in range(first, last):
            latest = max(latest, head[pred[k]] + graph.processing_time[pred[k]])
        if last - first > 1:
            latest = max(latest, _shared_link(graph, pred, first, last, head, scratch, t))
        head[t] = latest
    for i in range(n_sorted - 1, -1, -1):
        t = graph.order[i]
        first, last, longest = np.int64(tasks.succ_ptr[t]), np.int64(tasks.succ_ptr[t + 1]), 0.0
        for k in range(first, last):
            longest = max(longest, times.time_to_end[tasks.succ[k]])
        if last - first > 1:
            visit = len(scratch.visit) + t
            longest = max(longest, _shared_link(graph, tasks.succ, first, last, tail, scratch, visit))
        tail[t], times.time_to_end[t] = longest, graph.processing_time[t] + longest


@inline_kernel
def _one_machine(graph: _Graph, n_sorted: int, times: _Times, n_links: int, machines: F64) -> float:
    """Lower bound on the makespan over all chains, links and devices.

    ``machines`` (links + devices, STEPS, 3) has of the tasks of each machine whose heads are in each step the sum of
    the seconds, the least head and the least tail; infinite if there is no task.
    """
    tasks, uses, head, tail = graph.tasks, graph.uses, times.head, times.tail
    bound, latest = 0.0, 0.0
    for i in range(n_sorted):
        t = graph.order[i]
        latest = max(latest, head[t])
        bound = max(bound, head[t] + times.time_to_end[t])
    for i in range(n_sorted):
        t = graph.order[i]
        if tasks.device[t] < 0 and uses.ptr[t] == uses.ptr[t + 1]:
            continue  # it needs no machine for sure
        step = min(STEPS - 1, int(head[t] / latest * STEPS)) if latest > 0.0 else 0
        if tasks.device[t] >= 0:
            _add_task(machines, n_links + tasks.device[t], step, tasks.seconds[t], head[t], tail[t])
        for k in range(uses.ptr[t], uses.ptr[t + 1]):
            _add_task(machines, uses.link[k], step, uses.seconds[k], head[t], tail[t])
    for machine in range(len(machines)):
        # Over the tasks of this step and all later ones.
        seconds, least_head, least_tail = 0.0, np.inf, np.inf
        for step in range(STEPS - 1, -1, -1):
            if machines[machine, step, _HEAD] < np.inf:
                seconds += machines[machine, step, _SECONDS]
                least_head = min(least_head, machines[machine, step, _HEAD])
                least_tail = min(least_tail, machines[machine, step, _TAIL])
                bound = max(bound, least_head + seconds + least_tail)
    return bound


@inline_kernel
def _add_task(machines: F64, machine: int, step: int, seconds: float, head: float, tail: float) -> None:
    machines[machine, step, _SECONDS] += seconds
    machines[machine, step, _HEAD] = min(machines[machine, step, _HEAD], head)
    machines[machine, step, _TAIL] = min(machines[machine, step, _TAIL], tail)


@inline_kernel
def _shared_link(
    graph: _Graph, neighbours: I32, first: int, last: int, times: F64, scratch: _Scratch, visit: int
) -> float:
    """Seconds that the transfers ``neighbours[first:last]`` take on one link, and the least of their ``times``.

    An edge may be given twice, a transfer counts once.

    Args:
        graph: the task graph.
        neighbours, first, last: all predecessors or all successors of a task.
        times: (T,) heads or tails.
        scratch: room.
        visit: a number of its own for each call.
    """
    uses, longest, n_counted = graph.uses, 0.0, 0
    for k in range(first, last):
        t = neighbours[k]
        if uses.ptr[t] < uses.ptr[t + 1] and graph.tasks.kind[t] == _TRANSFER and scratch.visit[t] != visit:
            scratch.visit[t] = visit
            n_counted += 1
            for i in range(uses.ptr[t], uses.ptr[t + 1]):
                link = uses.link[i]
                scratch.seconds[link] += uses.seconds[i]
                scratch.nearest[link] = min(scratch.nearest[link], times[t])
                longest = max(longest, scratch.seconds[link] + scratch.nearest[link])
    if n_counted == 0:
        return longest
    for k in range(first, last):
        t = neighbours[k]
        if graph.tasks.kind[t] == _TRANSFER:
            for i in range(uses.ptr[t], uses.ptr[t + 1]):
                scratch.seconds[uses.link[i]] = 0.0
                scratch.nearest[uses.link[i]] = np.inf
    return longest

"""The bounds of `topoplan_engine.simulation.critical_path` in plain Python: slow, short, and equal to the kernel to
the last bit.

Tests compare the two on random task graphs and fabrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from topoplan.arrays import F64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.critical_path import STEPS, LinkUses

__all__ = ["reference_critical_path_bound"]

#: Seconds that a message takes each link, by link.
_Use = list[tuple[int, float]]


def reference_critical_path_bound(
    tasks: TaskColumns, processing_time: F64, uses: LinkUses
) -> tuple[float, list[float]]:
    """Return lower bounds on the makespan, and (T,) on the time from each task's start to the end of all."""
    n = len(tasks.kind)
    succ = [[int(s) for s in tasks.succ[tasks.succ_ptr[t] : tasks.succ_ptr[t + 1]]] for t in range(n)]
    order, pred = _order(succ, tasks.preds.tolist())
    links = [
        [(int(uses.link[k]), float(uses.seconds[k])) for k in range(uses.ptr[t], uses.ptr[t + 1])] for t in range(n)
    ]
    sent = [use if tasks.kind[t] == TaskKind.TRANSFER else [] for t, use in enumerate(links)]
    head, tail, time_to_end = [0.0] * n, [0.0] * n, [0.0] * n
    for t in order:
        ends = [head[p] + float(processing_time[p]) for p in pred[t]]
        head[t] = max([0.0, *ends, _shared_link(pred[t], head, sent)])
    for t in reversed(order):
        tail[t] = max([0.0, *(time_to_end[s] for s in succ[t]), _shared_link(succ[t], tail, sent)])
        time_to_end[t] = float(processing_time[t]) + tail[t]
    chains = [head[t] + time_to_end[t] for t in order]
    return max([0.0, *chains, *_one_machine(tasks, links, order, head, tail)]), time_to_end


def _order(succ: Sequence[Sequence[int]], waits: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return the tasks, first come first, and the predecessors of each, the last one first."""
    pred: list[list[int]] = [[] for _ in succ]
    order: list[int] = []
    ready = deque(t for t, count in enumerate(waits) if count == 0)
    while ready:
        t = ready.popleft()
        order.append(t)
        for s in succ[t]:
            pred[s].insert(0, t)
            waits[s] -= 1
            if waits[s] == 0:
                ready.append(s)
    return order, pred


def _shared_link(messages: Sequence[int], times: Sequence[float], sent: Sequence[_Use]) -> float:
    """Seconds that messages of one task, more than one, take on one link, and the least of their ``times``."""
    if len(messages) < 2:
        return 0.0
    longest = 0.0
    busy: dict[int, float] = {}
    nearest: dict[int, float] = {}
    for t in dict.fromkeys(messages):
        for link, seconds in sent[t]:
            busy[link] = busy.get(link, 0.0) + seconds
            nearest[link] = min(nearest.get(link, times[t]), times[t])
            longest = max(longest, busy[link] + nearest[link])
    return longest


def _one_machine(
    tasks: TaskColumns, used: Sequence[_Use], order: Sequence[int], head: Sequence[float], tail: Sequence[float]
) -> list[float]:
    """For every link and device, and each of a number of times: its work from then on, with head and tail."""
    latest = max((head[t] for t in order), default=0.0)
    work: dict[tuple[str, int], list[tuple[int, float, float, float]]] = {}
    for t in order:
        step = min(STEPS - 1, int(head[t] / latest * STEPS)) if latest > 0.0 else 0
        jobs = [(("link", link), seconds) for link, seconds in used[t]]
        if tasks.device[t] >= 0:
            jobs.append((("device", int(tasks.device[t])), float(tasks.seconds[t])))
        for machine, seconds in jobs:
            work.setdefault(machine, []).append((step, seconds, head[t], tail[t]))
    bounds = []
    for jobs_of in work.values():
        total = 0.0
        for step in range(STEPS - 1, -1, -1):
            total += sum(job[1] for job in jobs_of if job[0] == step)
            later = [job for job in jobs_of if job[0] >= step]
            if any(job[0] == step for job in jobs_of):
                bounds.append(min(job[2] for job in later) + total + min(job[3] for job in later))
    return bounds

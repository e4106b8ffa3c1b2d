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
from topoplan_engine.simulation.critical_path import STEPS, Uses

__all__ = ["look_ahead_reference"]

#: Seconds that a message takes each link, by link.
_Use = list[tuple[int, float]]


def look_ahead_reference(tasks: TaskColumns, alone: F64, uses: Uses) -> tuple[float, list[float]]:
    """Return seconds that the iteration takes at least, and (T,) from each task's start to the end of all."""
    n = len(tasks.kind)
    after = [[int(s) for s in tasks.succ[tasks.succ_ptr[t] : tasks.succ_ptr[t + 1]]] for t in range(n)]
    order, before = _order(after, tasks.preds.tolist())
    of = [[(int(uses.link[k]), float(uses.seconds[k])) for k in range(uses.ptr[t], uses.ptr[t + 1])] for t in range(n)]
    sent = [use if tasks.kind[t] == TaskKind.TRANSFER else [] for t, use in enumerate(of)]
    begin, rest, behind = [0.0] * n, [0.0] * n, [0.0] * n
    for t in order:
        ends = [begin[p] + float(alone[p]) for p in before[t]]
        begin[t] = max([0.0, *ends, _together(before[t], begin, sent)])
    for t in reversed(order):
        rest[t] = max([0.0, *(behind[s] for s in after[t]), _together(after[t], rest, sent)])
        behind[t] = float(alone[t]) + rest[t]
    chains = [begin[t] + behind[t] for t in order]
    return max([0.0, *chains, *_machines(tasks, of, order, begin, rest)]), behind


def _order(after: Sequence[Sequence[int]], waits: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return the tasks, first come first, and the predecessors of each, the last one first."""
    before: list[list[int]] = [[] for _ in after]
    order: list[int] = []
    ready = deque(t for t, count in enumerate(waits) if count == 0)
    while ready:
        t = ready.popleft()
        order.append(t)
        for s in after[t]:
            before[s].insert(0, t)
            waits[s] -= 1
            if waits[s] == 0:
                ready.append(s)
    return order, before


def _together(messages: Sequence[int], other: Sequence[float], sent: Sequence[_Use]) -> float:
    """Seconds that messages of one task, more than one, take on one link, with the least that is ``other`` to each."""
    if len(messages) < 2:
        return 0.0
    longest = 0.0
    busy: dict[int, float] = {}
    least: dict[int, float] = {}
    for t in dict.fromkeys(messages):
        for link, seconds in sent[t]:
            busy[link] = busy.get(link, 0.0) + seconds
            least[link] = min(least.get(link, other[t]), other[t])
            longest = max(longest, busy[link] + least[link])
    return longest


def _machines(
    tasks: TaskColumns, of: Sequence[_Use], order: Sequence[int], begin: Sequence[float], rest: Sequence[float]
) -> list[float]:
    """For every link and device, and each of a number of times: what it does from then on, with head and tail."""
    latest = max((begin[t] for t in order), default=0.0)
    done: dict[tuple[str, int], list[tuple[int, float, float, float]]] = {}
    for t in order:
        step = min(STEPS - 1, int(begin[t] / latest * STEPS)) if latest > 0.0 else 0
        jobs = [(("link", link), seconds) for link, seconds in of[t]]
        if tasks.device[t] >= 0:
            jobs.append((("device", int(tasks.device[t])), float(tasks.seconds[t])))
        for machine, seconds in jobs:
            done.setdefault(machine, []).append((step, seconds, begin[t], rest[t]))
    found = []
    for jobs_of in done.values():
        total = 0.0
        for step in range(STEPS - 1, -1, -1):
            total += sum(seconds for at, seconds, _, _ in jobs_of if at == step)
            later = [job for job in jobs_of if job[0] >= step]
            if any(job[0] == step for job in jobs_of):
                found.append(min(job[2] for job in later) + total + min(job[3] for job in later))
    return found

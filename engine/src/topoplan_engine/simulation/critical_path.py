"""What an iteration takes at least, and what must still follow each task: to stop early, or not to begin.

A search knows which time a candidate must beat.  `look_ahead` gives a bound on its time before it is simulated, and
for every task the least time from its start to the end of all, with which a simulator can stop on the way.

Beside chains of tasks, both know that messages share links.  Messages that one task releases, or that one task waits
for, and that cross one link, take that link as long as all of them together need; and whatever crosses a link
after some time takes it as long as needed from then on (one-machine bounds with heads and tails: Carlier, Eur. J.
Oper. Res. 11, 1982, without sorting: heads are compared with a fixed number of times only).  Devices likewise.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.simulation.columns import TaskColumns

__all__ = ["STEPS", "Uses", "look_ahead"]

#: Times that heads are compared with.
STEPS = 32
_TRANSFER = int(TaskKind.TRANSFER)


class Uses(NamedTuple):
    """Seconds that each task surely takes links, all of it between its start and its end, as compressed rows."""

    ptr: I64
    link: I32
    seconds: F64


@numba.njit(cache=True)
def look_ahead(tasks: TaskColumns, alone: F64, uses: Uses, n_links: int, n_devices: int) -> tuple[float, F64]:
    """Return seconds that the iteration takes at least, and (T,) from each task's start to the end of all.

    Args:
        tasks: the task graph; tasks on a cycle, or behind one, are left out.
        alone: (T,) seconds that each task takes at least.
        uses: of links.
        n_links, n_devices: how many there are.
    """
    n_tasks = len(tasks.kind)
    begin, rest, behind = np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks)
    before_ptr = np.zeros(n_tasks + 1, np.int64)
    before = np.empty(len(tasks.succ), np.int32)
    order = np.empty(n_tasks, np.int32)
    busy, least = np.zeros(n_links), np.full(n_links, np.inf)
    met = np.full(n_tasks, -1, np.int64)
    machines = np.full((3, n_links + n_devices, STEPS), np.inf)
    machines[0] = 0.0
    known = _sort(tasks, tasks.preds.copy(), before_ptr, before, order)
    _chains(tasks, alone, uses, order[:known], before_ptr, before, busy, least, met, begin, rest, behind)
    return _machines(tasks, uses, order[:known], n_links, machines, begin, rest, behind), behind


@inline_kernel
def _chains(
    tasks: TaskColumns, alone: F64, uses: Uses, order: I32, before_ptr: I64, before: I32, busy: F64, least: F64,
    met: I64, begin: F64, rest: F64, behind: F64,
) -> None:  # fmt: skip
    """Write when each task begins at least, the time from its end to the end of all, and from its start."""
    for t in order:
        first, last = before_ptr[t], before_ptr[t + 1]
        for k in range(first, last):
            begin[t] = max(begin[t], begin[before[k]] + alone[before[k]])
        if last - first > 1:
            begin[t] = max(begin[t], _together(tasks, before, first, last, begin, uses, busy, least, met, t))
    for t in order[::-1]:
        first, last = np.int64(tasks.succ_ptr[t]), np.int64(tasks.succ_ptr[t + 1])
        for k in range(first, last):
            rest[t] = max(rest[t], behind[tasks.succ[k]])
        if last - first > 1:
            rest[t] = max(
                rest[t], _together(tasks, tasks.succ, first, last, rest, uses, busy, least, met, len(met) + t)
            )
        behind[t] = alone[t] + rest[t]


@inline_kernel
def _machines(
    tasks: TaskColumns, uses: Uses, order: I32, n_links: int, machines: F64, begin: F64, rest: F64, behind: F64
) -> float:
    """Seconds at least, over all chains, links and devices; ``machines`` holds seconds, heads and tails by step."""
    longest, latest = 0.0, 0.0
    for t in order:
        latest = max(latest, begin[t])
        longest = max(longest, begin[t] + behind[t])
    seconds, heads, tails = machines[0], machines[1], machines[2]
    for t in order:
        step = min(STEPS - 1, int(begin[t] / latest * STEPS)) if latest > 0.0 else 0
        if tasks.device[t] >= 0:
            machine = n_links + tasks.device[t]
            seconds[machine, step] += tasks.seconds[t]
            heads[machine, step] = min(heads[machine, step], begin[t])
            tails[machine, step] = min(tails[machine, step], rest[t])
        for k in range(uses.ptr[t], uses.ptr[t + 1]):
            link = uses.link[k]
            seconds[link, step] += uses.seconds[k]
            heads[link, step] = min(heads[link, step], begin[t])
            tails[link, step] = min(tails[link, step], rest[t])
    for machine in range(len(seconds)):
        total, head, tail = 0.0, np.inf, np.inf
        for step in range(STEPS - 1, -1, -1):
            if heads[machine, step] < np.inf:
                total += seconds[machine, step]
                head = min(head, heads[machine, step])
                tail = min(tail, tails[machine, step])
                longest = max(longest, head + total + tail)
    return longest


@inline_kernel
def _together(
    tasks: TaskColumns, of: I32, first: int, last: int, other: F64, uses: Uses, busy: F64, least: F64, met: I64,
    visit: int,
) -> float:  # fmt: skip
    """Seconds that the transfers ``of[first:last]`` take on one link, plus the least that is ``other`` to each.

    An edge may be given twice, a transfer counts once: ``met`` notes the ``visit``, a number of its own, of each.
    """
    longest = 0.0
    for k in range(first, last):
        t = of[k]
        if tasks.kind[t] == _TRANSFER and met[t] != visit:
            met[t] = visit
            for i in range(uses.ptr[t], uses.ptr[t + 1]):
                link = uses.link[i]
                busy[link] += uses.seconds[i]
                least[link] = min(least[link], other[t])
                longest = max(longest, busy[link] + least[link])
    for k in range(first, last):
        t = of[k]
        if tasks.kind[t] == _TRANSFER:
            for i in range(uses.ptr[t], uses.ptr[t + 1]):
                busy[uses.link[i]] = 0.0
                least[uses.link[i]] = np.inf
    return longest


@inline_kernel
def _sort(tasks: TaskColumns, waits: I32, before_ptr: I64, before: I32, order: I32) -> int:
    """Write the predecessors of each task, and an order in which they come first; return how many tasks it has."""
    n_tasks = len(waits)
    known, at = 0, 0
    for t in range(n_tasks):
        before_ptr[t + 1] = before_ptr[t] + waits[t]
        if waits[t] == 0:
            order[known] = t
            known += 1
    while at < known:
        t = order[at]
        for i in range(tasks.succ_ptr[t], tasks.succ_ptr[t + 1]):
            n = tasks.succ[i]
            waits[n] -= 1
            before[before_ptr[n] + waits[n]] = t
            if waits[n] == 0:
                order[known] = n
                known += 1
        at += 1
    return known

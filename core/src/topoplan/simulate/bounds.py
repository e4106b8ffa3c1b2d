"""Lower bounds on the makespan: the busiest device, the busiest link and the longest chain.

Data flow: a simulator says how long each task takes alone and what crossed each link; `bounds` turns this into
a `Bounds`.  They hold for the simulator whose figures they are made of: no order of events beats them.
"""

from __future__ import annotations

import numba
import numpy as np

from topoplan.arrays import F64
from topoplan.simulate.columns import TaskColumns
from topoplan.timeline import Bounds

__all__ = ["bounds", "longest_chain"]


def bounds(tasks: TaskColumns, alone: F64, device_busy: F64, link_busy: F64) -> Bounds:
    """Make the bounds of one iteration.

    Args:
        tasks: the task graph, without cycles.
        alone: (T,) seconds that each task takes at least, from its last dependency on.
        device_busy: (D,) seconds of compute on each device.
        link_busy: (E,) seconds that each link needs for what crosses it, at full speed.
    """
    return Bounds(
        device=float(device_busy.max(initial=0.0)),
        link=float(link_busy.max(initial=0.0)),
        chain=float(longest_chain(tasks, alone)),
    )


@numba.njit(cache=True)
def longest_chain(tasks: TaskColumns, alone: F64) -> float:
    """Length of the longest path through the task graph, each task as long as ``alone`` says."""
    n_tasks = len(tasks.kind)
    waits = tasks.preds.copy()
    begin = np.zeros(n_tasks)
    order = np.empty(n_tasks, np.int32)
    known = 0
    for t in range(n_tasks):
        if waits[t] == 0:
            order[known] = t
            known += 1
    longest = 0.0
    at = 0
    while at < known:
        t = order[at]
        at += 1
        end = begin[t] + alone[t]
        longest = max(longest, end)
        for i in range(tasks.succ_ptr[t], tasks.succ_ptr[t + 1]):
            n = tasks.succ[i]
            begin[n] = max(begin[n], end)
            waits[n] -= 1
            if waits[n] == 0:
                order[known] = n
                known += 1
    return longest

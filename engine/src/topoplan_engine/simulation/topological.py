"""The topological pass over a task graph that bounds start from."""

from __future__ import annotations

from topoplan.arrays import I32, I64
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.simulation.columns import TaskColumns

__all__ = ["sort_tasks"]


@inline_kernel
def sort_tasks(tasks: TaskColumns, waits: I32, pred_ptr: I64, pred: I32, order: I32) -> int:
    """Write the predecessors of each task, and an order in which they come first; return how many tasks it has.

    Tasks on a cycle, and those behind one, are in no such order (Kahn, Commun. ACM 5, 1962).

    Invariants: ``order[: n_sorted]`` are the tasks all of whose predecessors stand before them there, and of these the
    first ``followed`` have been followed; ``waits[n]`` counts the edges into ``n`` from all others.

    Args:
        tasks: the task graph.
        waits: (T,) edges into each task on entry; counted down.
        pred_ptr, pred: (T+1,) and (edges,) compressed rows, written; ``pred_ptr[0]`` is 0 on entry.
        order: (T,) written.
    """
    n_tasks = len(waits)
    n_sorted, followed = 0, 0
    for t in range(n_tasks):
        pred_ptr[t + 1] = pred_ptr[t] + waits[t]
        if waits[t] == 0:
            order[n_sorted] = t
            n_sorted += 1
    while followed < n_sorted:
        t = order[followed]
        for i in range(tasks.succ_ptr[t], tasks.succ_ptr[t + 1]):
            n = tasks.succ[i]
            waits[n] -= 1
            pred[pred_ptr[n] + waits[n]] = t
            if waits[n] == 0:
                order[n_sorted] = n
                n_sorted += 1
        followed += 1
    return n_sorted

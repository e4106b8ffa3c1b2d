"""The tasks of the first host's devices, where these differ: the quotient of an SPMD program by shifts of whole hosts.

Small all-to-alls of several groups queue between the same hosts, and the group whose messages go first is done first
(`topoplan_engine.lowering.spmd_quotient`).  Which one that is, the order of the groups says, which is the same in all
hosts.  So a host has the same tasks at the same times as any other, and each task of the first device has one copy for
each group of the first host that differs, or for each device.

    a host of 4 devices on a mesh of 8 x 4, groups along axis 0 wait: every compute task has 4 copies, collectives
    along axis 0 have 4, those along axis 1 have 1

Data flow: `host_tasks` numbers the copies of `ProgramQuotient.taskgraph` and joins them as the whole task graph joins
them; `topoplan_simulator_fluid.programs` simulates them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I64
from topoplan_engine.lowering.spmd_quotient import ProgramQuotient

__all__ = ["HostTasks", "host_tasks"]


class HostTasks(NamedTuple):
    """The copies of the tasks of the first device, in its order; N of them.

    Attributes:
        task: (N,) the task that each is a copy of.
        device: (N,) the device that it runs on, or the first one of its group.
        first: (T,) the first copy of each task, which is that of the first device.
        succ_ptr, succ: successors of each, in the order of the whole task graph.
    """

    task: I64
    device: I64
    first: I64
    succ_ptr: I64
    succ: I64


def host_tasks(quotient: ProgramQuotient) -> HostTasks:
    """Return the tasks of the devices of the first host that differ, and of their groups."""
    places = np.indices(quotient.apart).reshape(len(quotient.apart), -1)  # (axes, devices)
    strides = np.cumprod((1, *quotient.mesh[:0:-1]))[::-1]
    first_devices, group_of = [], []
    for axes in quotient.axes:
        fixed_axes = [axis for axis in range(len(strides)) if axis not in axes]
        devices, groups = np.unique(strides[fixed_axes] @ places[fixed_axes], return_inverse=True)
        first_devices.append(devices)
        group_of.append(groups)
    copies = quotient.copies[quotient.along]
    first = np.cumsum(copies) - copies
    succ_ptr, succ = _joined(quotient, np.stack(group_of), first, int(copies.sum()))
    device = [first_devices[along] for along in quotient.along.tolist()]
    return HostTasks(np.repeat(np.arange(len(copies)), copies), np.concatenate(device), first, succ_ptr, succ)


def _joined(quotient: ProgramQuotient, group_of: I64, first: I64, count: int) -> tuple[I64, I64]:
    """Return the successors of ``count`` tasks: every edge of the first device, once for any two groups that share one.

    Args:
        quotient: of its edges.
        group_of: (A, D) number of the group of each device along each axes.
        first: (T,) first copy of each task.
        count: copies of all tasks.
    """
    tails, heads = (first[ends][:, None] + group_of[quotient.along[ends]] for ends in quotient.taskgraph.edges())
    edges = np.sort(tails * count + heads, axis=1)
    new = np.ones(edges.shape, dtype=bool)
    new[:, 1:] = np.diff(edges, axis=1) > 0
    tail, head = np.divmod(edges[new], count)
    degrees = np.bincount(tail, minlength=count)
    return np.concatenate([[0], np.cumsum(degrees)]), head[np.argsort(tail, kind="stable")]

"""Devices that compute slower while messages of theirs are on the way.

Kernels of communication take a part of a device.  While at least one message of a device is under way, from when its
task starts until it ends, the device computes at a rate of 1 / (1 + s), where s is its `TaskGraph.slowdown`; at a rate
of 1 else.  The ends of compute tasks then move, so that they lie in a tree of minima by device, and not among timed
events.

A message has the devices of its group, or the two of its transfer.  One that stands for a class of messages, in a
folded iteration, has a device that represents each class of these; one flow that stands for many transfers has the
devices of all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, f64, i32, i64
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.jit import inline_kernel, part
from topoplan_engine.simulation.coupled_messages import CoupledMessages
from topoplan_simulator_fluid.queues import first_of, replace, tree

__all__ = ["Beside", "Slowed", "beside", "change_messages", "computes", "done", "slowed"]


class Beside(NamedTuple):
    """What messages take of devices; D devices, T tasks.

    Attributes:
        slowdown: (D,) share by which each computes slower beside its messages; no rows where none does.
        row: (T,) row of the devices of each message; -1 for tasks that send nothing.
        ptr, devices: these, as compressed rows.
    """

    slowdown: F64
    row: I64
    ptr: I64
    devices: I32


class Slowed(NamedTuple):
    """How far devices are with what they compute; no rows where none is slowed.

    Attributes:
        ends: tree of the (D,) seconds when they are done; infinite for idle ones.
        messages: (D,) how many of theirs are on the way.
        left: (D,) seconds of a device without messages, from ``since`` on.
        since: (D,) seconds.
    """

    ends: F64
    messages: I32
    left: F64
    since: F64


#: Most task graphs have no slowdown, and searches prepare thousands a second.
_NONE = Beside(f64(()), i64(()), i64(()), i32(()))


def beside(
    taskgraph: TaskGraph, of_task: I32, coupled: CoupledMessages | None = None, representative: I64 | None = None
) -> Beside:
    """Return what messages take of devices.

    Args:
        taskgraph: what runs.
        of_task: (T+1,) first flow of each task.
        coupled: transfers that are coupled.
        representative: (D,) the device that stands for each one, if not all are there.
    """
    if not len(taskgraph.slowdown):
        return _NONE
    inside = (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.seconds > 0)
    sends = (np.diff(of_task)[: taskgraph.n_tasks] > 0) | inside
    row = np.where(sends, taskgraph.group, -1).astype(np.int64)
    transfers = np.flatnonzero(sends & (taskgraph.kind == TaskKind.TRANSFER))
    row[transfers] = taskgraph.n_groups + np.arange(len(transfers))
    ends = np.stack([taskgraph.src[transfers], taskgraph.dst[transfers]], axis=1)
    lengths, devices = [np.diff(taskgraph.group_ptr), np.full(len(transfers), 2)], [taskgraph.group_members, ends]
    if coupled is not None:
        row[coupled.sender] = taskgraph.n_groups + len(transfers) + np.arange(len(coupled.sender))
        lengths.append(2 * coupled.counts)
        devices.append(np.stack([coupled.src, coupled.dst], axis=1))
    of_row = np.repeat(np.arange(sum(map(len, lengths))), np.concatenate(lengths))
    members = np.concatenate([each.ravel() for each in devices])
    members = members if representative is None else representative[members]
    of_row, members = np.unique(np.stack([of_row, members]), axis=1)
    ptr = indptr(np.bincount(of_row, minlength=sum(map(len, lengths))))
    return Beside(f64(taskgraph.slowdown), i64(row), i64(ptr), i32(members))


@part()
def slowed(b: Beside) -> Slowed:
    """Return idle devices without messages."""
    count = len(b.slowdown)
    return Slowed(tree(max(1, count)), np.zeros(count, np.int32), np.zeros(count), np.zeros(count))


@part()
def computes(b: Beside, s: Slowed, device: int, seconds: float, now: float) -> None:
    """Begin to compute something of so many seconds without messages."""
    s.left[device], s.since[device] = seconds, now
    replace(s.ends, device, now + seconds * _pace(b, s, device))


@inline_kernel
def done(s: Slowed) -> int:
    """Return the first device whose task ends next, which is idle then."""
    device = first_of(s.ends)
    replace(s.ends, device, np.inf)
    return int(device)


@part()
def change_messages(b: Beside, s: Slowed, running: Any, task: int, by: int, now: float) -> None:
    """Take note that a message of a task begins (``by`` is 1) or has ended (-1)."""
    row = b.row[task]
    if row < 0:
        return
    for i in range(b.ptr[row], b.ptr[row + 1]):
        device = b.devices[i]
        if running[device] >= 0:
            before = _pace(b, s, device)
            s.messages[device] += by
            after = _pace(b, s, device)
            if before != after:
                s.left[device] = max(0.0, s.left[device] - (now - s.since[device]) / before)
                s.since[device] = now
                replace(s.ends, device, now + s.left[device] * after)
        else:
            s.messages[device] += by


@inline_kernel
def _pace(b: Beside, s: Slowed, device: int) -> float:
    """Seconds for each second of a device without messages."""
    return 1.0 + b.slowdown[device] if s.messages[device] > 0 else 1.0

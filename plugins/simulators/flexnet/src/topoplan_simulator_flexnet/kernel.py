"""The event loop of FlexNet's simulator.

Numbers below T, how many tasks the graph has, are its tasks.  An all-reduce of several members adds the flows of its
rings and a *collector*, which ends the all-reduce once all of them have arrived.  Transfers and flows are *messages*.

There are four events, one function each: a segment of a message leaves (`_send_segment`), an all-reduce begins
(`_begin_rings`), all flows of one have arrived (`_end_rings`), and a device takes up a task (`_compute`).

Invariants between two events, which tests check after each of them (docs/simulation.md):

1. The queue holds every number once that waits for nothing and has not ended, and no other, at its ``ready`` time.
   (An all-reduce under way is no entry: its collector stands for it.)
2. ``waits`` is how many predecessors of a task, or flows of a collector, have not ended.
3. Times of events never fall, nor do ``link_free`` and ``device_free``.
4. ``link_bytes`` are the bytes that messages have sent, over all links of their paths.
5. A task that has ended began when or after all its predecessors ended, and ended no earlier than it began.
6. Numbers are given in the order of the events: a collector, then its flows, member by member.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import inline_kernel, interrupted, kernel
from topoplan_engine.network.tables import PathColumns, RingColumns, Traffic
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_simulator_flexnet.bounds import flow_bytes
from topoplan_simulator_flexnet.queue import Queue, pop, push, queue_of

__all__ = ["ALL_EVENTS", "Prepared", "State", "advance", "initial_state"]

#: More events than any iteration has.
ALL_EVENTS = 1 << 62
#: Events between two looks for a signal, less one.
_ASK = (1 << 18) - 1
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


class Prepared(NamedTuple):
    """What the kernel reads; times in milliseconds, bandwidths in bytes per millisecond.

    Attributes:
        tasks, traffic, paths, rings: columns of the task graph and of its network.
        first_member: (T,) device of the first member of each all-reduce, which collects its flows; -1 for other tasks.
        n_devices: number of devices.
        segment: bytes of a segment.
    """

    tasks: TaskColumns
    traffic: Traffic
    paths: PathColumns
    rings: RingColumns
    first_member: I32
    n_devices: int
    segment: int


class State(NamedTuple):
    """What the events change; times in milliseconds.  N counts tasks, flows and collectors.

    Attributes:
        ready: (N,) when what it waited for had ended; of a message under way, when its next segment can leave.
        began: (N,) when it began; -1 before, and for collectors.
        waits: (N,) predecessors, or flows, that have not ended.
        bytes_left: (N,) of a message: bytes that have not left.
        path_first, path_last: (N,) of a message: its links are ``paths.links[path_first:path_last]``.
        owner: (N,) collector of a flow, all-reduce of a collector; -1 for tasks.
        finish: (T,) when each task ended; -1 before.
        link_free, device_free: (E,), (D,) until when each is busy.
        link_bytes: (E,) bytes that crossed each link.
        segment_time: (E,) milliseconds of a whole segment on each link.
        made: (1,) numbers given so far.
        makespan: (1,) when the last of all that has ended ended.
        queue: numbers that wait for nothing, by ``ready``.
    """

    ready: F64
    began: F64
    waits: I32
    bytes_left: I64
    path_first: I64
    path_last: I64
    owner: I32
    finish: F64
    link_free: F64
    device_free: F64
    link_bytes: F64
    segment_time: F64
    made: I64
    makespan: F64
    queue: Queue


def initial_state(prepared: Prepared) -> State:
    """Return the state before the first event, with room for all flows and collectors."""
    tasks, traffic, paths, rings = prepared.tasks, prepared.traffic, prepared.paths, prepared.rings
    n_tasks, n_links = len(tasks.kind), len(paths.bandwidth)
    group = traffic.ring[traffic.ring >= 0]
    group = group[rings.members[group] > 1]
    total = n_tasks + int((rings.members[group].astype(np.int64) * rings.parallel[group] + 1).sum())
    transfers = np.flatnonzero(tasks.kind == _TRANSFER)
    path = paths.row_ptr[traffic.row[transfers]]
    waits = np.zeros(total, np.int32)
    waits[:n_tasks] = tasks.preds
    bytes_left, path_first, path_last = np.zeros((3, total), np.int64)
    bytes_left[transfers] = tasks.size[transfers]
    path_first[transfers], path_last[transfers] = paths.path_ptr[path], paths.path_ptr[path + 1]
    return State(
        ready=np.zeros(total),
        began=np.full(total, -1.0),
        waits=waits,
        bytes_left=bytes_left,
        path_first=path_first,
        path_last=path_last,
        owner=np.full(total, -1, np.int32),
        finish=np.full(n_tasks, -1.0),
        link_free=np.zeros(n_links),
        device_free=np.zeros(prepared.n_devices),
        link_bytes=np.zeros(n_links),
        segment_time=prepared.segment / paths.bandwidth,
        made=np.array([n_tasks]),
        makespan=np.zeros(1),
        queue=queue_of(np.flatnonzero(tasks.preds == 0), total + 1),
    )


@kernel
def advance(p: Prepared, s: State, time_to_end: F64, stop: float, most: int) -> int:
    """Process up to ``most`` events; return how many there were, -1 if the user has interrupted.

    Args:
        p, s: what to run, and its state.
        time_to_end: (T,) milliseconds from the start of each task to the end of all, at least; unused if ``stop`` is
            infinite.
        stop: milliseconds; once the end is proven to come no earlier, the makespan becomes infinite and this returns.
    """
    n_tasks = len(p.tasks.kind)
    events = 0
    while s.queue.length[0] > 0 and events < most:
        number = pop(s.queue)
        events += 1
        if events & _ASK == 0 and interrupted():
            return -1
        begins = number < n_tasks and s.began[number] < 0
        if stop < np.inf and begins and s.ready[number] + time_to_end[number] >= stop:
            s.makespan[0] = np.inf
            return events
        kind = p.tasks.kind[number] if number < n_tasks else -1
        if kind == _TRANSFER or s.path_last[number] > s.path_first[number]:
            _send_segment(p, s, number)
        elif kind == _COLLECTIVE:
            _begin_rings(p, s, number)
        elif kind >= 0:
            _compute(p, s, number)
        else:
            _end_rings(p, s, number)
    return events


@inline_kernel
def _send_segment(p: Prepared, s: State, message: int) -> None:
    """Let the next segment of a message cross all links of its path; its last one ends the message."""
    sent = min(s.bytes_left[message], p.segment)
    s.bytes_left[message] -= sent
    first, last = s.path_first[message], s.path_last[message]
    head = end = first_began = first_ended = s.ready[message]
    for hop in range(first, last):
        link = p.paths.links[hop]
        began = max(s.link_free[link], head)
        head = began + p.paths.latency[link]
        ended = head + (s.segment_time[link] if sent == p.segment else sent / p.paths.bandwidth[link])
        s.link_free[link] = ended
        s.link_bytes[link] += sent
        if hop == first:
            first_began, first_ended = began, ended
        end = max(end, ended)
    if s.began[message] < 0:
        s.began[message] = first_began
    if s.bytes_left[message] > 0 and last > first:
        s.ready[message] = first_ended
        push(s.queue, first_ended, message)
    elif message < len(p.tasks.kind):
        _finish(p, s, message, end)
    else:
        s.makespan[0] = max(s.makespan[0], end)
        _release(s, s.owner[message], end)


@inline_kernel
def _begin_rings(p: Prepared, s: State, task: int) -> None:
    """Begin an all-reduce: add its collector and the flows of its rings; one of one member ends at once."""
    s.began[task] = s.ready[task]
    group = p.traffic.ring[task]
    members, parallel = p.rings.members[group], p.rings.parallel[group]
    if members == 1:
        _finish(p, s, task, s.ready[task])
        return
    released = s.ready[task] + p.tasks.seconds[task]
    volume = flow_bytes(p.tasks.size[task], p.rings.ranks[group], parallel)
    collector = s.made[0]
    s.owner[collector], s.waits[collector] = task, members * parallel
    flow = collector + 1
    for member in range(members):
        for ring in range(parallel):
            path = p.paths.row_ptr[p.rings.rows[p.rings.first[group] + ring * members + member]]
            s.path_first[flow], s.path_last[flow] = p.paths.path_ptr[path], p.paths.path_ptr[path + 1]
            s.bytes_left[flow], s.owner[flow], s.ready[flow] = volume, collector, released
            push(s.queue, released, flow)
            flow += 1
    s.made[0] = flow


@inline_kernel
def _end_rings(p: Prepared, s: State, collector: int) -> None:
    """End an all-reduce whose flows have all arrived, once the device of its first member is free."""
    task = s.owner[collector]
    device = p.first_member[task]
    end = max(s.device_free[device], s.ready[collector])
    s.device_free[device] = end
    _finish(p, s, task, end)


@inline_kernel
def _compute(p: Prepared, s: State, task: int) -> None:
    """Run a compute task after all that its device has taken up before."""
    device = p.tasks.device[task]
    s.began[task] = max(s.device_free[device], s.ready[task])
    end = s.began[task] + p.tasks.seconds[task]
    s.device_free[device] = end
    _finish(p, s, task, end)


@inline_kernel
def _finish(p: Prepared, s: State, task: int, end: float) -> None:
    """End a task of the graph, and queue the successors that waited for it alone."""
    s.makespan[0] = max(s.makespan[0], end)
    s.finish[task] = end
    for i in range(p.tasks.succ_ptr[task], p.tasks.succ_ptr[task + 1]):
        _release(s, p.tasks.succ[i], end)


@inline_kernel
def _release(s: State, number: int, end: float) -> None:
    """Let a task or a collector wait for one less, which ended at ``end``; queue it if that was the last."""
    s.ready[number] = max(s.ready[number], end)
    s.waits[number] -= 1
    if s.waits[number] == 0:
        push(s.queue, s.ready[number], number)

"""Entities of the fluid model: what flows, through which links, with which latencies.

Data flow: `build` turns the tasks of a task graph, and the rows and rings that a `Network` found for them, into
`Entities`; `topoplan.simulate.fluid_kernel` runs them.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.simulate.columns import TaskColumns
from topoplan.simulate.network import LOAD, PathColumns, RingColumns, Traffic
from topoplan.taskgraph import TaskKind

__all__ = ["PACKET", "Entities", "alone", "build", "path_times"]

#: Bytes of a packet.
PACKET = 8936
_SMALL = 9000
_TRANSFER = int(TaskKind.TRANSFER)
_ALLREDUCE = int(TaskKind.ALLREDUCE)


class Entities(NamedTuple):
    """What flows: a transfer, a coupled ring, or one member's flow on a stepped ring.

    Attributes:
        of_task: (T+1,) entities of task ``t`` are ``of_task[t] .. of_task[t+1]``.
        task: (N,) task that it belongs to.
        row: (N,) row of paths of which it draws one; -1 for a coupled ring.
        ring: (N,) row of ``RingColumns.load_ptr`` of a coupled ring; -1 for the others.
        slot_ptr: (N+1,) running sum of the links that each can load.
        volume: (N,) bytes that flow before it ends (for a stepped flow, in one round).
        lead, trail: (N,) seconds before it flows and after its last byte left, of a coupled ring.
        fastest: (N,) bytes/s that it never exceeds.
        rounds: (N,) how often the flows of a stepped ring start anew; 1 for the others.
        mates: (N,) on the first flow of a ring, how many flows wait for each other; 0 on its others.
    """

    of_task: I32
    task: I32
    row: I32
    ring: I64
    slot_ptr: I64
    volume: F64
    lead: F64
    trail: F64
    fastest: F64
    rounds: I32
    mates: I32


@numba.njit(cache=True)
def build(
    tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns, stepped: bool
) -> tuple[I32, I32, I32, I64, I64, F64, F64, F64, F64, I32, I32]:
    """List the entities of all tasks, in the order of the tasks; the columns of `Entities`."""
    n_tasks = len(tasks.kind)
    of_task = np.zeros(n_tasks + 1, np.int32)
    for t in range(n_tasks):
        made = 0
        if tasks.kind[t] == _TRANSFER:
            made = 1
        elif tasks.kind[t] == _ALLREDUCE:
            g = traffic.ring[t]
            if rings.members[g] > 1:
                made = rings.parallel[g] * (rings.members[g] if stepped else 1)
        of_task[t + 1] = of_task[t] + made

    count = of_task[n_tasks]
    task = np.empty(count, np.int32)
    row = np.full(count, -1, np.int32)
    ring = np.full(count, -1, np.int64)
    slot_ptr = np.zeros(count + 1, np.int64)
    volume = np.empty(count)
    lead = np.zeros(count)
    trail = np.zeros(count)
    fastest = np.full(count, np.inf)
    rounds = np.ones(count, np.int32)
    mates = np.ones(count, np.int32)
    for t in range(n_tasks):
        at = of_task[t]
        if of_task[t + 1] == at:
            continue
        if tasks.kind[t] == _TRANSFER:
            task[at] = t
            row[at] = traffic.row[t]
            slot_ptr[at + 1] = slot_ptr[at] + _longest(row[at], paths)
            volume[at] = _packets(float(tasks.size[t])) * PACKET
            continue
        g = traffic.ring[t]
        m = rings.members[g]
        steps, share = _rounds(tasks.size[t], m)
        each = _packets(share / rings.parallel[g]) * PACKET
        for e in range(at, of_task[t + 1]):
            task[e] = t
            if stepped:
                row[e] = rings.rows[rings.first[g] + e - at]
                slot_ptr[e + 1] = slot_ptr[e] + _longest(row[e], paths)
                volume[e] = each
                rounds[e] = steps
                mates[e] = m if (e - at) % m == 0 else 0
                continue
            ring[e] = rings.ring[g] + e - at
            slot_ptr[e + 1] = slot_ptr[e] + rings.load_ptr[ring[e] + 1] - rings.load_ptr[ring[e]]
            volume[e] = each * steps
            flow = rings.first[g] + (e - at) * m
            for i in range(flow, flow + m):
                for path in range(paths.row_ptr[rings.rows[i]], paths.row_ptr[rings.rows[i] + 1]):
                    path_lead, path_trail = path_times(path, paths)
                    lead[e] = max(lead[e], steps * path_lead)
                    trail[e] = max(trail[e], steps * path_trail)
                    fastest[e] = min(fastest[e], paths.slowest[path])
            for i in range(rings.load_ptr[ring[e]], rings.load_ptr[ring[e] + 1]):
                fastest[e] = min(fastest[e], paths.bandwidth[rings.load_links[i]] * LOAD / rings.load[i])
    return of_task, task, row, ring, slot_ptr, volume, lead, trail, fastest, rounds, mates


@numba.njit(cache=True)
def alone(tasks: TaskColumns, entities: Entities, paths: PathColumns) -> F64:
    """(T,) seconds that each task takes at least, from its last dependency on."""
    result = tasks.seconds.copy()
    for t in range(len(result)):
        first, last = entities.of_task[t], entities.of_task[t + 1]
        if tasks.kind[t] == _TRANSFER or (tasks.kind[t] == _ALLREDUCE and first == last):
            result[t] = 0.0
        wait = 0.0
        for e in range(first, last):
            row = entities.row[e]
            if row < 0:
                wait = max(wait, entities.lead[e] + entities.volume[e] / entities.fastest[e] + entities.trail[e])
                continue
            best = np.inf
            for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
                lead, trail = path_times(path, paths)
                best = min(best, lead + entities.volume[e] / paths.slowest[path] + trail)
            wait = max(wait, entities.rounds[e] * best)
        result[t] += wait
    return result


@numba.njit(cache=True, inline="always")
def path_times(path: int, paths: PathColumns) -> tuple[float, float]:
    """Seconds before a message flows over a path, and from its last byte's departure to its arrival."""
    packet = paths.per_byte[path] - 1.0 / paths.slowest[path]
    return paths.delay[path] + paths.per_byte[path], paths.delay[path] + PACKET * max(0.0, packet)


@numba.njit(cache=True, inline="always")
def _longest(row: int, paths: PathColumns) -> int:
    longest = 0
    for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
        longest = max(longest, paths.path_ptr[path + 1] - paths.path_ptr[path])
    return longest


@numba.njit(cache=True, inline="always")
def _packets(size: float) -> float:
    return float(max(1.0, np.ceil(size / PACKET)))


@numba.njit(cache=True, inline="always")
def _rounds(size: int, members: int) -> tuple[int, float]:
    """Rounds of an all-reduce, and the bytes that each member sends in one of them."""
    if size < _SMALL * members:
        return 1, float(size * 2 * (members - 1) // members // members)
    if size * members <= _SMALL * members * 2 * (members - 1):
        return 1, float(size // members)
    return 2 * (members - 1), float(size // members)

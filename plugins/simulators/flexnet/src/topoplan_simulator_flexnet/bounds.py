"""Lower bounds on what messages of FlexNet's simulator take, in its units: milliseconds, bytes per millisecond.

They hold for any order of events: `processing_times` of tasks, `link_uses`, and `guaranteed_bytes` over each link.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import kernel, njit, part
from topoplan_engine.network.tables import PathColumns, RingColumns, Traffic
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.critical_path import LinkUses

__all__ = ["flow_bytes", "guaranteed_bytes", "link_uses", "message_bytes", "processing_times"]

_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


@njit(inline="always")
def flow_bytes(size: int, members: int, rings: int) -> int:
    """Bytes of each flow of an all-reduce of ``size`` bytes."""
    if rings == 1:  # 2 (members - 1) size // members, with factors that stay small
        return 2 * (members - 1) * (size // members) + 2 * (members - 1) * (size % members) // members
    return int(np.ceil(2.0 * (members - 1) * size / members / rings))


@njit()
def guaranteed_bytes(
    kind: I8, op: I32, size: I64, traffic: Traffic, backward: I32, paths: PathColumns, rings: RingColumns
) -> F64:
    """(n, E) bytes of each operator over each link, rings walking the way that loads it less."""
    sent = np.zeros((max(0, op.max()) + 1 if len(op) else 1, len(paths.bandwidth)))
    ways = np.zeros((2, len(paths.bandwidth)))
    for t in range(len(kind)):
        if kind[t] == _TRANSFER:
            path = paths.row_ptr[traffic.row[t]]
            for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                sent[op[t], paths.links[i]] += size[t]
        elif kind[t] == _COLLECTIVE and rings.members[traffic.ring[t]] > 1:
            for way in range(2):
                g = traffic.ring[t] if way == 0 else backward[t]
                n, k = rings.members[g], rings.parallel[g]
                volume = flow_bytes(size[t], rings.ranks[g], k)
                for flow in range(rings.first[g], rings.first[g] + n * k):
                    path = paths.row_ptr[rings.rows[flow]]
                    for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                        ways[way, paths.links[i]] += volume
            for link in range(len(paths.bandwidth)):
                sent[op[t], link] += min(ways[0, link], ways[1, link])
            ways[:] = 0.0
    return sent


def message_bytes(size: I64, members: I32) -> F64:
    """(n,) bytes of messages over an interface: transfers if no ``members`` of all-reduces are given."""
    sent: F64 = np.empty(len(size))
    _message_bytes(size, members, sent)
    return sent


@kernel
def _message_bytes(size: I64, members: I32, sent: F64) -> None:
    for k in range(len(size)):
        sent[k] = float(size[k] if len(members) == 0 else flow_bytes(size[k], members[k], 1))


def link_uses(tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns) -> LinkUses:
    """Return the milliseconds that tasks take links: bytes over bandwidth."""
    return LinkUses(*_link_uses(tasks, traffic, paths, rings))


@njit()
def _link_uses(tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns) -> tuple[I64, I32, F64]:
    n_tasks = len(tasks.kind)
    ptr = np.zeros(n_tasks + 1, np.int64)
    for t in range(n_tasks):
        ptr[t + 1] = ptr[t]
        if tasks.kind[t] == _TRANSFER:
            path = paths.row_ptr[traffic.row[t]]
            ptr[t + 1] += paths.path_ptr[path + 1] - paths.path_ptr[path]
        elif tasks.kind[t] == _COLLECTIVE and rings.members[traffic.ring[t]] > 1:
            g = traffic.ring[t]
            for flow in range(rings.first[g], rings.first[g] + rings.members[g] * rings.parallel[g]):
                path = paths.row_ptr[rings.rows[flow]]
                ptr[t + 1] += paths.path_ptr[path + 1] - paths.path_ptr[path]
    link = np.empty(ptr[n_tasks], np.int32)
    milliseconds = np.empty(ptr[n_tasks])
    count = 0
    for t in range(n_tasks):
        if ptr[t + 1] == ptr[t]:
            continue
        g = traffic.ring[t]
        flows, volume = 1, tasks.size[t]
        if tasks.kind[t] == _COLLECTIVE:
            flows = rings.members[g] * rings.parallel[g]
            volume = flow_bytes(tasks.size[t], rings.ranks[g], rings.parallel[g])
        for flow in range(flows):
            row = traffic.row[t] if tasks.kind[t] == _TRANSFER else rings.rows[rings.first[g] + flow]
            path = paths.row_ptr[row]
            for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                link[count] = paths.links[i]
                milliseconds[count] = volume / paths.bandwidth[link[count]]
                count += 1
    return ptr, link, milliseconds


@njit()
def processing_times(
    tasks: TaskColumns,
    traffic: Traffic,
    paths: PathColumns,
    rings: RingColumns,
    first_member: I32,
    n_devices: int,
    segment: int,
) -> F64:
    """(T,) milliseconds of each task if nothing else runs: each link lets the segments pass one by one."""
    result = np.zeros(len(tasks.kind))
    for t in range(len(tasks.kind)):
        if tasks.kind[t] == _TRANSFER:
            result[t] = _message(traffic.row[t], tasks.size[t], paths, segment)
        elif tasks.kind[t] == _COLLECTIVE:
            g = traffic.ring[t]
            n, k = rings.members[g], rings.parallel[g]
            if n > 1:
                volume = flow_bytes(tasks.size[t], rings.ranks[g], k)
                for flow in range(rings.first[g], rings.first[g] + n * k):
                    result[t] = max(result[t], _message(rings.rows[flow], volume, paths, segment))
                result[t] += tasks.seconds[t]
        else:
            result[t] = tasks.seconds[t]
    return result


@part()
def _message(row: int, size: int, paths: PathColumns, segment: int) -> float:
    path = paths.row_ptr[row]
    segments = max(1, (size + segment - 1) // segment)
    longest, head = 0.0, 0.0
    for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
        link = paths.links[i]
        longest = max(longest, head + segments * paths.latency[link] + size / paths.bandwidth[link])
        head += paths.latency[link]
    return longest

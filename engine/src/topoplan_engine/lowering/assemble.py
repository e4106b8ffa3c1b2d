"""The compiled pass that joins pieces into the columns of a task graph.

Order of tasks and edges is FlexNet's (simulator.cc of its TopoOpt version): all forward and backward tasks
by operator and part; then all all-reduces by operator, weight and group; then all transfers by consumer,
input, consumer part and producer part, the forward one before the backward one.  Edges follow the tasks
in the same three passes, and the successors of a task stand in the order in which its edges were made.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from topoplan.model.taskgraph import TaskKind

__all__ = ["assemble"]

_FORWARD, _BACKWARD = int(TaskKind.FORWARD), int(TaskKind.BACKWARD)
_TRANSFER, _COLLECTIVE = int(TaskKind.TRANSFER), int(TaskKind.COLLECTIVE)


@numba.njit(cache=True)
def assemble(
    op_base: Any,
    devices: Any,
    part_op: Any,
    forward: Any,
    backward: Any,
    group_op: Any,
    part_ptr: Any,
    group_parts: Any,
    group_bytes: Any,
    group_seconds: Any,
    edge_ptr: Any,
    edge_src_op: Any,
    edge_dst_op: Any,
    pair_src: Any,
    pair_dst: Any,
    pair_size: Any,
    pair_local: Any,
) -> Any:
    """Join pieces.

    Args:
        op_base: (n_ops+1,) int32, parts before each operator.
        devices, part_op, forward, backward: (parts,) columns of all parts, operator by operator.
        group_op, group_bytes, group_seconds: (G,) columns of all all-reduces.
        part_ptr, group_parts: compressed rows, parts (numbered within their operator) of each all-reduce.
        edge_ptr: (m+1,) rows of each edge in the ``pair_`` columns; edge_src_op, edge_dst_op: (m,).
        pair_src, pair_dst, pair_size, pair_local: columns of all pairs of parts, edge by edge.

    Returns:
        Columns ``kind, device, seconds, size, src, dst, group, op`` and ``succ_ptr, succ``.
    """
    parts, groups, pairs = len(devices), len(group_bytes), len(pair_src)
    remote = 0
    for k in range(pairs):
        if not pair_local[k]:
            remote += 1
    tasks = 2 * parts + groups + 2 * remote
    kind = np.empty(tasks, np.int8)
    device = np.full(tasks, -1, np.int32)
    seconds = np.zeros(tasks, np.float64)
    size = np.zeros(tasks, np.int64)
    src = np.full(tasks, -1, np.int32)
    dst = np.full(tasks, -1, np.int32)
    group = np.full(tasks, -1, np.int32)
    op = np.empty(tasks, np.int32)
    degree = np.zeros(tasks + 1, np.int32)

    for p in range(parts):
        f = 2 * p
        kind[f], kind[f + 1] = _FORWARD, _BACKWARD
        device[f] = device[f + 1] = devices[p]
        seconds[f], seconds[f + 1] = forward[p], backward[p]
        op[f] = op[f + 1] = part_op[p]
        degree[f + 1] += 1
    first_group = 2 * parts
    for g in range(groups):
        t = first_group + g
        kind[t] = _COLLECTIVE
        seconds[t] = group_seconds[g]
        size[t] = group_bytes[g]
        group[t] = g
        op[t] = group_op[g]
        for k in range(part_ptr[g], part_ptr[g + 1]):
            degree[2 * (op_base[group_op[g]] + group_parts[k]) + 2] += 1
    t = first_group + groups
    for e in range(len(edge_src_op)):
        u, v = op_base[edge_src_op[e]], op_base[edge_dst_op[e]]
        for k in range(edge_ptr[e], edge_ptr[e + 1]):
            a, b = u + pair_src[k], v + pair_dst[k]
            degree[2 * a + 1] += 1
            degree[2 * b + 2] += 1
            if pair_local[k]:
                continue
            for way in range(2):
                kind[t] = _TRANSFER
                size[t] = pair_size[k]
                src[t], dst[t] = (devices[a], devices[b]) if way == 0 else (devices[b], devices[a])
                op[t] = edge_dst_op[e]
                degree[t + 1] = 1
                t += 1

    succ_ptr = np.cumsum(degree).astype(np.int32)
    succ = np.empty(succ_ptr[tasks], np.int32)
    at = succ_ptr[:-1].copy()
    for p in range(parts):
        succ[at[2 * p]] = 2 * p + 1
        at[2 * p] += 1
    for g in range(groups):
        base = op_base[group_op[g]]
        for k in range(part_ptr[g], part_ptr[g + 1]):
            b = 2 * (base + group_parts[k]) + 1
            succ[at[b]] = first_group + g
            at[b] += 1
    t = first_group + groups
    for e in range(len(edge_src_op)):
        u, v = op_base[edge_src_op[e]], op_base[edge_dst_op[e]]
        for k in range(edge_ptr[e], edge_ptr[e + 1]):
            a, b = 2 * (u + pair_src[k]), 2 * (v + pair_dst[k])
            if pair_local[k]:
                succ[at[a]], succ[at[b + 1]] = b, a + 1
            else:
                succ[at[a]], succ[at[b + 1]] = t, t + 1
                succ[at[t]], succ[at[t + 1]] = b, a + 1
                t += 2
            at[a] += 1
            at[b + 1] += 1
    return kind, device, seconds, size, src, dst, group, op, succ_ptr, succ

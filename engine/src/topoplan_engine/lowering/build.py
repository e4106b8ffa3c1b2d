"""From a table of parts to the task graph of one iteration: one compiled pass.

Order of tasks and edges is FlexNet's (simulator.cc of its TopoOpt version): all forward and backward tasks
by operator and part; then all all-reduces by operator, weight and group; then all transfers by consumer,
input, consumer part and producer part, the forward one before the backward one.  Edges follow the tasks
in the same three passes, and the successors of a task stand in the order in which its edges were made.

Numbers of tasks, with P parts, G all-reduces and R pairs on different devices:

    2p, 2p + 1                          forward and backward task of part p
    2P + g                              all-reduce g
    2P + G + 2r, 2P + G + 2r + 1        transfers of the r-th of these pairs: to the consumer, and back
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.kernels.jit import inline_kernel, njit, part
from topoplan_engine.lowering.parts import PartTable

__all__ = ["build_taskgraph", "task_columns", "taskgraph_of"]

_FORWARD, _BACKWARD = int(TaskKind.FORWARD), int(TaskKind.BACKWARD)
_TRANSFER, _COLLECTIVE = int(TaskKind.TRANSFER), int(TaskKind.COLLECTIVE)
_ALL_REDUCE = int(Collective.ALL_REDUCE)


class _Columns(NamedTuple):
    """Columns of a `TaskGraph`.

    Each of the three functions that write tasks writes all columns of its kind of tasks, and counts the successors of
    task t in ``succ_ptr[t + 1]``.
    """

    kind: I8
    device: I32
    seconds: F64
    size: I64
    src: I32
    dst: I32
    group: I32
    op: I32
    succ_ptr: I32
    succ: I32
    collective: I8


def build_taskgraph(table: PartTable, op_names: tuple[str, ...], n_devices: int) -> TaskGraph:
    """Return the task graph of one iteration; ``op_names`` and ``n_devices`` are its own."""
    columns = task_columns(tuple(table))
    return taskgraph_of(columns, table.device_ptr, table.group_devices, op_names, n_devices)


def taskgraph_of(
    columns: tuple[Any, ...], group_ptr: I32, group_members: I32, op_names: tuple[str, ...], n_devices: int
) -> TaskGraph:
    """Make a task graph of `task_columns`, which are frozen, and the devices of all-reduces."""
    for column in columns:
        column.setflags(write=False)
    return TaskGraph(
        **_Columns(*columns)._asdict(),
        group_ptr=group_ptr,
        group_members=group_members,
        op_names=op_names,
        n_devices=n_devices,
    )


@njit()
def task_columns(of_table: Any) -> Any:
    """Return the columns of the tasks; ``of_table`` are those of a `PartTable`.

    Both are plain tuples, for one with names takes longer to hand over.
    """
    table = PartTable(*of_table)
    parts, groups, pairs = len(table.device), len(table.group_bytes), len(table.src)
    remote = 0
    for k in range(pairs):
        remote += not table.local[k]
    tasks, edges = 2 * parts + groups + 2 * remote, parts + len(table.group_parts) + 2 * pairs + 2 * remote
    columns = _Columns(
        np.empty(tasks, np.int8),
        np.empty(tasks, np.int32),
        np.empty(tasks),
        np.empty(tasks, np.int64),
        np.empty(tasks, np.int32),
        np.empty(tasks, np.int32),
        np.empty(tasks, np.int32),
        np.empty(tasks, np.int32),
        np.zeros(tasks + 1, np.int32),
        np.empty(edges, np.int32),
        np.full(tasks, -1, np.int8),
    )
    _fill(table, columns, np.empty(tasks, np.int32))
    compute = (columns.kind, columns.device, columns.seconds, columns.size)
    messages = (columns.src, columns.dst, columns.group)
    return (*compute, *messages, columns.op, columns.succ_ptr, columns.succ, columns.collective)


@part(_nrt=False)
def _fill(table: PartTable, columns: _Columns, cursor: I32) -> None:
    """Write all columns; ``cursor`` (T,) is room for the place of each task's next successor."""
    _write_computes(table, columns)
    _write_collectives(table, columns)
    _write_transfers(table, columns)
    for t in range(len(cursor)):
        cursor[t] = columns.succ_ptr[t]
        columns.succ_ptr[t + 1] += columns.succ_ptr[t]
    _write_successors(table, columns.succ, cursor)


@inline_kernel
def _write_computes(table: PartTable, columns: _Columns) -> None:
    """Write the forward and backward tasks; count the edge between them."""
    for p in range(len(table.device)):
        f = 2 * p
        columns.kind[f], columns.kind[f + 1] = _FORWARD, _BACKWARD
        columns.device[f] = columns.device[f + 1] = table.device[p]
        columns.seconds[f], columns.seconds[f + 1] = table.forward[p], table.backward[p]
        columns.op[f] = columns.op[f + 1] = table.op[p]
        for t in range(f, f + 2):
            columns.size[t] = 0
            columns.src[t] = columns.dst[t] = columns.group[t] = -1
        columns.succ_ptr[f + 1] += 1


@inline_kernel
def _write_collectives(table: PartTable, columns: _Columns) -> None:
    """Write the all-reduces; count their edges from backward tasks."""
    first = 2 * len(table.device)
    for g in range(len(table.group_bytes)):
        t = first + g
        columns.kind[t], columns.collective[t] = _COLLECTIVE, _ALL_REDUCE
        columns.device[t] = columns.src[t] = columns.dst[t] = -1
        columns.seconds[t] = table.group_seconds[g]
        columns.size[t] = table.group_bytes[g]
        columns.group[t] = g
        columns.op[t] = table.group_op[g]
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            columns.succ_ptr[2 * (table.op_base[table.group_op[g]] + table.group_parts[k]) + 2] += 1


@inline_kernel
def _write_transfers(table: PartTable, columns: _Columns) -> None:
    """Write the transfers of pairs on different devices; count the edges of all pairs."""
    t = 2 * len(table.device) + len(table.group_bytes)
    for e in range(len(table.edge_src_op)):
        u, v = table.op_base[table.edge_src_op[e]], table.op_base[table.edge_dst_op[e]]
        for k in range(table.edge_ptr[e], table.edge_ptr[e + 1]):
            a, b = u + table.src[k], v + table.dst[k]
            columns.succ_ptr[2 * a + 1] += 1
            columns.succ_ptr[2 * b + 2] += 1
            if table.local[k]:
                continue
            columns.src[t], columns.dst[t] = table.device[a], table.device[b]
            columns.src[t + 1], columns.dst[t + 1] = table.device[b], table.device[a]
            for transfer in range(t, t + 2):
                columns.kind[transfer] = _TRANSFER
                columns.device[transfer] = columns.group[transfer] = -1
                columns.seconds[transfer] = 0.0
                columns.size[transfer] = table.size[k]
                columns.op[transfer] = table.edge_dst_op[e]
                columns.succ_ptr[transfer + 1] = 1
            t += 2


@inline_kernel
def _append(succ: I32, cursor: I32, task: int, successor: int) -> None:
    succ[cursor[task]] = successor
    cursor[task] += 1


@inline_kernel
def _write_successors(table: PartTable, succ: I32, cursor: I32) -> None:
    """Write the edges, in the order in which they were counted; ``cursor`` is left at the end of each row."""
    parts = len(table.device)
    for p in range(parts):
        _append(succ, cursor, 2 * p, 2 * p + 1)
    for g in range(len(table.group_bytes)):
        base = table.op_base[table.group_op[g]]
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            _append(succ, cursor, 2 * (base + table.group_parts[k]) + 1, 2 * parts + g)
    t = 2 * parts + len(table.group_bytes)
    for e in range(len(table.edge_src_op)):
        u, v = table.op_base[table.edge_src_op[e]], table.op_base[table.edge_dst_op[e]]
        for k in range(table.edge_ptr[e], table.edge_ptr[e + 1]):
            a, b = 2 * (u + table.src[k]), 2 * (v + table.dst[k])
            if table.local[k]:
                _append(succ, cursor, a, b)
                _append(succ, cursor, b + 1, a + 1)
                continue
            _append(succ, cursor, a, t)
            _append(succ, cursor, t, b)
            _append(succ, cursor, b + 1, t + 1)
            _append(succ, cursor, t + 1, a + 1)
            t += 2

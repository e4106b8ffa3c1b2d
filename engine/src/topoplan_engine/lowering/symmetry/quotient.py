"""The quotient of an iteration: one task for each class of tasks that nothing tells apart.

Data flow: `Symmetry` holds a `PartTable` and its classes (`topoplan_engine.lowering.symmetry.classes`); `quotient`
sends the representatives through the pass that all parts go through otherwise, and counts what their classes load.
`topoplan_simulator_fluid.quotient` simulates the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.kernels.jit import njit, part
from topoplan_engine.lowering.build import task_columns, taskgraph_of
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.symmetry.classes import Classes
from topoplan_engine.lowering.symmetry.order import row_of

__all__ = ["Quotient", "Symmetry", "quotient"]

#: Places in `task_columns`, and in the columns of all-reduces.
_SRC, _DST = 4, 5
_DEVICE_PTR, _GROUP_DEVICES = 5, 6


class Symmetry(NamedTuple):
    """The parts of one iteration, their classes, and the classes (n_ops,) of their operators."""

    table: PartTable
    classes: Classes
    op_class: U64

    @property
    def worthwhile(self) -> bool:
        """Whether there are enough parts of each class for the quotient to pay."""
        return len(self.classes.part) >= 3 * len(self.classes.first_part)

    @property
    def rejects(self) -> bool:
        """Whether there are enough for the quotient to pay where most iterations are only looked at to be rejected."""
        return len(self.classes.part) >= 2 * len(self.classes.first_part)


class Quotient(NamedTuple):
    """One iteration, reduced to representatives.

    Attributes:
        taskgraph: a task for each class of tasks.
        task, host: (rows,) tasks of ``taskgraph``, ascending, and hosts that represent theirs.
        leaving, entering: (rows,) messages of the task's class that leave and reach the host.
        classes: of the parts, all-reduces and pairs.
    """

    taskgraph: TaskGraph
    task: I64
    host: I32
    leaving: I64
    entering: I64
    classes: Classes


def quotient(symmetry: Symmetry, op_names: tuple[str, ...], n_devices: int) -> Quotient:
    """Return the quotient; ``op_names`` and ``n_devices`` are those of the task graph."""
    table, classes, op_class = symmetry
    columns, group_ptr, group_members, rows = _quotient(tuple(table), (*classes[:-1], 0), op_class)
    taskgraph = taskgraph_of(columns, group_ptr, group_members, op_names, n_devices)
    task, host, leaving, entering = rows
    return Quotient(taskgraph, task, host, leaving, entering, classes)


@njit()
def _quotient(of_table: Any, of_classes: Any, op_class: U64) -> Any:
    """Return the columns of tasks, the devices of all-reduces, and the rows of a `Quotient`.

    The rows are those of all-reduces, then four for each pair of parts on different devices.

    Args:
        of_table: the columns of the table.
        of_classes: those of the classes, whose key is left out: 0.
        op_class: (n_ops,) equal for automorphic operators.
    """
    table, classes = PartTable(*of_table), Classes(*of_classes)
    parts = _reduced_parts(table, classes, op_class)
    op_base, _, op, _, _ = parts
    groups = _reduced_groups(table, classes, op_class, op_base)
    pairs, rows, channels = _reduced_pairs(table, classes, op_base, op)
    columns = task_columns((*parts, *groups, *pairs))
    # All paths are alike, so that any two devices stand for a channel, if only for no other one.
    src, dst = columns[_SRC], columns[_DST]
    first, n_peers = len(src) - len(channels), len(classes.device) - 1
    for k in range(len(channels)):
        a, b = channels[k] // n_peers, channels[k] % n_peers
        src[first + k], dst[first + k] = a, b + (b >= a)
    return columns, groups[_DEVICE_PTR], groups[_GROUP_DEVICES], rows


@part()
def _reduced_parts(table: PartTable, classes: Classes, op_class: U64) -> Any:
    """Columns of a `PartTable` from ``op_base`` to ``backward``; the first of automorphic operators has all parts."""
    count = len(classes.first_part)
    base = np.zeros(len(table.op_base), np.int32)
    device, op = np.empty(count, np.int32), np.empty(count, np.int32)
    forward, backward = np.empty(count), np.empty(count)
    for c in range(count):
        part = classes.first_part[c]
        device[c], op[c] = classes.device[table.device[part]], op_class[table.op[part]]
        forward[c], backward[c] = table.forward[part], table.backward[part]
        base[op[c] + 1] += 1
    for k in range(len(base) - 1):
        base[k + 1] += base[k]
    return base, device, op, forward, backward


@part()
def _reduced_groups(table: PartTable, classes: Classes, op_class: U64, base: I32) -> Any:
    """Columns of a `PartTable` from ``group_op`` to ``group_devices``.

    A class of parts enters an all-reduce once, however many of its parts do; classes are in ascending order.  Any
    devices stand for its own, if only there are as many.
    """
    groups = classes.first_group
    count = len(groups)
    op, size, seconds = np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count)
    part_ptr, device_ptr = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
    n_parts = 0
    for g in range(count):
        n_parts += table.part_ptr[groups[g] + 1] - table.part_ptr[groups[g]]
        device_ptr[g + 1] = device_ptr[g] + table.device_ptr[groups[g] + 1] - table.device_ptr[groups[g]]
    parts, devices = np.empty(n_parts, np.int32), np.empty(device_ptr[count], np.int32)
    entered = np.full(len(classes.first_part), -1, np.int32)  # the last all-reduce that each class has entered
    for g in range(count):
        whole = groups[g]
        op[g], size[g] = op_class[table.group_op[whole]], table.group_bytes[whole]
        seconds[g] = table.group_seconds[whole]
        first = end = part_ptr[g]
        for k in range(table.part_ptr[whole], table.part_ptr[whole + 1]):
            c = classes.part[table.op_base[table.group_op[whole]] + table.group_parts[k]]
            if entered[c] != g:
                entered[c] = g
                place = end
                while place > first and parts[place - 1] > c - base[op[g]]:
                    parts[place] = parts[place - 1]
                    place -= 1
                parts[place] = c - base[op[g]]
                end += 1
        part_ptr[g + 1] = end
        for k in range(device_ptr[g + 1] - device_ptr[g]):
            devices[device_ptr[g] + k] = k
    return op, size, seconds, part_ptr, parts[: part_ptr[count]].copy(), device_ptr, devices


@part()
def _reduced_pairs(table: PartTable, classes: Classes, base: I32, op: I32) -> Any:
    """Columns of a `PartTable` from ``edge_ptr``, every pair being an edge of its own; the rows of a `Quotient`.

    The last result is (transfers,) the channel of each transfer, as `Classes.channels`.
    """
    pairs = classes.first_pair
    count = len(pairs)
    edge_ptr, edge_src, edge_dst = np.zeros(count + 1, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    src, dst = np.empty(count, np.int32), np.empty(count, np.int32)
    size, local = np.empty(count, np.int64), np.empty(count, np.bool_)
    for k in range(count):
        size[k], local[k] = table.size[pairs[k]], table.local[pairs[k]]
    loads, first_group, n_rows = len(classes.load_group), 2 * len(op), len(classes.load_group)
    for k in range(count):
        n_rows += 0 if local[k] else 4
    task, host = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
    leaving, entering = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    channels = np.empty((n_rows - loads) // 2, np.int32)
    for r in range(loads):
        task[r], host[r] = first_group + classes.load_group[r], classes.load_device[r]
        leaving[r] = entering[r] = classes.load_count[r]
    row, transfer = loads, first_group + len(classes.first_group)
    for k in range(count):
        edge = row_of(table.edge_ptr, pairs[k])
        producer = table.op_base[table.edge_src_op[edge]] + table.src[pairs[k]]
        consumer = table.op_base[table.edge_dst_op[edge]] + table.dst[pairs[k]]
        a, b = classes.part[producer], classes.part[consumer]
        edge_ptr[k + 1] = k + 1
        edge_src[k], edge_dst[k] = op[a], op[b]
        src[k], dst[k] = a - base[op[a]], b - base[op[b]]
        if local[k]:
            continue
        source, target = classes.device[table.device[producer]], classes.device[table.device[consumer]]
        host[row], host[row + 1], host[row + 2], host[row + 3] = source, target, target, source
        task[row] = task[row + 1] = transfer
        task[row + 2] = task[row + 3] = transfer + 1
        leaving[row] = entering[row + 3] = classes.sends[k]
        entering[row + 1] = leaving[row + 2] = classes.receives[k]
        channels[(row - loads) // 2] = classes.channels[k, 0]
        channels[(row - loads) // 2 + 1] = classes.channels[k, 1]
        row, transfer = row + 4, transfer + 2
    return (edge_ptr, edge_src, edge_dst, src, dst, size, local), (task, host, leaving, entering), channels

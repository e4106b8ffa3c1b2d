"""The quotient of an iteration: one task for each class of tasks that nothing tells apart.

Data flow: `Symmetry` holds a `PartTable` and its classes (`topoplan_engine.lowering.symmetry.refinement`); `quotient`
sends the representatives through the pass that all parts go through otherwise, and counts what their classes load.
`topoplan_simulator_fluid.quotient` simulates the result.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.csr import indptr, select
from topoplan_engine.lowering.build import build_taskgraph
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.symmetry.refinement import Classes

__all__ = ["Quotient", "Symmetry", "quotient"]


class Symmetry(NamedTuple):
    """The parts of one iteration, and their classes."""

    table: PartTable
    classes: Classes

    @property
    def worthwhile(self) -> bool:
        """Whether there are enough parts of each class for the quotient to pay."""
        return len(self.classes.part) >= 3 * len(self.classes.first_part)


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
    table, classes = symmetry
    pairs = classes.first_pair
    edge = (np.searchsorted(table.edge_ptr, pairs, side="right") - 1).astype(np.int32)
    producers = table.src[pairs] + table.op_base[table.edge_src_op[edge]]
    consumers = table.dst[pairs] + table.op_base[table.edge_dst_op[edge]]
    reduced = _representatives(table, classes, producers, consumers)
    taskgraph = build_taskgraph(reduced, op_names, n_devices)
    # A transfer runs between the devices of the pair that represents its class, or that represent its channel, which
    # need not be those of the parts that represent theirs.
    remote = ~reduced.local
    src_device, dst_device = table.device[producers[remote]], table.device[consumers[remote]]
    first_group_task = 2 * len(reduced.device)
    first_transfer = first_group_task + len(reduced.group_op)
    src, dst = taskgraph.src.copy(), taskgraph.dst.copy()
    src[first_transfer:] = classes.ends[remote][:, [0, 2]].ravel()
    dst[first_transfer:] = classes.ends[remote][:, [1, 3]].ravel()
    source, target = classes.first_device[src_device], classes.first_device[dst_device]
    sends, receives = classes.sends[remote], classes.receives[remote]
    none = np.zeros(len(sends), np.int64)
    transfers = first_transfer + np.repeat(np.arange(2 * len(source)), 2)
    return Quotient(
        taskgraph=attrs.evolve(taskgraph, src=src, dst=dst),
        task=np.concatenate([first_group_task + classes.load_group, transfers]),
        host=np.concatenate([classes.load_device, np.stack([source, target, target, source], axis=1).ravel()]),
        leaving=np.concatenate([classes.load_count, np.stack([sends, none, receives, none], axis=1).ravel()]),
        entering=np.concatenate([classes.load_count, np.stack([none, receives, none, sends], axis=1).ravel()]),
        classes=classes,
    )


def _representatives(table: PartTable, classes: Classes, producers: I32, consumers: I32) -> PartTable:
    """Return the representatives of all classes as a table, whose parts are the classes.

    Args:
        table, classes: of the iteration.
        producers, consumers: parts at the ends of the pairs that represent theirs.
    """
    parts, groups, pairs = classes.first_part, classes.first_group, classes.first_pair
    op = table.op[parts]
    base = np.searchsorted(op, np.arange(len(table.op_base))).astype(np.int32)
    src, dst = classes.part[producers], classes.part[consumers]
    # A class of parts enters an all-reduce once, however many of its parts do.
    group, row = select(table.part_ptr, groups)
    member = classes.part[table.group_parts[row] + table.op_base[table.group_op[groups[group]]]]
    members = np.unique(group * np.int64(len(parts)) + member)
    group, member = members // len(parts), members % len(parts)
    _, device_row = select(table.device_ptr, groups)
    return PartTable(
        op_base=base,
        device=classes.first_device[table.device[parts]],
        op=op,
        forward=table.forward[parts],
        backward=table.backward[parts],
        group_op=table.group_op[groups],
        group_bytes=table.group_bytes[groups],
        group_seconds=table.group_seconds[groups],
        part_ptr=indptr(np.bincount(group, minlength=len(groups)), np.int32),
        group_parts=(member - base[table.group_op[groups[group]]]).astype(np.int32),
        device_ptr=indptr(np.diff(table.device_ptr)[groups], np.int32),
        group_devices=table.group_devices[device_row],
        edge_ptr=np.arange(len(pairs) + 1, dtype=np.int32),
        edge_src_op=op[src],
        edge_dst_op=op[dst],
        src=src - base[op[src]],
        dst=dst - base[op[dst]],
        size=table.size[pairs],
        local=table.local[pairs],
    )

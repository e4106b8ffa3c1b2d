"""Folding: what nothing tells apart is one thing.

On a network that treats all hosts alike, most strategies leave many parts of operators in the same situation: same
times, same neighbours, devices with the same load.  `topoplan_engine.lowering.refine` finds classes of them such that
each part of a class sees as many neighbours of every class as any other.  Flows that share links by their number then
keep one pace throughout a class, so that it is enough to simulate a representative of each
(`topoplan_simulator_fluid.folded`).

Data flow: `parts_of` says what tells the joined parts apart by themselves, `classes` refines that, and `folded`
sends the representatives through the pass that unfolded parts go through.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan.csr import indptr, select
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.lowering.join import Joined, taskgraph_of
from topoplan_engine.lowering.refine import Classes, Columns, tell

__all__ = ["Alike", "Folded", "folded", "parts_of"]


class Alike(NamedTuple):
    """One iteration, and what nothing tells apart in it."""

    joined: Joined
    classes: Classes

    @property
    def worth_folding(self) -> bool:
        """Whether there are enough parts of each class for folding to pay."""
        return len(self.classes.part) >= 3 * len(self.classes.first_part)


class Folded(NamedTuple):
    """One iteration, folded.

    Attributes:
        taskgraph: a task for each class of tasks.
        task, host: (rows,) tasks of ``taskgraph``, ascending, and hosts that stand for theirs.
        leaving, entering: (rows,) messages of the task's class that leave and reach the host.
        classes: of the parts, all-reduces and pairs.
    """

    taskgraph: TaskGraph
    task: I64
    host: I32
    leaving: I64
    entering: I64
    classes: Classes


def parts_of(joined: Joined, op_class: U64, edge_class: U64) -> Columns:
    """Say what tells parts, all-reduces and pairs apart by themselves.

    Args:
        joined: columns of the strategy.
        op_class, edge_class: (n_ops,) and (m,), equal where operators and edges are interchangeable.
    """
    columns = Columns(
        device=joined.device,
        hash=np.empty(len(joined.device), np.uint64),
        part_ptr=joined.part_ptr,
        group_parts=np.empty(len(joined.group_parts), np.int32),
        device_ptr=joined.device_ptr,
        group_devices=joined.group_devices,
        group_hash=np.empty(len(joined.group_bytes), np.uint64),
        src=np.empty(len(joined.src), np.int32),
        dst=np.empty(len(joined.dst), np.int32),
        pair_hash=np.empty(len(joined.src), np.uint64),
    )
    seconds = [column.view(np.uint64) for column in (joined.forward, joined.backward, joined.group_seconds)]
    tell(
        joined.op_base, joined.op, *seconds, joined.group_op, joined.group_bytes, joined.part_ptr, joined.group_parts,
        joined.edge_ptr, joined.edge_src_op, joined.edge_dst_op, joined.src, joined.dst, joined.size, joined.local,
        op_class, edge_class, columns,
    )  # fmt: skip
    return columns


def folded(joined: Joined, found: Classes, op_names: tuple[str, ...], n_devices: int) -> Folded:
    """Make the task graph of the representatives."""
    parts, groups, pairs = found.first_part, found.first_group, found.first_pair
    op = joined.op[parts]
    base = np.searchsorted(op, np.arange(len(joined.op_base))).astype(np.int32)
    edge = (np.searchsorted(joined.edge_ptr, pairs, side="right") - 1).astype(np.int32)
    ends = [joined.edge_src_op[edge], joined.edge_dst_op[edge]]
    pair_parts = [joined.src[pairs] + joined.op_base[ends[0]], joined.dst[pairs] + joined.op_base[ends[1]]]
    pair_class = [found.part[part] for part in pair_parts]
    owner, row = select(joined.part_ptr, groups)
    member = found.part[joined.group_parts[row] + joined.op_base[joined.group_op[groups[owner]]]]
    met = np.unique(owner * np.int64(len(parts)) + member)
    owner, member = met // len(parts), met % len(parts)
    _, row = select(joined.device_ptr, groups)
    short = Joined(
        op_base=base,
        device=found.first_device[joined.device[parts]],
        op=op,
        forward=joined.forward[parts],
        backward=joined.backward[parts],
        group_op=joined.group_op[groups],
        group_bytes=joined.group_bytes[groups],
        group_seconds=joined.group_seconds[groups],
        part_ptr=indptr(np.bincount(owner, minlength=len(groups)), np.int32),
        group_parts=(member - base[joined.group_op[groups[owner]]]).astype(np.int32),
        device_ptr=indptr(np.diff(joined.device_ptr)[groups], np.int32),
        group_devices=joined.group_devices[row],
        edge_ptr=np.arange(len(pairs) + 1, dtype=np.int32),
        edge_src_op=op[pair_class[0]],
        edge_dst_op=op[pair_class[1]],
        src=pair_class[0] - base[op[pair_class[0]]],
        dst=pair_class[1] - base[op[pair_class[1]]],
        size=joined.size[pairs],
        local=joined.local[pairs],
    )
    taskgraph = taskgraph_of(short, op_names, n_devices)
    # A transfer runs between the devices of the pair that stands for its class, which need not be those of
    # the parts that stand for theirs.
    apart = ~short.local
    from_, to = (joined.device[part[apart]] for part in pair_parts)
    ways = np.stack([from_, to], axis=1).ravel(), np.stack([to, from_], axis=1).ravel()
    first_task, first_transfer = 2 * len(parts), 2 * len(parts) + len(groups)
    src, dst = taskgraph.src.copy(), taskgraph.dst.copy()
    src[first_transfer:], dst[first_transfer:] = ways
    source, target = found.first_device[from_], found.first_device[to]
    sends, receives, none = found.sends[apart], found.receives[apart], np.zeros(int(apart.sum()), np.int64)
    transfer = first_transfer + np.repeat(np.arange(2 * len(source)), 2)
    return Folded(
        attrs.evolve(taskgraph, src=src, dst=dst),
        np.concatenate([first_task + found.load_group, transfer]),
        np.concatenate([found.load_device, np.stack([source, target, target, source], axis=1).ravel()]),
        np.concatenate([found.load_count, np.stack([sends, none, receives, none], axis=1).ravel()]),
        np.concatenate([found.load_count, np.stack([none, receives, none, sends], axis=1).ravel()]),
        found,
    )

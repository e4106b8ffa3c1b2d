"""The task graph: one iteration, lowered to compute, transfer and collective tasks with dependencies.

Columns, one row per task, in creation order: this is what simulators run and exporters write.  Lowering
makes it from a strategy; importers read it from files of other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, I8, I32, I64, OneLine, f64, i8, i32, i64
from topoplan.errors import TopoplanError

__all__ = ["LONGEST_SECONDS", "MOST_BYTES", "Collective", "TaskGraph", "TaskKind"]

#: Seconds of the longest task (eleven days), and bytes of the largest message: clocks and sums stay exact.
LONGEST_SECONDS, MOST_BYTES = 1e6, 2**50


class TaskKind(IntEnum):
    """What a task does."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2
    BARRIER = 3
    TRANSFER = 4
    COLLECTIVE = 5


class Collective(IntEnum):
    """What a collective does, in the words of NCCL and astra-sim; some may be run as transfers between two joins."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_TO_ALL = 3
    BROADCAST = 4
    JOIN = 5
    """Ends when all that it waits for has ended: no bytes, no device, one member to be listed under."""

    @property
    def label(self) -> str:
        """The name in a sentence: ``all-reduce``."""
        return self.name.lower().replace("_", "-")


@attrs.frozen(kw_only=True, repr=False)
class TaskGraph(OneLine):
    """Tasks and their order.

    Attributes:
        kind: (T,) `TaskKind`.
        device: (T,) device that a compute task occupies; -1 for transfers and collectives.
        seconds: (T,) run time of a compute task; for a collective, the time inside the hosts that
            passes between its last dependency and its first byte.  Unused (0) for transfers.
        size: (T,) bytes of a transfer, or of the tensor shard that an all-reduce sums; half the bytes of the tensor
            of an all-gather or a reduce-scatter, so that two of them put as much on every link as one all-reduce
            of ``size``; of the tensor of one member of an all-to-all; 0 for compute and joins.
        src, dst: (T,) devices of a transfer; -1 otherwise.
        group: (T,) row of ``group_ptr`` of a collective; -1 otherwise.
        group_ptr, group_members: compressed rows, devices of each group in ring order.
        shares: for each of the first groups, factors of what its all-to-alls send from member to member over an equal
            part: a row for each of so many equal runs of senders, in it a number for each run of receivers; () for 1.
        succ_ptr, succ: compressed rows, successors of each task as edges were made; one given twice counts twice.
        op: (T,) operator that a task belongs to (for a transfer, the consumer); -1 where unknown.
        op_names: names that ``op`` points into.
        micro_batch: (T,) micro-batch of each task, -1 for collectives of all; None where the batch is not cut.
        collective: (T,) `Collective`, -1 for tasks that are none; all are all-reduces unless given.
        n_devices: devices 0 .. n_devices-1 may occur.
        slowdown: (n_devices,) share by which each computes slower while messages of its are on the way; empty for 0.
        foreign: columns that an importer read and only its own exporter needs (identifiers, tables).
    """

    kind: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
    device: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    seconds: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    size: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    src: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    dst: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    group: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    group_ptr: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    group_members: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    succ_ptr: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    succ: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    op: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    op_names: tuple[str, ...] = ()
    n_devices: int
    micro_batch: I32 | None = attrs.field(default=None, converter=attrs.converters.optional(i32), eq=ARRAY_EQ)
    shares: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...] = ()
    slowdown: F64 = attrs.field(default=(), converter=f64, eq=ARRAY_EQ)
    foreign: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)
    collective: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)

    @collective.default
    def _all_reduces(self) -> I8:
        return i8(np.where(self.kind == TaskKind.COLLECTIVE, Collective.ALL_REDUCE, -1))

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.kind)

    @property
    def n_groups(self) -> int:
        """Number of groups of collectives."""
        return len(self.group_ptr) - 1

    def members(self, task: int) -> I32:
        """Devices of the collective ``task``, in ring order."""
        g = self.group[task]
        return self.group_members[self.group_ptr[g] : self.group_ptr[g + 1]]

    def successors(self, task: int) -> I32:
        """Successors of ``task``, in creation order."""
        return self.succ[self.succ_ptr[task] : self.succ_ptr[task + 1]]

    def edges(self) -> tuple[I64, I64]:
        """Return both ends of every edge, in the order of ``succ``."""
        return _owners(self.succ_ptr), self.succ.astype(np.int64)

    def predecessor_counts(self) -> I32:
        """(T,) how many edges enter each task."""
        return np.bincount(self.succ, minlength=self.n_tasks).astype(np.int32)

    def label(self, task: int) -> str:
        """Describe a task for a message, e.g. ``task 17 (forward of conv1 on device 3)``."""
        kind = TaskKind(self.kind[task])
        name = self.op_names[self.op[task]] if 0 <= self.op[task] < len(self.op_names) else ""
        what = Collective(self.collective[task]).label if kind is TaskKind.COLLECTIVE else kind.name.lower()
        what += f" of {name}" if name else ""
        if self.micro_batch is not None and self.micro_batch[task] >= 0:
            what += f", micro-batch {self.micro_batch[task]}"
        if kind is TaskKind.TRANSFER:
            return f"task {task} ({what}, device {self.src[task]} to {self.dst[task]})"
        if kind is TaskKind.COLLECTIVE:
            return f"task {task} ({what}, {len(self.members(task))} members)"
        return f"task {task} ({what} on device {self.device[task]})"

    def check(self, where: str = "task graph") -> None:
        """Raise `TopoplanError` where a column is out of range; cycles are the simulator's to find."""
        count = self.n_tasks
        if count == 0:
            raise TopoplanError(f"{where}: has no tasks")
        columns = ("device", "seconds", "size", "src", "dst", "group", "op", "collective")
        for field in (*columns, *(() if self.micro_batch is None else ("micro_batch",))):
            if len(getattr(self, field)) != count:
                raise TopoplanError(f"{where}: column {field} has {len(getattr(self, field))} rows, not {count}")
        for field, rows, entries in (("succ", count, self.succ), ("group", self.n_groups, self.group_members)):
            ptr, last = getattr(self, f"{field}_ptr"), len(entries)
            if len(ptr) != rows + 1 or ptr[0] != 0 or ptr[-1] != last or (np.diff(ptr) < 0).any():
                raise TopoplanError(f"{where}: {field}_ptr is not an ascending index from 0 to {last}")
        self._in_range(where, "number of slowdowns", np.array([len(self.slowdown)]) % self.n_devices, 0, 1)
        self._in_range(where, "slowdown", self.slowdown, 0, 1 << 20)
        self._in_range(where, "kind", self.kind, 0, max(TaskKind) + 1)
        self._in_range(where, "succ", self.succ, 0, count)
        self._in_range(where, "group_members", self.group_members, 0, self.n_devices)
        most_of = {"device": self.n_devices, "src": self.n_devices, "dst": self.n_devices, "group": self.n_groups}
        for field, most in {**most_of, "op": len(self.op_names) or 2**31}.items():  # foreign graphs may have no names
            self._in_range(where, field, getattr(self, field), -1, most)
        seconds, size = self.seconds, self.size
        wrong = ~((seconds >= 0) & (seconds <= LONGEST_SECONDS))
        self._refuse(where, wrong, f"runs {{}} s (must be 0 to {LONGEST_SECONDS:g})", seconds)
        self._refuse(where, (size < 0) | (size > MOST_BYTES), f"has {{}} bytes (must be 0 to {MOST_BYTES})", size)
        transfer, ring = self.kind == TaskKind.TRANSFER, self.kind == TaskKind.COLLECTIVE
        self._in_range(where, "src", self.src[transfer], 0, self.n_devices)
        self._in_range(where, "dst", self.dst[transfer], 0, self.n_devices)
        self._in_range(where, "group", self.group[ring], 0, self.n_groups)
        self._in_range(where, "device", self.device[~(transfer | ring)], 0, self.n_devices)
        members = np.where(ring, np.append(np.diff(self.group_ptr), 0)[self.group], 0)
        self._refuse(where, ring & (members < 1), "has no members")
        self._check_collectives(where, ring, members)
        self._check_members(where)
        self._check_shares(where)

    def _check_collectives(self, where: str, collective: Any, members: I64) -> None:
        """Raise where the kind of a collective is missing, or is none that one task can be."""
        self._in_range(where, "collective", self.collective[collective], 0, max(Collective) + 1)
        self._in_range(where, "collective of other tasks", self.collective[~collective], -1, 0)
        large = (self.size > 0) | (members > 1)
        self._refuse(where, large & (self.collective == Collective.JOIN), "must have one member and 0 bytes")

    def _check_members(self, where: str) -> None:
        """Raise where a group names a device twice: simulators and exporters take members for different ones."""
        key = np.sort(_owners(self.group_ptr) * self.n_devices + self.group_members)
        twice = np.flatnonzero(key[1:] == key[:-1])
        if len(twice):
            group, device = divmod(int(key[twice[0]]), self.n_devices)
            raise TopoplanError(f"{where}: group {group} names device {device} twice (members must be different)")

    def _check_shares(self, where: str) -> None:
        """Raise where a factor is no table whose numbers of rows and columns divide the members of its group."""
        self._in_range(where, "number of shares", np.array([len(self.shares)]), 0, self.n_groups + 1)
        for group, factors in enumerate(self.shares):
            size = int(self.group_ptr[group + 1] - self.group_ptr[group])
            for table in (np.array(rows if len({*map(len, rows)}) == 1 else [[]]) for rows in factors):
                if table.size and (size % np.array(table.shape) == 0).all() and (abs(2 * table - size) <= size).all():
                    continue
                raise TopoplanError(f"{where}: shares of group {group} must divide {size} members, and be 0 to {size}")

    def _refuse(self, where: str, wrong: Any, what: str, column: Any = None) -> None:
        """Raise for the first of the (T,) tasks that are wrong; ``{}`` in ``what`` is its value in a column."""
        for task in np.flatnonzero(wrong)[:1]:
            raise TopoplanError(f"{where}: {self.label(task)} {what.format(None if column is None else column[task])}")

    def _in_range(self, where: str, field: str, values: Any, low: int, high: int) -> None:
        bad = np.flatnonzero((values < low) | (values >= high))
        if len(bad):
            raise TopoplanError(f"{where}: {field} has {values[bad[0]]} (must be {low} to {high - 1})")


def _owners(pointer: I32) -> I64:
    """(e,) row of each entry of compressed rows."""
    return np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))

"""Tasks in columns: how lowerings of programs collect them, many at a time.

Tasks are added for all devices of a mesh at once, with a column for what differs and a number for what does not;
edges are added between such arrays.  `turns` makes whole task graphs so, `staged` those of one micro-batch of each
stage, which it copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import Collective, TaskKind

__all__ = ["NO_TASK", "TaskColumns", "shares_of"]

#: What the columns of a task graph have where a task has nothing.
NO_TASK: dict[str, Any] = {
    "kind": 0,
    "device": -1,
    "seconds": 0.0,
    "size": 0,
    "src": -1,
    "dst": -1,
    "group": -1,
    "op": -1,
    "micro_batch": -1,
    "collective": -1,
}

#: Devices of edges that are sorted together with others.
_FEW = 64


class TaskColumns:
    """Collects tasks, edges and groups.

    Attributes:
        n_tasks: tasks so far.
        one_task: an all-to-all is one task, unless its members have different shares of it.
    """

    def __init__(self, groups: TaskColumns | None = None, *, one_task: bool = False) -> None:
        """Collect tasks.

        Args:
            groups: whose groups these tasks have, too; None: their own.
            one_task: see above; as of ``groups``, if there are any.
        """
        self.one_task: bool = one_task if groups is None else groups.one_task
        self.n_tasks = 0
        # Of tasks that were added together: how many, and their columns, of which a number holds for all of them.
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._tails: list[I64] = []
        self._heads: list[I64] = []
        # Which of these are to be sorted, each edge once: all together, as sorting few takes hardly any time.
        self._unsorted: list[int] = []
        self._groups: dict[bytes, int] = {} if groups is None else groups._groups
        self._members: list[I64 | I32] = [] if groups is None else groups._members

    def add(self, count: int, **columns: Any) -> I64:
        """Add tasks; return their numbers."""
        self._rows.append((count, columns))
        self.n_tasks += count
        return np.arange(self.n_tasks - count, self.n_tasks, dtype=np.int64)

    def collective(
        self,
        kind: Collective,
        members: I64,
        device_of_place: I64 | I32,
        *,
        shares: F64 | None = None,
        by_receiver: bool = True,
        copies: F64 | None = None,
        **columns: Any,
    ) -> tuple[I64, I64]:
        """Add one collective of a kind in each group.

        Args:
            kind: an all-to-all is transfers of every pair between two joins, or one task (``one_task``).
            members: (groups, size) places of a mesh; each is in one group.
            device_of_place: (D,) the device at each place.
            shares: (D,) of an all-to-all: how many times ``size`` each place gets, or gives; None: once.
            by_receiver: whether ``shares`` are those of receivers.
            copies: (size, size) of an all-to-all: how many times ``size`` each member sends to each; None: once.
            columns: of all tasks; ``size`` is that of the collective, or of each transfer.

        Returns:
            (D,) the first and the last task at each place.
        """
        groups, size = members.shape
        group_of = np.empty(groups * size, dtype=np.int64)
        group_of[members] = np.arange(groups)[:, None]
        devices = device_of_place[members]
        if kind is Collective.ALL_TO_ALL and self.one_task and shares is None and copies is None:
            tasks = self._add_collective(kind, devices, **{**columns, "size": columns["size"] * size})
            return tasks[group_of], tasks[group_of]
        if kind is not Collective.ALL_TO_ALL:
            tasks = self._add_collective(kind, devices, **columns)
            return tasks[group_of], tasks[group_of]
        nothing = {**columns, "size": 0}
        join = self._add_collective(Collective.JOIN, devices[:, :1], **nothing)
        sender, receiver = np.nonzero(~np.eye(size, dtype=bool))
        if shares is not None:
            busy = members[:, receiver if by_receiver else sender].ravel()
            columns = {**columns, "size": np.rint(shares[busy] * columns["size"]).astype(np.int64)}
        if copies is not None:
            of_pair = np.tile(copies[sender, receiver], groups)
            columns = {**columns, "size": np.rint(of_pair * columns["size"]).astype(np.int64)}
        transfers = self.add(
            groups * len(sender),
            **{**columns, "kind": TaskKind.TRANSFER},
            src=devices[:, sender].ravel(),
            dst=devices[:, receiver].ravel(),
        ).reshape(groups, -1)
        leave = self._add_collective(Collective.JOIN, devices[:, :1], **nothing)
        self.edges(np.repeat(join, len(sender)), transfers.ravel())
        self.edges(transfers.ravel(), np.repeat(leave, len(sender)))
        return join[group_of], leave[group_of]

    def joins(self, groups: I64 | I32, **columns: Any) -> I64:
        """Add a join for each row of members."""
        return self._add_collective(Collective.JOIN, groups, **columns)

    def edges(self, tails: I64, heads: I64) -> None:
        """Add edges."""
        self._tails.append(tails)
        self._heads.append(heads)

    def follow(self, ends: I64, tasks: I64) -> None:
        """Let tasks follow others, row by row; each edge is made once."""
        if len(ends) <= _FEW:
            if len(ends) > 1:
                self._unsorted.append(len(self._tails))
            return self.edges(ends, tasks)
        edges = np.sort(ends * self.n_tasks + tasks)  # a number for each, ordered by the end, then the task
        edges = edges[np.append(True, edges[1:] != edges[:-1])]
        return self.edges(edges // self.n_tasks, edges % self.n_tasks)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a `TaskGraph` but those of groups and successors."""
        return {name: self.column(name, empty) for name, empty in NO_TASK.items()}

    def column(self, name: str, empty: float) -> Any:
        """(T,) one column of all tasks; ``empty`` where they have nothing there."""
        column, end = np.full(self.n_tasks, empty), 0
        for count, columns in self._rows:
            first, end = end, end + count
            if name in columns:
                column[first:end] = columns[name]
        return column

    def ends(self) -> tuple[I64, I64]:
        """Return the tails and heads of all edges."""
        none = [np.zeros(0, np.int64)]
        tails, heads = np.concatenate(self._tails or none), np.concatenate(self._heads or none)
        if not self._unsorted:
            return tails, heads
        block = np.repeat(np.arange(len(self._tails)), [len(each) for each in self._tails])
        sorts = np.zeros(len(self._tails), dtype=np.bool_)
        sorts[self._unsorted] = True
        is_sorted = sorts[block]
        place = np.where(is_sorted, tails * self.n_tasks + heads, np.arange(len(tails)))
        order = np.lexsort((place, block))
        repeats = is_sorted[1:] & (block[1:] == block[:-1]) & (place[order][1:] == place[order][:-1])
        order = order[np.append(True, ~repeats)]
        return tails[order], heads[order]

    def successors(self) -> tuple[I64, I64]:
        """Return the successors of all tasks as compressed rows."""
        tails, heads = self.ends()
        degree = np.bincount(tails, minlength=self.n_tasks)
        return np.concatenate([[0], np.cumsum(degree)]), heads[np.argsort(tails, kind="stable")]

    def group_columns(self) -> dict[str, Any]:
        """Return the columns of the groups of collectives."""
        return {
            "group_ptr": np.concatenate([[0], np.cumsum([len(row) for row in self._members])]),
            "group_members": np.concatenate(self._members) if self._members else np.zeros(0, np.int32),
        }

    def _add_collective(self, kind: Collective, groups: I64 | I32, **columns: Any) -> I64:
        """Add one task for each row of members."""
        numbers = np.array(self.numbers(groups), dtype=np.int64)
        return self.add(len(groups), **columns, kind=TaskKind.COLLECTIVE, collective=kind, group=numbers)

    def numbers(self, groups: I64 | I32) -> list[int]:
        """Return the number of each group, given by a row of its members."""
        numbers = []
        for members in groups:
            number = self._groups.setdefault(members.tobytes(), len(self._members))
            if number == len(self._members):
                self._members.append(members)
            numbers.append(number)
        return numbers


def shares_of(nbytes: I64, micro_batch: I64 | I32, count: int, divisor: I64 | int = 1) -> I64:
    """Return sizes of tasks in some of ``count`` micro-batches, given bytes of the batch.

    A micro-batch has the bytes between two fractions of the whole; tasks that belong to none (-1) have all bytes.
    Sizes are a ``divisor``-th of these, rounded up.

    >>> shares_of(np.array([10, 10, 10]), np.array([0, 2, -1]), 3).tolist()
    [3, 4, 10]
    """
    share, remainder = np.divmod(nbytes, count)
    part = share + (micro_batch + 1) * remainder // count - micro_batch * remainder // count
    whole: I64 = np.where(micro_batch < 0, nbytes, part)
    sizes: I64 = -(-whole // divisor)
    return sizes

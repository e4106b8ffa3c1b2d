"""Tasks in columns: how lowerings of programs collect them, many at a time.

Tasks are added many at a time, with a column for what differs and a number for what does not; edges are added between
such arrays.  All task graphs are written so, but those of placements without an order of passes: `turns` writes whole
ones, `staged` copies of one micro-batch of each stage, `pipeline` copies of one micro-batch of all parts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, f64, i64
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.csr import indptr
from topoplan_engine.network.exchanged import Factors

__all__ = ["TaskColumns", "Weights", "scales_of_pairs", "shares_of"]

#: What the columns of a task graph have where a task has nothing.
_NO_TASK: dict[str, Any] = {
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
#: Columns that say which share of its bytes a task has, see `shares_of`.
_OF_SHARES = ("divisor", "scale")


class Weights(NamedTuple):
    """How many times the bytes of an even all-to-all members send each other.

    Attributes:
        values: (D,) of the sender or the receiver at each place of the mesh, or (n, n) of each member to each other.
        end: 0 for senders, 1 for receivers, 2 for pairs.
    """

    values: F64
    end: int

    def of_pairs(self, groups: I64, sender: I64, receiver: I64) -> F64:
        """(n,) those of messages between members of (G, size) groups of places; members are numbered row by row."""
        if self.end < 2:
            return f64(self.values[groups.ravel()[(sender, receiver)[self.end]]])
        size = groups.shape[1]
        return f64(self.values[sender % size, receiver % size])

    def of_members(self, groups: I64) -> I64:
        """(G, n) a number for each member: those with the same one send and get as much, and on equal terms."""
        if self.end == 2:
            columns = np.concatenate([self.values, self.values.T], axis=1)
            number = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
            return np.broadcast_to(number, groups.shape)
        return np.unique(self.values, return_inverse=True)[1].ravel()[groups]

    def factors(self, groups: I64) -> list[tuple[tuple[float, ...], ...]]:
        """Return the factor of each of (G, size) groups, see `TaskGraph.shares`."""
        if self.end == 2:
            return [_blocks(self.values.tobytes(), len(self.values))] * len(groups)
        rows = self.values[groups].tolist()
        return [(tuple(row),) if self.end else tuple((share,) for share in row) for row in rows]


@functools.lru_cache(maxsize=64)
def _blocks(values: bytes, size: int) -> tuple[tuple[float, ...], ...]:
    """Return the smallest table whose numbers hold for equal runs of rows and columns of a (size, size) one."""
    table = np.frombuffer(values).reshape(size, size)
    for count in (each for each in range(1, size + 1) if size % each == 0):
        runs = table.reshape(count, size // count, count, size // count)
        if (runs == runs[:, :1, :, :1]).all():
            break
    return tuple(map(tuple, runs[:, 0, :, 0].tolist()))


def scales_of_pairs(weights: Sequence[Weights], groups: I64, sender: I64, receiver: I64) -> F64 | float:
    """Return (n,) times an even one that messages of an all-to-all are; 1 for all without ``weights``.

    Args:
        weights: that apply one after the other.
        groups, sender, receiver: see `Weights.of_pairs`.
    """
    scales: F64 | float = 1.0
    for each in weights:
        scales = scales * each.of_pairs(groups, sender, receiver)
    return scales


#: Devices of edges that are sorted together with others.
_FEW = 64


class TaskColumns:
    """Collects tasks, edges and groups.

    Attributes:
        n_tasks: tasks so far.
        one_task: an all-to-all is one task.
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
        self._groups: dict[bytes | tuple[bytes, Factors], int] = {} if groups is None else groups._groups
        self._members: list[I64 | I32] = [] if groups is None else groups._members
        # Factors of all-to-alls that are not equal, by the number of their group.
        self._factors: dict[int, Factors] = {} if groups is None else groups._factors

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
        weights: Sequence[Weights] = (),
        **columns: Any,
    ) -> tuple[I64, I64]:
        """Add one collective of a kind in each group.

        Args:
            kind: an all-to-all is transfers of every pair between two joins (columns ``scale``: how many times ``size``
                each is), or one task (``one_task``), whose group says so.
            members: (groups, size) places of a mesh; each is in one group.
            device_of_place: (D,) the device at each place.
            weights: of an all-to-all whose members do not all send as much.
            columns: of all tasks; ``size`` is that of the collective, or of each transfer.

        Returns:
            (D,) the first and the last task at each place.
        """
        groups, size = members.shape
        group_of = np.empty(groups * size, dtype=np.int64)
        group_of[members] = np.arange(groups)[:, None]
        devices = device_of_place[members]
        if kind is Collective.ALL_TO_ALL and self.one_task:
            factors = list(zip(*(each.factors(members) for each in weights), strict=True)) if weights else None
            columns = {**columns, "size": columns["size"] * size}
            tasks = self._add_collective(kind, devices, factors, **columns)
            return tasks[group_of], tasks[group_of]
        if kind is not Collective.ALL_TO_ALL:
            tasks = self._add_collective(kind, devices, **columns)
            return tasks[group_of], tasks[group_of]
        nothing = {**columns, "size": 0}
        join = self._add_collective(Collective.JOIN, devices[:, :1], **nothing)
        sender, receiver = np.nonzero(~np.eye(size, dtype=bool))
        first = size * np.arange(groups)[:, None]
        scales = scales_of_pairs(weights, members, (first + sender).ravel(), (first + receiver).ravel())
        transfers = self.add(
            groups * len(sender),
            **{**columns, "kind": TaskKind.TRANSFER, "scale": scales},
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

    def columns(self, **further: Any) -> dict[str, Any]:
        """Return the columns of a `TaskGraph` but those of groups and successors, and ``further`` ones.

        Each of these is given by what tasks have there that say nothing of it.
        """
        columns, end = {}, 0
        for name, empty in {**_NO_TASK, **further}.items():
            stop_if_wanted()
            columns[name] = np.full(self.n_tasks, empty)
        for count, rows in self._rows:
            first, end = end, end + count
            for name in columns.keys() & rows.keys():
                columns[name][first:end] = rows[name]
        return columns

    def add_copies(self, columns: Mapping[str, Any], ends: tuple[I64, I64], members: I64, count: int) -> I64:
        """Add the tasks and edges of one micro-batch for each of some micro-batches.

        Args:
            columns: of the tasks; ``size`` are bytes of the batch, of which each task has a share (`shares_of`).
            ends: tails and heads of edges.
            members: (n,) micro-batches.
            count: of the batch.

        Returns:
            (n,) number of the first task of each of them.
        """
        numbers = np.where(columns["micro_batch"] < 0, -1, members[:, None])
        tiled = {name: np.tile(column, len(members)) for name, column in columns.items() if name not in _OF_SHARES}
        sizes = shares_of(columns["size"], numbers, count, *(columns[name] for name in _OF_SHARES))
        tiled |= {"size": sizes.ravel(), "micro_batch": numbers.ravel()}
        n_tasks = len(columns["kind"])
        first = self.add(n_tasks * len(members), **tiled)[::n_tasks]
        tails, heads = (each + first[:, None] for each in ends)
        self.edges(tails.ravel(), heads.ravel())
        return first

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

    def successors(self) -> dict[str, Any]:
        """Return the columns of the successors of all tasks, of each in the order in which its edges were added."""
        stop_if_wanted()
        tails, heads = self.ends()
        stop_if_wanted()
        succ_ptr = indptr(np.bincount(tails, minlength=self.n_tasks))
        return {"succ_ptr": succ_ptr, "succ": heads[np.argsort(tails, kind="stable")]}

    def group_columns(self) -> dict[str, Any]:
        """Return the columns of the groups of collectives."""
        return {
            "group_ptr": np.concatenate([[0], np.cumsum([len(row) for row in self._members])]),
            "group_members": np.concatenate(self._members) if self._members else np.zeros(0, np.int32),
            "shares": tuple(self._factors.get(group, ()) for group in range(1 + max(self._factors, default=-1))),
        }

    def _add_collective(
        self, kind: Collective, groups: I64 | I32, factors: Sequence[Factors] | None = None, **columns: Any
    ) -> I64:
        """Add one task for each row of members; ``factors``: of each of them, None where messages are equal."""
        numbers = np.array(self.numbers(groups, factors), dtype=np.int64)
        return self.add(len(groups), **columns, kind=TaskKind.COLLECTIVE, collective=kind, group=numbers)

    def numbers(self, groups: I64 | I32, factors: Sequence[Factors] | None = None) -> list[int]:
        """Return the number of each group, given by a row of its members, and by what its messages are."""
        numbers = []
        for row, members in enumerate(groups):
            key = members.tobytes() if factors is None else (members.tobytes(), factors[row])
            number = self._groups.setdefault(key, len(self._members))
            if number == len(self._members):
                self._members.append(members)
                self._factors |= {} if factors is None else {number: factors[row]}
            numbers.append(number)
        return numbers


def shares_of(nbytes: I64, micro_batch: I64 | I32, count: int, divisor: I64 | int = 1, scale: F64 | float = 1.0) -> I64:
    """Return sizes of tasks in some of ``count`` micro-batches, given bytes of the batch.

    A micro-batch has the bytes between two fractions of the whole; tasks that belong to none (-1) have all bytes.
    Sizes are a ``divisor``-th of these, rounded up, ``scale`` times.

    >>> shares_of(np.array([10, 10, 10]), np.array([0, 2, -1]), 3).tolist()
    [3, 4, 10]
    """
    share, remainder = np.divmod(nbytes, count)
    part = share + (micro_batch + 1) * remainder // count - micro_batch * remainder // count
    whole: I64 = np.where(micro_batch < 0, nbytes, part)
    sizes: I64 = -(-whole // divisor)
    return sizes if np.all(np.equal(scale, 1.0)) else i64(np.rint(sizes * scale))

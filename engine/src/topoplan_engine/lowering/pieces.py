"""Fragments side by side in a few long columns, numbered, so that compiled passes reach them by their numbers.

A search joins the fragments of one strategy after the other, most of which it has joined before.  To copy them from
columns that hold all of them takes one compiled pass; to concatenate arrays takes a call for each.

Data flow: `Pieces.numbers` names the fragments of a strategy, `Pieces.put_numbers` those of one that differs in some
operators; `Pieces.table` copies them into a `PartTable`.  `topoplan_engine.search.lower_bounds` keeps what a fragment
asks of devices and links by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.placement import Placement
from topoplan.model.strategy import Strategy
from topoplan_engine.cache import LruCache
from topoplan_engine.kernels.jit import njit
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import EdgeFragment, FragmentKey, OperatorFragment
from topoplan_engine.lowering.parts import PartTable

__all__ = ["Pieces"]

#: Bytes of the columns, and fragments, from which on all are forgotten.
_BYTES, _FRAGMENTS = 1 << 27, 20_000
#: Strategies whose numbers are kept.
_STRATEGIES = 4096
#: Columns of a row of `_Columns.rows`.
_PARTS, _GROUPS, _GROUP_PARTS, _GROUP_DEVICES, _FIRST_INT, _FIRST_FLOAT, _FIRST_LONG, _FIRST_FLAG = range(8)


class _Columns(NamedTuple):
    """The columns of all fragments.

    Attributes:
        rows: (n, 8) of each fragment, how many parts (pairs, of an edge), all-reduces, parts and devices of all-reduces
            it has, and where it begins in the others.
        ints: devices, lengths and entries of ``part_counts`` and ``device_counts``; of an edge, ``src`` and ``dst``.
        floats: ``forward``, ``backward``, ``group_seconds``.
        longs: ``group_bytes``; of an edge, ``size``.
        flags: ``local`` of an edge.
    """

    rows: I64
    ints: I32
    floats: F64
    longs: I64
    flags: Any

    @classmethod
    def empty(cls) -> _Columns:
        """Return columns with little room."""
        return cls(
            np.zeros((256, 8), np.int64),
            np.empty(1 << 14, np.int32),
            np.empty(1 << 12),
            np.empty(1 << 12, np.int64),
            np.empty(1 << 12, np.bool_),
        )


class Pieces:
    """The fragments of one model, by number.

    Attributes:
        generation: grows when all numbers have become invalid.
    """

    def __init__(self, fragments: FragmentCache) -> None:
        self._cache = fragments
        self._edge_ops = fragments.edge_ops
        self.generation = -1
        self._strategies: LruCache[bytes, list[int]] = LruCache(_STRATEGIES)
        self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self._columns = _Columns.empty()
        self._used = [0] * len(self._columns)  # entries of each column
        self._number: dict[FragmentKey, int] = {}
        self._fragments: list[OperatorFragment | EdgeFragment] = []
        self._strategies = LruCache(_STRATEGIES)

    def make_room(self) -> None:
        """Forget all fragments if there are too many; to be called while no numbers are in use."""
        if len(self._fragments) > _FRAGMENTS or sum(column.nbytes for column in self._columns) > _BYTES:
            self._forget()

    def fragment(self, number: int) -> OperatorFragment | EdgeFragment:
        """Return a fragment by its number."""
        return self._fragments[number]

    def operator(self, op: int, placement: Placement) -> int:
        """Return the number of an operator's fragment."""
        number = self._number.get((op, placement.key))
        return self._add(self._cache.operator(op, placement)) if number is None else number

    def edge(self, edge: int, placements: Sequence[Placement]) -> int:
        """Return the number of an edge's fragment."""
        kind, u, v = self._cache.edge_ends[edge]
        number = self._number.get((kind, placements[u].key, placements[v].key))
        return self._add(self._cache.edge(edge, placements)) if number is None else number

    def numbers(self, strategy: Strategy) -> list[int]:
        """Return the numbers of the fragments of all operators, then of all edges."""
        numbers = self._strategies.find(strategy.key)
        if numbers is None:
            placements = strategy.placements
            ops = [self.operator(op, placement) for op, placement in enumerate(placements)]
            edges = [self.edge(edge, placements) for edge in range(len(self._cache.edges))]
            numbers = self.put_numbers(strategy, ops + edges)
        return numbers

    def put_numbers(self, strategy: Strategy, numbers: list[int]) -> list[int]:
        """Keep the numbers of a strategy's fragments and return them."""
        return self._strategies.put(strategy.key, numbers)

    def table(self, strategy: Strategy) -> PartTable:
        """Return all fragments of a strategy, one after the other."""
        self.make_room()
        numbers = np.array(self.numbers(strategy), dtype=np.int64)
        n_ops = len(strategy.placements)
        rows, ints, floats, longs, flags = self._columns
        of_operators = _join_operators(numbers[:n_ops], rows, ints, floats, longs)
        edge_ptr, *of_pairs = _join_edges(numbers[n_ops:], rows, ints, longs, flags)
        return PartTable._make((*of_operators, edge_ptr, *self._edge_ops, *of_pairs))

    def _add(self, fragment: OperatorFragment | EdgeFragment) -> int:
        """Append a fragment to the columns and return its number."""
        number = self._number[fragment.key] = len(self._fragments)
        self._fragments.append(fragment)
        if isinstance(fragment, OperatorFragment):
            counts = (
                len(fragment.devices),
                len(fragment.group_bytes),
                len(fragment.group_parts),
                len(fragment.group_devices),
            )
            columns: tuple[tuple[np.ndarray, ...], ...] = (
                (
                    fragment.devices,
                    fragment.part_counts,
                    fragment.group_parts,
                    fragment.device_counts,
                    fragment.group_devices,
                ),
                (fragment.forward, fragment.backward, fragment.group_seconds),
                (fragment.group_bytes,),
                (),
            )
        else:
            counts = (len(fragment.src), 0, 0, 0)
            columns = ((fragment.src, fragment.dst), (), (fragment.size,), (fragment.local,))
        first = tuple(self._used[1:])
        for place, arrays in enumerate(columns, 1):
            for array in arrays:
                self._append(place, array)
        self._append(0, np.array([(*counts, *first)]))
        return number

    def _append(self, place: int, entries: np.ndarray) -> None:
        """Append entries to a column, which grows to twice its length if it is full."""
        column, length = self._columns[place], self._used[place]
        end = length + len(entries)
        if end > len(column):
            longer = np.empty((max(end, 2 * len(column)), *column.shape[1:]), column.dtype)
            longer[:length] = column[:length]
            self._columns = self._columns._replace(**{_Columns._fields[place]: longer})
            column = longer
        column[length:end] = entries
        self._used[place] = end


@njit(no_cfunc_wrapper=True)
def _join_operators(numbers: I64, rows: I64, ints: I32, floats: F64, longs: I64) -> Any:
    """Copy the fragments of operators into the columns of a `PartTable` from ``op_base`` to ``group_devices``."""
    counts = np.zeros(4, np.int64)
    for number in numbers:
        for column in range(4):
            counts[column] += rows[number, column]
    op_base, device, op = np.zeros(len(numbers) + 1, np.int32), _ints(counts[_PARTS]), _ints(counts[_PARTS])
    forward, backward = np.empty(counts[_PARTS]), np.empty(counts[_PARTS])
    group_op, group_bytes = _ints(counts[_GROUPS]), np.empty(counts[_GROUPS], np.int64)
    group_seconds = np.empty(counts[_GROUPS])
    part_ptr, group_parts = np.zeros(counts[_GROUPS] + 1, np.int32), _ints(counts[_GROUP_PARTS])
    device_ptr, group_devices = np.zeros(counts[_GROUPS] + 1, np.int32), _ints(counts[_GROUP_DEVICES])
    p = g = m = d = 0
    for i in range(len(numbers)):
        row = rows[numbers[i]]
        parts, groups, members, devices = row[_PARTS], row[_GROUPS], row[_GROUP_PARTS], row[_GROUP_DEVICES]
        first, seconds = row[_FIRST_INT], row[_FIRST_FLOAT]
        for k in range(parts):
            device[p + k], op[p + k] = ints[first + k], i
            forward[p + k], backward[p + k] = floats[seconds + k], floats[seconds + parts + k]
        first, seconds = first + parts, seconds + 2 * parts
        for k in range(groups):
            group_op[g + k], group_seconds[g + k] = i, floats[seconds + k]
            group_bytes[g + k] = longs[row[_FIRST_LONG] + k]
            part_ptr[g + k + 1] = part_ptr[g + k] + ints[first + k]
            device_ptr[g + k + 1] = device_ptr[g + k] + ints[first + groups + members + k]
        for k in range(members):
            group_parts[m + k] = ints[first + groups + k]
        for k in range(devices):
            group_devices[d + k] = ints[first + 2 * groups + members + k]
        p, g, m, d = p + parts, g + groups, m + members, d + devices
        op_base[i + 1] = p
    compute = (op_base, device, op, forward, backward)
    return *compute, group_op, group_bytes, group_seconds, part_ptr, group_parts, device_ptr, group_devices


@njit(no_cfunc_wrapper=True)
def _join_edges(numbers: I64, rows: I64, ints: I32, longs: I64, flags: Any) -> Any:
    """Copy the fragments of edges into the columns of pairs, and return ``edge_ptr`` before them."""
    edge_ptr = np.zeros(len(numbers) + 1, np.int32)
    for e in range(len(numbers)):
        edge_ptr[e + 1] = edge_ptr[e] + rows[numbers[e], _PARTS]
    count = edge_ptr[len(numbers)]
    src, dst, size, local = _ints(count), _ints(count), np.empty(count, np.int64), np.empty(count, np.bool_)
    for e in range(len(numbers)):
        row, first = rows[numbers[e]], edge_ptr[e]
        for k in range(row[_PARTS]):
            src[first + k], dst[first + k] = ints[row[_FIRST_INT] + k], ints[row[_FIRST_INT] + row[_PARTS] + k]
            size[first + k], local[first + k] = longs[row[_FIRST_LONG] + k], flags[row[_FIRST_FLAG] + k]
    return edge_ptr, src, dst, size, local


@njit(inline="always")
def _ints(count: int) -> I32:
    return np.empty(count, np.int32)

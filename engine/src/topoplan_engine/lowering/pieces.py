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

from topoplan.arrays import F64, I32, I64, U64
from topoplan.model.placement import Placement
from topoplan.model.strategy import Strategy
from topoplan_engine.cache import LruCache
from topoplan_engine.kernels.hashing import mix, mix_briefly
from topoplan_engine.kernels.jit import kernel, njit
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import EdgeFragment, FragmentKey, OperatorFragment
from topoplan_engine.lowering.parts import PartTable

__all__ = [
    "CUT",
    "FIRST_FLAG",
    "FIRST_FLOAT",
    "FIRST_INT",
    "FIRST_LONG",
    "GROUPS",
    "GROUP_PARTS",
    "OF_EDGE",
    "ONE_WAY",
    "PARTS",
    "SOURCE",
    "TARGET",
    "Columns",
    "Pieces",
]

#: Bytes of the columns, and fragments, from which on all are forgotten; or so many times those of one strategy.
_BYTES, _FRAGMENTS, _TIMES = 1 << 27, 20_000, 2
#: Strategies whose numbers are kept.
_STRATEGIES = 4096
#: Columns of a row of `Columns.rows`.
PARTS, GROUPS, GROUP_PARTS, GROUP_DEVICES, CUT, FIRST_INT, FIRST_FLOAT, FIRST_LONG, FIRST_FLAG = range(9)
#: Columns of the row of an edge: whether no gradients go back, numbers of the fragments of its producer and consumer.
ONE_WAY, SOURCE, TARGET = GROUPS, GROUP_PARTS, GROUP_DEVICES
#: In place of a cut in the row of an edge.
OF_EDGE = -1


class Columns(NamedTuple):
    """The columns of all fragments.

    Attributes:
        rows: (n, 9) of each operator's fragment, how many parts, all-reduces, parts and devices of all-reduces it has,
            and the number of its cut; of an edge, how many pairs, 1 where no gradients go back, the numbers of the
            fragments at its ends, and ``OF_EDGE``.  Then where it begins in the others.
        ints: devices, lengths and entries of ``part_counts`` and ``device_counts``; of edges, ``src`` and ``dst``,
            which all of one kind between the same cuts share, as their ``size``.
        floats: ``forward``, ``backward``, ``group_seconds``, ``memory``.
        longs: ``group_bytes``; of an edge, ``size``.
        flags: ``local`` of an edge.
    """

    rows: I64
    ints: I32
    floats: F64
    longs: I64
    flags: Any

    @classmethod
    def empty(cls) -> Columns:
        """Return columns with little room."""
        return cls(
            np.zeros((256, 9), np.int64),
            np.empty(1 << 14, np.int32),
            np.empty(1 << 12),
            np.empty(1 << 12, np.int64),
            np.empty(1 << 12, np.bool_),
        )


class _PlacedOperator(NamedTuple):
    """An operator, by its number in the graph, and its placement."""

    op: int
    placement: Placement


class _Edge(NamedTuple):
    """An edge, by its number in the graph, and the placements at its ends."""

    number: int
    source: Placement
    target: Placement


class Pieces:
    """The fragments of one model, by number.

    Attributes:
        generation: grows when all numbers have become invalid.
        columns: of all fragments.
    """

    def __init__(self, fragments: FragmentCache) -> None:
        self._cache = fragments
        self._edge_ops = fragments.edge_ops
        self.generation = -1
        self._strategies: LruCache[bytes, I64] = LruCache(_STRATEGIES)
        self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self.columns = Columns.empty()
        self._bytes = sum(column.nbytes for column in self.columns)
        # Bytes and fragments once those of a whole strategy were there.
        self._of_one = 0, 0
        self._used = [0] * len(self.columns)  # entries of each column
        self._number: dict[FragmentKey, int] = {}
        self._fragments: list[_PlacedOperator | _Edge] = []
        self._cuts: dict[tuple[int, ...], int] = {}
        # By kind of an edge, and cuts at its ends: what `_pairs_of` returns.
        self._shared_pairs: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[int, int, int, int]] = {}
        self._strategies = LruCache(_STRATEGIES)

    def make_room(self) -> None:
        """Forget all fragments if there are too many; to be called while no numbers are in use.

        Those of a large strategy are kept, however many bytes it has: the next one shares all but a few with it.
        """
        nbytes, count = self._of_one
        if len(self._fragments) > max(_FRAGMENTS, _TIMES * count) or self._bytes > max(_BYTES, _TIMES * nbytes):
            self._forget()

    def fragment(self, number: int) -> OperatorFragment | EdgeFragment:
        """Return a fragment by its number."""
        fragment = self._fragments[number]
        return self._cache.edge_between(*fragment) if isinstance(fragment, _Edge) else self._cache.operator(*fragment)

    def operator(self, op: int, placement: Placement) -> int:
        """Return the number of an operator's fragment."""
        number = self._number.get((op, placement.key))
        return self._add_operator(op, placement) if number is None else number

    def edges(self, edges: Sequence[int], placements: Sequence[Placement], ops: Sequence[int]) -> list[int]:
        """Return the numbers of edges' fragments, given placements of all operators, and their fragments' numbers.

        Those that are new are written in one pass.
        """
        numbers, added, rows = [], dict[FragmentKey, int](), []
        fragments: list[_Edge] = []
        for edge in edges:
            kind, u, v = self._cache.edge_ends[edge]
            source, target = placements[u], placements[v]
            key = (kind, source.key, target.key)
            number = self._number.get(key)
            if number is None:
                number = added.get(key)
                if number is None:
                    rows.append((*self._pairs_of(edge, source, target), ops[u], ops[v]))
                    number = added[key] = len(self._fragments) + len(fragments)
                    fragments.append(_Edge(edge, source, target))
            numbers.append(number)
        if fragments:
            self._number.update(added)
            self._fragments += fragments
            self._write_edges(np.array(rows, dtype=np.int64))
        return numbers

    def numbers(self, strategy: Strategy) -> I64:
        """Return the numbers of the fragments of all operators, then of all edges."""
        numbers = self._strategies.find(strategy.key)
        if numbers is None:
            placements = strategy.placements
            ops = [self.operator(op, placement) for op, placement in enumerate(placements)]
            edges = self.edges(range(len(self._cache.edges)), placements, ops)
            numbers = self.put_numbers(strategy, np.array(ops + edges, dtype=np.int64))
            if self._of_one == (0, 0):
                self._of_one = self._bytes, len(self._fragments)
        return numbers

    def put_numbers(self, strategy: Strategy, numbers: I64) -> I64:
        """Keep the numbers of a strategy's fragments and return them."""
        return self._strategies.put(strategy.key, numbers)

    def table(self, strategy: Strategy) -> PartTable:
        """Return all fragments of a strategy, one after the other."""
        self.make_room()
        return self.table_of_numbers(self.numbers(strategy))

    def table_of_numbers(self, numbers: I64) -> PartTable:
        """Return the fragments with these numbers, of all operators, then of all edges."""
        n_ops = len(self._cache.op_names)
        rows, ints, floats, longs, flags = self.columns
        of_operators = _join_operators(numbers[:n_ops], rows, ints, floats, longs)
        edge_ptr, *of_pairs = _join_edges(numbers[n_ops:], rows, ints, longs, flags)
        return PartTable._make((*of_operators, edge_ptr, *self._edge_ops, *of_pairs))

    def placement_key(self, strategy: Strategy) -> int:
        """Return a number that is equal for strategies that differ in the numbers of their devices only.

        Devices are numbered by their first occurrence.  Mixed with them are the cut of each operator and the seconds
        of its parts and all-reduces; all else of a `PartTable` follows from the cuts, and from which devices are one.
        """
        self.make_room()
        return self.key_of_numbers(self.numbers(strategy))

    def key_of_numbers(self, numbers: I64) -> int:
        """Return the `placement_key` of a strategy whose fragments have these numbers."""
        rows, ints, floats, _, _ = self.columns
        n_ops = len(self._cache.op_names)
        bits = floats.view(np.uint64)
        return int(_placement_key(numbers[:n_ops], rows, ints, bits, self._cache.cluster.n_devices))

    def _add_operator(self, op: int, placement: Placement) -> int:
        """Append the fragment of an operator to the columns and return its number."""
        cache, degrees = self._cache, placement.degrees
        prices = cache.costs.price(op, degrees, placement.devices)
        reduces = cache.placed_groups(op, placement)
        cut = self._cuts.setdefault(degrees, len(self._cuts))
        counts = (len(placement.devices), len(reduces.nbytes), len(reduces.parts), len(reduces.devices), cut)
        number = self._number[op, placement.key] = len(self._fragments)
        self._fragments.append(_PlacedOperator(op, placement))
        first = tuple(self._used[1:])
        self._room(0, 1)[0] = (*counts, *first)
        ints = (placement.devices, reduces.part_counts, reduces.parts, reduces.device_counts, reduces.devices)
        floats = (prices.forward, prices.backward, reduces.seconds, prices.memory)
        for place, arrays in ((1, ints), (2, floats)):
            np.concatenate(arrays, out=self._room(place, sum(map(len, arrays))))
        self._room(3, counts[1])[:] = reduces.nbytes
        return number

    def _pairs_of(self, edge: int, source: Placement, target: Placement) -> tuple[int, int, int, int]:
        """Return how many pairs an edge has between two cuts, and columns of its row that all such edges share."""
        key = (self._cache.edge_ends[edge][0], source.degrees, target.degrees)
        shared = self._shared_pairs.get(key)
        if shared is None:
            pairs = self._cache.transfers_of(edge, source, target)
            count, one_way = len(pairs.src), int(not self._cache.passes.edges[edge])
            shared = self._shared_pairs[key] = (count, one_way, self._used[1], self._used[3])
            np.concatenate((pairs.src, pairs.dst), out=self._room(1, 2 * count))
            np.multiply(pairs.elements, self._cache.itemsizes[edge], out=self._room(3, count))
        return shared

    def _write_edges(self, edges: I64) -> None:
        """Append new fragments of edges: (n, 6) of each, what `_pairs_of` returns, and the fragments at its ends."""
        first_row, first_flag = self._used[0], self._used[4]
        self._room(0, len(edges))
        self._room(4, int(edges[:, 0].sum()))
        rows, ints, _, _, flags = self.columns
        _place_edges(edges, first_row, first_flag, rows, ints, flags)

    def _room(self, place: int, count: int) -> np.ndarray:
        """Return room for so many more entries of a column, which grows to twice its length if it is full."""
        column, length = self.columns[place], self._used[place]
        end = length + count
        if end > len(column):
            longer = np.empty((max(end, 2 * len(column)), *column.shape[1:]), column.dtype)
            longer[:length] = column[:length]
            self.columns = self.columns._replace(**{Columns._fields[place]: longer})
            self._bytes += longer.nbytes - column.nbytes
            column = longer
        self._used[place] = end
        return column[length:end]


@njit()
def _join_operators(numbers: I64, rows: I64, ints: I32, floats: F64, longs: I64) -> Any:
    """Copy the fragments of operators into the columns of a `PartTable` from ``op_base`` to ``group_devices``."""
    counts = np.zeros(4, np.int64)
    for number in numbers:
        for column in range(4):
            counts[column] += rows[number, column]
    op_base, device, op = np.zeros(len(numbers) + 1, np.int32), _ints(counts[PARTS]), _ints(counts[PARTS])
    forward, backward = np.empty(counts[PARTS]), np.empty(counts[PARTS])
    group_op, group_bytes = _ints(counts[GROUPS]), np.empty(counts[GROUPS], np.int64)
    group_seconds = np.empty(counts[GROUPS])
    part_ptr, group_parts = np.zeros(counts[GROUPS] + 1, np.int32), _ints(counts[GROUP_PARTS])
    device_ptr, group_devices = np.zeros(counts[GROUPS] + 1, np.int32), _ints(counts[GROUP_DEVICES])
    p = g = m = d = 0
    for i in range(len(numbers)):
        row = rows[numbers[i]]
        parts, groups, members, devices = row[PARTS], row[GROUPS], row[GROUP_PARTS], row[GROUP_DEVICES]
        first, seconds = row[FIRST_INT], row[FIRST_FLOAT]
        for k in range(parts):
            device[p + k], op[p + k] = ints[first + k], i
            forward[p + k], backward[p + k] = floats[seconds + k], floats[seconds + parts + k]
        first, seconds = first + parts, seconds + 2 * parts
        for k in range(groups):
            group_op[g + k], group_seconds[g + k] = i, floats[seconds + k]
            group_bytes[g + k] = longs[row[FIRST_LONG] + k]
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


@njit()
def _join_edges(numbers: I64, rows: I64, ints: I32, longs: I64, flags: Any) -> Any:
    """Copy the fragments of edges into the columns of pairs, and return ``edge_ptr`` before them."""
    edge_ptr = np.zeros(len(numbers) + 1, np.int32)
    for e in range(len(numbers)):
        edge_ptr[e + 1] = edge_ptr[e] + rows[numbers[e], PARTS]
    count = edge_ptr[len(numbers)]
    src, dst, size, local = _ints(count), _ints(count), np.empty(count, np.int64), np.empty(count, np.bool_)
    for e in range(len(numbers)):
        row, first = rows[numbers[e]], edge_ptr[e]
        for k in range(row[PARTS]):
            src[first + k], dst[first + k] = ints[row[FIRST_INT] + k], ints[row[FIRST_INT] + row[PARTS] + k]
            size[first + k], local[first + k] = longs[row[FIRST_LONG] + k], flags[row[FIRST_FLAG] + k]
    return edge_ptr, src, dst, size, local


@kernel
def _place_edges(edges: I64, first_row: int, first_flag: int, rows: I64, ints: I32, flags: Any) -> None:
    """Write the rows of edges (`Pieces._write_edges`), and of their pairs whether both parts are on one device."""
    flag = first_flag
    for e in range(len(edges)):
        row = rows[first_row + e]
        count, first = edges[e, 0], edges[e, 2]
        row[PARTS], row[ONE_WAY], row[SOURCE], row[TARGET] = count, edges[e, 1], edges[e, 4], edges[e, 5]
        row[CUT], row[FIRST_INT], row[FIRST_FLOAT] = OF_EDGE, first, 0
        row[FIRST_LONG], row[FIRST_FLAG] = edges[e, 3], flag
        source, target = rows[edges[e, 4], FIRST_INT], rows[edges[e, 5], FIRST_INT]
        for k in range(count):
            flags[flag + k] = ints[source + ints[first + k]] == ints[target + ints[first + count + k]]
        flag += count


@njit()
def _placement_key(numbers: I64, rows: I64, ints: I32, bits: U64, n_devices: int) -> Any:
    """See `Pieces.placement_key`; ``bits`` are those of the floats."""
    label = np.full(n_devices, -1, np.int64)
    count = 0
    key = np.uint64(0)
    for number in numbers:
        row = rows[number]
        parts, first, seconds = row[PARTS], row[FIRST_INT], row[FIRST_FLOAT]
        key = mix(key + np.uint64(row[CUT]))
        for k in range(parts):
            device = ints[first + k]
            if label[device] < 0:
                label[device] = count
                count += 1
            color = mix_briefly(bits[seconds + k] + np.uint64(label[device]))
            key = mix_briefly(key + mix_briefly(bits[seconds + parts + k] + color))
        for k in range(seconds + 2 * parts, seconds + 2 * parts + row[GROUPS]):
            key = mix_briefly(key + bits[k])
    return key


@njit(inline="always")
def _ints(count: int) -> I32:
    return np.empty(count, np.int32)

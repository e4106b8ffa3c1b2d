"""The fragments of edges by the fragments at their ends, where a kernel finds them.

A change to some operators changes the edges at them.  Which fragment an edge then has follows from the numbers of the
fragments at its ends (`topoplan_engine.lowering.pieces`).

Data flow: who numbers the fragment of an edge puts it into `EdgeNumbers`; kernels look it up with `edge_number` in the
columns `EdgeNumbers.columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.hashing import slot_of
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["EdgeColumns", "EdgeNumbers", "edge_number"]

#: Slots of a new hash table.
_SLOTS = 1 << 10
#: Bits of the number of a fragment in a key: more than enough for all that are kept.
_BITS = np.uint64(24)


class EdgeColumns(NamedTuple):
    """The edges of a graph, and the numbers of their fragments.

    Attributes:
        ptr, edge: CSR, the edges at each operator.
        source, target: (m,) operators at their ends.
        keys, numbers: hash table (`topoplan_engine.kernels.hashing`) of edge and fragments at its ends.
    """

    ptr: I32
    edge: I32
    source: I32
    target: I32
    keys: U64
    numbers: I32


class EdgeNumbers:
    """A hash table that grows.

    Attributes:
        ends: producer and consumer of each edge.
        columns: to be read by kernels.
    """

    def __init__(self, edges_at: Sequence[Sequence[int]], ends: Sequence[tuple[int, int]]) -> None:
        """Know no fragment yet; ``edges_at`` are those at each operator."""
        self.ends = ends
        source, target = np.array(ends, dtype=np.int32).reshape(-1, 2).T.copy()
        self.columns = EdgeColumns(
            ptr=indptr([len(edges) for edges in edges_at], np.int32),
            edge=np.array([edge for edges in edges_at for edge in edges], dtype=np.int32),
            source=source,
            target=target,
            keys=np.zeros(_SLOTS, np.uint64),
            numbers=np.full(_SLOTS, -1, np.int32),
        )
        self._count = 0

    def put(self, edges: Sequence[int], fragments: Sequence[int], numbers: Sequence[int]) -> None:
        """Keep the numbers of edges' fragments by those of the fragments at their ends.

        Args:
            edges: (n,).
            fragments: of all operators; those of edges may follow.
            numbers: (n,) of the fragments of ``edges``.
        """
        old = self.columns
        if 2 * (self._count + len(edges)) >= len(old.numbers):
            length = 2 * len(old.keys)
            while 2 * (self._count + len(edges)) >= length:
                length *= 2
            keys, slots = np.zeros(length, np.uint64), np.full(length, -1, np.int32)
            self.columns = old._replace(keys=keys, numbers=slots)
            _move(old.keys, old.numbers, keys, slots)
        rows = np.array([edges, numbers], dtype=np.int64)
        self._count += _put(*self.columns[2:], rows, np.array(fragments, dtype=np.int64))


@inline_kernel
def _key(edge: int, source: int, target: int) -> Any:
    return (np.uint64(edge) << (_BITS + _BITS)) | (np.uint64(source) << _BITS) | np.uint64(target)


@inline_kernel
def edge_number(columns: EdgeColumns, edge: int, source: int, target: int) -> int:
    """Return the number of an edge's fragment; -1 if it is not known."""
    return int(columns.numbers[slot_of(columns.keys, columns.numbers, _key(edge, source, target))])


@kernel
def _put(source: I32, target: I32, keys: U64, numbers: I32, rows: I64, fragments: I64) -> int:
    """Keep the numbers of (2, n) edges and their fragments; return how many are new."""
    count = 0
    for k in range(rows.shape[1]):
        edge = rows[0, k]
        key = _key(edge, fragments[source[edge]], fragments[target[edge]])
        slot = slot_of(keys, numbers, key)
        count += numbers[slot] < 0
        keys[slot], numbers[slot] = key, rows[1, k]
    return count


@kernel
def _move(keys: U64, numbers: I32, new_keys: U64, new_numbers: I32) -> None:
    """Copy a hash table into a larger one."""
    for old in range(len(numbers)):
        if numbers[old] >= 0:
            slot = slot_of(new_keys, new_numbers, keys[old])
            new_keys[slot], new_numbers[slot] = keys[old], numbers[old]

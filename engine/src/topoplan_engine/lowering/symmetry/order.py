"""The canonical order of classes: strategies that only number otherwise have the same classes in the same order.

`topoplan_engine.lowering.symmetry.refinement` meets classes in the order of their first members.  That order depends on
the numbers of parts, devices and automorphic operators; colors do not.  A quotient whose columns are in canonical
order is equal to the last bit for all strategies of one class, and so is what a simulator makes of it.

What becomes ready at one instant runs in the order of the task graph.  So the canonical order is that of the task
graph (`topoplan_engine.lowering.build`), except between parts of one operator, and between automorphic operators, on
different devices, where the color decides.  Tasks of one device keep their order.

Loops stand where NumPy has a function or an assignment to a slice: of those, numba compiles versions for all kinds of
numbers, and the text of errors that cannot occur, which took longer than all else of this module.

Data flow: `part_order`, `group_order` and `pair_order` say which class, numbered by first members, comes k-th;
`renumber` writes the new numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan_engine.kernels.jit import inline_kernel, njit, part
from topoplan_engine.lowering.parts import PartTable

__all__ = ["ascending", "device_order", "group_order", "pair_order", "part_order", "renumber", "row_of"]


@part()
def part_order(table: PartTable, op_class: U64, place: I32, color: U64, first: I32) -> Any:
    """Order classes of parts by operator, place among the operator's parts on the device, and color.

    Args:
        table: the parts.
        op_class: (n_ops,) equal for automorphic operators, which stand next to each other.
        place, color: (n,) of the parts.
        first: (classes,) first member of each class.
    """
    keys = np.empty((3, len(first)), np.uint64)
    for k in range(len(first)):
        p = first[k]
        keys[0, k], keys[1, k], keys[2, k] = op_class[table.op[p]], place[p], color[p]
    return ascending(keys)


@part()
def group_order(table: PartTable, op_class: U64, color: U64, first: I32) -> Any:
    """Order classes of all-reduces by operator and color."""
    keys = np.empty((2, len(first)), np.uint64)
    for k in range(len(first)):
        keys[0, k], keys[1, k] = op_class[table.group_op[first[k]]], color[first[k]]
    return ascending(keys)


@part()
def pair_order(
    table: PartTable, edge_class: U64, turn: I32, color: U64, first: I32, src: I32, dst: I32, part_class: I32
) -> Any:
    """Order classes of pairs by consuming operator, edge, producing operator, both parts, and color.

    Args:
        table: the pairs, edge by edge.
        edge_class: (m,) equal for edges between automorphic operators.
        turn: (n,) of automorphic operators, which one on its device the part belongs to.
        color: (pairs,) of the pairs.
        first: (classes,) first member of each class.
        src, dst: (pairs,) their parts, numbered through.
        part_class: (n,) of the parts, in canonical order.
    """
    keys = np.empty((7, len(first)), np.uint64)
    for k in range(len(first)):
        edge, producer, consumer = row_of(table.edge_ptr, first[k]), src[first[k]], dst[first[k]]
        keys[0, k], keys[1, k] = table.edge_dst_op[edge], turn[consumer]
        keys[2, k], keys[3, k] = edge_class[edge], turn[producer]
        keys[4, k], keys[5, k], keys[6, k] = part_class[consumer], part_class[producer], color[first[k]]
    return ascending(keys)


@part()
def device_order(device: I32, first_part: I32, device_class: I32, count: int) -> Any:
    """Order classes of devices by their first class of parts; those without parts come last."""
    order, listed, n = np.empty(count, np.int64), np.zeros(count, np.bool_), 0
    for first in first_part:
        number = device_class[device[first]]
        if not listed[number]:
            listed[number] = True
            order[n] = number
            n += 1
    for number in range(count):
        if not listed[number]:
            order[n] = number
            n += 1
    return order


@part()
def renumber(order: I64, classes: I32, first: I32) -> Any:
    """Write the new numbers of classes into ``classes``; return their first members in the new order."""
    number = np.empty(len(order), np.int32)
    for k in range(len(order)):
        number[order[k]] = k
    for member in range(len(classes)):
        classes[member] = number[classes[member]]
    return first[order]


@inline_kernel
def _is_after(keys: U64, a: int, b: int) -> bool:
    """Whether column ``a`` of the keys is greater than column ``b``, the first row telling most."""
    row = 0
    while row < len(keys) - 1 and keys[row, a] == keys[row, b]:
        row += 1
    return bool(keys[row, a] > keys[row, b])


@inline_kernel
def row_of(pointers: I64, place: int) -> int:
    """Return the last row that begins at ``place`` or before; the first one begins at 0."""
    low, high = 0, len(pointers)
    while high - low > 1:
        middle = (low + high) // 2
        if pointers[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@njit()
def ascending(keys: U64) -> Any:
    """Return the order of the columns of (rows, n) keys, the first row telling most; equal ones stay as they are.

    Merges runs that are sorted, bottom up; two that follow each other are one.
    """
    n, width = keys.shape[1], 1
    runs, merged = np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(n):
        runs[k] = k
    while width < n:
        for start in range(0, n, 2 * width):
            middle, end = min(start + width, n), min(start + 2 * width, n)
            if middle == end or not _is_after(keys, runs[middle - 1], runs[middle]):
                for k in range(start, end):
                    merged[k] = runs[k]
                continue
            first_index, second_index = start, middle
            for k in range(start, end):
                # The left one comes first where both are equal.
                if first_index < middle and (
                    second_index == end or not _is_after(keys, runs[first_index], runs[second_index])
                ):
                    merged[k] = runs[first_index]
                    first_index += 1
                else:
                    merged[k] = runs[second_index]
                    second_index += 1
        runs, merged, width = merged, runs, 2 * width
    return runs

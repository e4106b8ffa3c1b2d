"""Classes of the parts, all-reduces and pairs of one iteration where those of its devices are known.

The colors of devices that `topoplan_engine.lowering.symmetry.class_key` has refined are those of an equitable
partition.  Then the k-th parts of two devices of one class are of one class, so that nothing is left to refine, and
the first device of each class stands for it: of pairs, those that begin or end there are enough.  Colors are those of
`topoplan_engine.lowering.symmetry.refinement`, whose first round would then split nothing, so that the order of classes
is the same, to the last bit.

Data flow: `partition_of_devices` says no where that is not certain: where messages are served in turn, a device has two
parts that colors tell apart in the second round alone, or an edge ends at an operator that has an automorphic one,
whose number orders pairs.  `topoplan_engine.lowering.symmetry.classes` knows these, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I32, U64
from topoplan_engine.kernels.hashing import mix_briefly
from topoplan_engine.kernels.jit import inline_kernel, njit, part
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.symmetry.classes import Classes, loads_of_groups
from topoplan_engine.lowering.symmetry.order import device_order, group_order, pair_order, part_order, renumber
from topoplan_engine.lowering.symmetry.refinement import (
    ONE,
    THREE,
    TWO,
    color_of_part,
    color_of_sum,
    list_part,
    number_colors,
    slots_for,
)

__all__ = ["partition_of_devices"]


class _Devices(NamedTuple):
    """Classes of (D,) devices.

    Attributes:
        color: of each device.
        number: of its class, by first members.
        first: the first device of each class.
    """

    color: U64
    number: I32
    first: I32


class _Parts(NamedTuple):
    """Classes of (n,) parts, numbered by their devices' classes, then as the device lists them.

    Attributes:
        number: class of each part.
        stands: (n,) whether the part is on the first device of a class, and so stands for its own.
        first: the part that stands for each class.
        base: classes before those on each class of devices.
        turn, place: (n,) of parts that stand for others, as in `ColoredGraph`.
        color, sent, fetched: of each class, as in `Workspace`.
    """

    number: I32
    stands: NDArray[np.bool_]
    first: I32
    base: I32
    turn: I32
    place: I32
    color: U64
    sent: U64
    fetched: U64


class _Pairs(NamedTuple):
    """(n,) pairs that begin or end on the first device of a class.

    Attributes:
        row: number of each in the table.
        source, target: classes of its parts.
        leaves, arrives: whether it begins there, and whether it ends there.
        label: color without its parts.
    """

    row: I32
    source: I32
    target: I32
    leaves: NDArray[np.bool_]
    arrives: NDArray[np.bool_]
    label: U64


def partition_of_devices(
    table: PartTable, op_class: U64, edge_class: U64, device_color: U64, in_turn_bytes: int = 0
) -> Classes | None:
    """Return what `equitable_partition` does, but for classes of all pairs: ``pair`` is empty.

    None where that is not certain.

    Args:
        table, op_class, edge_class, in_turn_bytes: see `equitable_partition`.
        device_color: (D,) colors of the devices, of an equitable partition.
    """
    if in_turn_bytes > 0:
        return None
    holds, columns = _partition(tuple(table), op_class, edge_class, device_color)
    return Classes(*columns) if holds else None


@njit()
def _partition(columns: Any, op_class: U64, edge_class: U64, device_color: U64) -> Any:
    """See `partition_of_devices`; ``columns`` are those of the table."""
    table = PartTable(*columns)
    most = max(len(table.device), len(table.group_bytes), len(table.src), len(device_color), 1)
    keys, numbers = np.empty(slots_for(most), np.uint64), np.empty(slots_for(most), np.int32)
    of_device, first_device = np.empty(len(device_color), np.int32), np.empty(len(device_color), np.int32)
    n_devices = number_colors(device_color, keys, numbers, of_device, first_device)
    devices = _Devices(device_color, of_device, first_device[:n_devices].copy())
    base, holds = _list_lengths(table, devices)
    holds &= _has_single_consumers(table, op_class)
    if not holds:
        return False, _nothing()
    parts = _classes_of_parts(table, op_class, devices, base)
    n_parts = len(parts.first)
    _color_parts(table, op_class, devices, parts)
    number, first = np.empty(n_parts, np.int32), np.empty(n_parts, np.int32)
    pairs = _pairs_of_representatives(table, edge_class, parts)
    if number_colors(parts.color, keys, numbers, number, first) < n_parts or _waits(table, pairs):
        return False, _nothing()
    group_color = _mix_neighbours(table, parts, pairs, np.zeros(n_parts, np.uint64))
    pair_color = np.empty(len(pairs.row), np.uint64)
    for k in range(len(pair_color)):
        pair_color[k] = mix_briefly(parts.sent[pairs.source[k]] + parts.fetched[pairs.target[k]] * pairs.label[k])
    return True, _in_order(table, op_class, edge_class, devices, parts, pairs, group_color, pair_color, keys, numbers)


@part()
def _nothing() -> Any:
    """Return columns where classes are not certain."""
    few, counts = np.empty(0, np.int32), np.empty(0, np.int64)
    pairs = (np.empty((0, 2), np.int32), counts, counts)
    return few, few, few, few, few, few, *pairs, few, few, counts, few, np.uint64(0)


@part()
def _list_lengths(table: PartTable, devices: _Devices) -> tuple[I32, bool]:
    """Return `_Parts.base`, and whether all devices of each class list as many parts."""
    length, base = np.zeros(len(devices.color), np.int32), np.zeros(len(devices.first) + 1, np.int32)
    for p in range(len(table.device)):
        length[table.device[p]] += 1
    for c in range(len(devices.first)):
        base[c + 1] = base[c] + length[devices.first[c]]
    holds = True
    for d in range(len(length)):
        holds &= length[d] == length[devices.first[devices.number[d]]]
    return base, holds


@part()
def _has_single_consumers(table: PartTable, op_class: U64) -> bool:
    """Say whether every edge ends at an operator that is alone in its class."""
    members = np.zeros(len(op_class), np.int32)
    for op in range(len(op_class)):
        members[op_class[op]] += 1
    holds = True
    for e in range(len(table.edge_dst_op)):
        holds &= members[op_class[table.edge_dst_op[e]]] == 1
    return holds


@part()
def _classes_of_parts(table: PartTable, op_class: U64, devices: _Devices, base: I32) -> _Parts:
    """Number parts by the classes of their devices; colors are yet undefined."""
    count, n_classes = len(table.device), base[len(base) - 1]
    parts = _Parts(
        np.empty(count, np.int32),
        np.empty(count, np.bool_),
        np.empty(n_classes, np.int32),
        base,
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(n_classes, np.uint64),
        np.empty(n_classes, np.uint64),
        np.empty(n_classes, np.uint64),
    )
    listed, latest = np.zeros(len(devices.color), np.int32), np.full((4, len(devices.first)), -1, np.int32)
    for p in range(count):
        d = table.device[p]
        c = devices.number[d]
        number = base[c] + listed[d]
        listed[d] += 1
        parts.number[p], parts.stands[p] = number, devices.first[c] == d
        if parts.stands[p]:
            list_part(latest, c, table.op[p], op_class)
            parts.first[number], parts.turn[p], parts.place[p] = p, latest[2, c], latest[3, c]
    return parts


@part()
def _color_parts(table: PartTable, op_class: U64, devices: _Devices, parts: _Parts) -> None:
    """Write the first colors of classes of parts, and what they add to those of others."""
    forward, backward = table.forward.view(np.uint64), table.backward.view(np.uint64)
    for c in range(len(parts.first)):
        p = parts.first[c]
        color = color_of_part(op_class[table.op[p]], parts.turn[p], forward[p], backward[p])
        parts.color[c] = mix_briefly(color + devices.color[table.device[p]])
    _color_ends(parts)


@inline_kernel
def _color_ends(parts: _Parts) -> None:
    """Write what the colors of parts add to others."""
    for c in range(len(parts.first)):
        parts.sent[c] = mix_briefly(parts.color[c] * TWO + THREE)
        parts.fetched[c] = mix_briefly(parts.color[c] + TWO)


@part()
def _pairs_of_representatives(table: PartTable, edge_class: U64, parts: _Parts) -> _Pairs:
    """List the pairs that begin or end at a part that stands for its class."""
    count = len(table.src)
    row, source, target = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    leaves, arrives = np.empty(count, np.bool_), np.empty(count, np.bool_)
    label, n = np.empty(count, np.uint64), 0
    for e in range(len(table.edge_src_op)):
        of_edge = mix_briefly(edge_class[e] + ONE)
        of_source, of_target = table.op_base[table.edge_src_op[e]], table.op_base[table.edge_dst_op[e]]
        for k in range(table.edge_ptr[e], table.edge_ptr[e + 1]):
            a, b = of_source + table.src[k], of_target + table.dst[k]
            if parts.stands[a] | parts.stands[b]:
                row[n], source[n], target[n] = k, parts.number[a], parts.number[b]
                leaves[n], arrives[n] = parts.stands[a], parts.stands[b]
                label[n] = mix_briefly(of_edge + np.uint64(2 * table.size[k] + table.local[k]))
                n += 1
    return _Pairs(row[:n], source[:n], target[:n], leaves[:n], arrives[:n], label[:n])


@part()
def _waits(table: PartTable, pairs: _Pairs) -> bool:
    """Say whether a message is so short that it is served in turn: one of no bytes."""
    waits = False
    for k in range(len(pairs.row)):
        waits |= (table.size[pairs.row[k]] <= 0) & (not table.local[pairs.row[k]])
    return waits


@part()
def _mix_neighbours(table: PartTable, parts: _Parts, pairs: _Pairs, color: U64) -> Any:
    """Give parts the colors after a round of refinement; return those of all-reduces.

    Args:
        table, pairs: neighbours of parts.
        parts: with the colors before.
        color: (classes,) room; 0.
    """
    for c in range(len(parts.base) - 1):
        listed = ONE
        for k in range(parts.base[c], parts.base[c + 1]):
            listed = mix_briefly(listed * TWO + parts.color[k])
            color[k] = listed * THREE
        for k in range(parts.base[c], parts.base[c + 1]):
            color[k] += mix_briefly(listed + ONE)
    groups = _color_groups(table, parts)
    for g in range(len(groups)):
        base = table.op_base[table.group_op[g]]
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            p = base + table.group_parts[k]
            if parts.stands[p]:
                color[parts.number[p]] += groups[g]
    for k in range(len(pairs.row)):
        if pairs.leaves[k]:
            color[pairs.source[k]] += parts.fetched[pairs.target[k]] * pairs.label[k]
        if pairs.arrives[k]:
            color[pairs.target[k]] += parts.sent[pairs.source[k]] * pairs.label[k]
    for c in range(len(color)):
        parts.color[c] = mix_briefly(color[c])
    _color_ends(parts)
    return _color_groups(table, parts)


@part()
def _color_groups(table: PartTable, parts: _Parts) -> Any:
    """Return the colors of all-reduces, given those of their parts."""
    groups, seconds = np.empty(len(table.group_bytes), np.uint64), table.group_seconds.view(np.uint64)
    for g in range(len(groups)):
        base, n_devices = table.op_base[table.group_op[g]], table.device_ptr[g + 1] - table.device_ptr[g]
        total = color_of_sum(table.group_bytes[g], n_devices, seconds[g])
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            total += parts.fetched[parts.number[base + table.group_parts[k]]]
        groups[g] = mix_briefly(total)
    return groups


@part()
def _in_order(
    table: PartTable,
    op_class: U64,
    edge_class: U64,
    devices: _Devices,
    parts: _Parts,
    pairs: _Pairs,
    group_color: U64,
    pair_color: U64,
    keys: U64,
    numbers: I32,
) -> Any:
    """Return the columns of `Classes`, in canonical order; ``keys`` and ``numbers`` are room for a hash table."""
    n_parts, members, key = len(table.device), np.zeros(len(devices.first), np.uint64), np.uint64(0)
    for d in range(len(devices.number)):
        members[devices.number[d]] += np.uint64(1)
    part_color = np.empty(n_parts, np.uint64)
    for c in range(len(devices.first)):
        for k in range(parts.base[c], parts.base[c + 1]):
            part_color[parts.first[k]] = parts.color[k]
            key += parts.color[k] * members[c]
    ends = _first_ends(parts, pairs, len(table.src))
    order = part_order(table, op_class, parts.place, part_color, parts.first)
    first_part = renumber(order, parts.number, parts.first)
    group, first_group = np.empty(len(group_color), np.int32), np.empty(len(group_color), np.int32)
    n_groups = number_colors(group_color, keys, numbers, group, first_group)
    order = group_order(table, op_class, group_color, first_group[:n_groups])
    first_group = renumber(order, group, first_group[:n_groups])
    pair, first_pair = np.empty(len(pair_color), np.int32), np.empty(len(pair_color), np.int32)
    n_pairs = number_colors(pair_color, keys, numbers, pair, first_pair)
    color = np.empty(len(table.src), np.uint64)
    for c in range(n_pairs):
        color[pairs.row[first_pair[c]]] = pair_color[first_pair[c]]
        first_pair[c] = pairs.row[first_pair[c]]
    order = pair_order(table, edge_class, parts.turn, color, first_pair[:n_pairs], *ends, parts.number)
    first_pair = renumber(order, pair, first_pair[:n_pairs])
    order = device_order(table.device, first_part, devices.number, len(devices.first))
    first_device = renumber(order, devices.number, devices.first)
    sends, receives = np.zeros(n_pairs, np.int64), np.zeros(n_pairs, np.int64)
    for k in range(len(pair)):
        sends[pair[k]] += np.int64(pairs.leaves[k])
        receives[pair[k]] += np.int64(pairs.arrives[k])
    loads = loads_of_groups(table.device_ptr, table.group_devices, group, n_groups, devices.number, first_device)
    first = (first_part, first_group, first_pair)
    channels = np.zeros((n_pairs, 2), np.int32)
    of_pairs = (channels, sends, receives)
    return parts.number, group, np.empty(0, np.int32), *first, *of_pairs, *loads, devices.number, key


@part()
def _first_ends(parts: _Parts, pairs: _Pairs, count: int) -> Any:
    """Return (count,) parts at the ends of pairs that stand for theirs, by the row of the pair in the table."""
    source, target = np.empty(count, np.int32), np.empty(count, np.int32)
    for k in range(len(pairs.row)):
        source[pairs.row[k]] = parts.first[pairs.source[k]]
        target[pairs.row[k]] = parts.first[pairs.target[k]]
    return source, target

"""Colour refinement: the coarsest equitable partition of the parts of one iteration.

The parts of one class run for equally long, exchange the same messages with parts of the same classes, belong to
like all-reduces, and share their device with the same sequence of parts.  Colours are 64-bit numbers; each round
mixes into a part's colour those of its device, its all-reduces and its neighbours, until no class splits any more
(Weisfeiler, Leman, 1968).

Data flow: `classes` gives room to the kernels, which colour and number, and returns the numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan_engine.kernels.hashing import mix_briefly, slot_of
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["Classes", "Columns", "classes", "tell"]


class Columns(NamedTuple):
    """Parts, all-reduces and pairs of parts of one strategy, all numbered through, before folding.

    Attributes:
        device, hash: (n,) device of each part, operator by operator, and what tells it apart by itself.
        part_ptr, group_parts: compressed rows, the parts whose gradients enter each all-reduce.
        device_ptr, group_devices: likewise the devices.
        group_hash: (G,) what tells all-reduces apart by themselves.
        src, dst, pair_hash: (m,) parts at the ends of each pair, and what tells pairs apart by themselves.
    """

    device: I32
    hash: U64
    part_ptr: I32
    group_parts: I32
    device_ptr: I32
    group_devices: I32
    group_hash: U64
    src: I32
    dst: I32
    pair_hash: U64


class Classes(NamedTuple):
    """An equitable partition; classes are numbered by their first members, which represent them.

    Attributes:
        part, group, pair: class of each part (n,), all-reduce (G,) and pair (m,).
        first_part, first_group, first_pair: representative of each class.
        sends, receives: (pair classes,) pairs of the class that leave the first device of the class of its producers'
            devices, and that reach the first device of the class of its consumers' devices.
        load_group, load_device, load_count: rows (class of all-reduces, first device of a class, all-reduces of
            the class that it takes part in), by the first.
        first_device: (D,) first device of the class of each device.
        key: equal for strategies that differ in the numbers of their parts, devices and interchangeable operators only.
    """

    part: I32
    group: I32
    pair: I32
    first_part: I32
    first_group: I32
    first_pair: I32
    sends: I64
    receives: I64
    load_group: I32
    load_device: I32
    load_count: I64
    first_device: I32
    key: int


def classes(columns: Columns, n_devices: int) -> Classes:
    """Return the coarsest equitable partition."""
    n, groups, pairs = len(columns.device), len(columns.group_hash), len(columns.src)
    largest = max(n, groups, pairs, len(columns.group_devices), n_devices, 1)
    size = 1 << (2 * largest - 1).bit_length()
    table = np.empty(size, np.uint64), np.empty(size, np.int32)
    part, group, pair = (np.empty(k, np.int32) for k in (n, groups, pairs))
    first_part, first_group, first_pair = (np.empty(k, np.int32) for k in (n, groups, pairs))
    device_class, first_device = np.empty(n_devices, np.int32), np.empty(n_devices, np.int32)
    seen = _Room(*(np.empty(k, np.uint64) for k in (n, n, n_devices, groups, pairs)))
    counts = np.zeros(4, np.int64)
    _refine(columns, seen, table, part, first_part, counts)
    _number_all(columns, seen, table, part, group, pair, device_class, first_group, first_pair, first_device, counts)
    first_device = first_device[device_class]
    sends, receives = (np.zeros(counts[2], np.int64) for _ in range(2))
    rows = len(columns.group_devices)
    load_group, load_device, load_count = np.empty(rows, np.int32), np.empty(rows, np.int32), np.zeros(rows, np.int64)
    found = _count(columns, table, pair, group, first_device, sends, receives, load_group, load_device, load_count)
    order = np.argsort(load_group[:found], kind="stable")
    return Classes(
        part, group, pair, first_part[: counts[0]], first_group[: counts[1]], first_pair[: counts[2]], sends, receives,
        load_group[order], load_device[order], load_count[order], first_device,
        int(seen.colour.sum()),
    )  # fmt: skip


class _Room(NamedTuple):
    """Room for colours: of parts, of parts in the next round, of devices, all-reduces and pairs."""

    colour: U64
    next: U64
    device: U64
    group: U64
    pair: U64


@kernel
def tell(
    op_base: Any, op: Any, forward: Any, backward: Any, group_seconds: Any, group_op: Any, group_bytes: Any,
    part_ptr: Any, group_parts: Any, edge_ptr: Any, edge_src_op: Any, edge_dst_op: Any, src: Any, dst: Any, size: Any,
    local: Any, op_class: Any, edge_class: Any, c: Columns,
) -> None:  # fmt: skip
    """Number parts through, and write what tells parts, all-reduces and pairs apart by themselves into ``c``."""
    for p in range(len(op)):
        c.hash[p] = mix_briefly(mix_briefly(mix_briefly(op_class[op[p]]) + forward[p]) + backward[p])
    for g in range(len(group_op)):
        c.group_hash[g] = mix_briefly(mix_briefly(np.uint64(group_bytes[g])) + group_seconds[g])
        for k in range(part_ptr[g], part_ptr[g + 1]):
            c.group_parts[k] = op_base[group_op[g]] + group_parts[k]
    for e in range(len(edge_src_op)):
        label = mix_briefly(edge_class[e] + np.uint64(0x9E3779B97F4A7C15))
        for k in range(edge_ptr[e], edge_ptr[e + 1]):
            c.src[k], c.dst[k] = op_base[edge_src_op[e]] + src[k], op_base[edge_dst_op[e]] + dst[k]
            c.pair_hash[k] = mix_briefly(label + np.uint64(2 * size[k] + local[k]))


@inline_kernel
def _number(keys: Any, table: Any, numbers: Any, first: Any) -> int:
    """Number equal keys alike, by first occurrence; return how many different ones there are."""
    slots, taken = table
    for i in range(len(taken)):
        taken[i] = -1
    count = 0
    for k in range(len(keys)):
        at = slot_of(slots, taken, keys[k])
        if taken[at] < 0:
            slots[at], taken[at] = keys[k], count
            first[count] = k
            count += 1
        numbers[k] = taken[at]
    return count


@kernel
def _refine(c: Columns, room: _Room, table: Any, numbers: Any, first: Any, counts: Any) -> None:
    """Colour the parts until no class splits; number the classes."""
    one, two, three = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
    colour, new, device, group = room.colour, room.next, room.device, room.group
    for p in range(len(colour)):
        colour[p] = mix_briefly(c.hash[p])
    before = 0
    counts[0] = _number(colour, table, numbers, first)
    while before < counts[0]:
        before = counts[0]
        for d in range(len(device)):
            device[d] = one
        for p in range(len(colour)):  # in the order in which the device lists them, which tells equal ones apart
            device[c.device[p]] = mix_briefly(device[c.device[p]] * two + colour[p])
            new[p] = device[c.device[p]] * three
        for p in range(len(colour)):
            new[p] += mix_briefly(device[c.device[p]] + one)
        for g in range(len(group)):
            total = np.uint64(0)
            for k in range(c.part_ptr[g], c.part_ptr[g + 1]):
                total += mix_briefly(colour[c.group_parts[k]] + two)
            group[g] = mix_briefly(total + c.group_hash[g])
            for k in range(c.part_ptr[g], c.part_ptr[g + 1]):
                new[c.group_parts[k]] += group[g]
        for k in range(len(c.src)):
            a, b = c.src[k], c.dst[k]
            new[a] += mix_briefly(colour[b] + c.pair_hash[k])
            new[b] += mix_briefly((colour[a] ^ c.pair_hash[k]) * two)
        for p in range(len(colour)):
            colour[p] = mix_briefly(new[p])
        counts[0] = _number(colour, table, numbers, first)


@kernel
def _number_all(
    c: Columns, room: _Room, table: Any, part: Any, group: Any, pair: Any, device: Any, first_group: Any,
    first_pair: Any, first_device: Any, counts: Any,
) -> None:  # fmt: skip
    """Number the classes of all-reduces, pairs and devices."""
    one, two = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
    for d in range(len(room.device)):
        room.device[d] = one
    for p in range(len(part)):
        room.device[c.device[p]] = mix_briefly(room.device[c.device[p]] * two + room.colour[p])
    for g in range(len(group)):
        total = np.uint64(0)
        for k in range(c.part_ptr[g], c.part_ptr[g + 1]):
            total += mix_briefly(room.colour[c.group_parts[k]] + two)
        room.group[g] = mix_briefly(total + c.group_hash[g])
    for k in range(len(pair)):
        ends = room.colour[c.src[k]] * one + mix_briefly(room.colour[c.dst[k]] + two)
        room.pair[k] = mix_briefly(ends + c.pair_hash[k])
    counts[1] = _number(room.group, table, group, first_group)
    counts[2] = _number(room.pair, table, pair, first_pair)
    counts[3] = _number(room.device, table, device, first_device)


@kernel
def _count(
    c: Columns, table: Any, pair: Any, group: Any, first_device: Any, sends: Any, receives: Any,
    load_group: Any, load_device: Any, load_count: Any,
) -> int:  # fmt: skip
    """Count what passes the interfaces of the first device of each class."""
    for k in range(len(pair)):
        a, b = c.device[c.src[k]], c.device[c.dst[k]]
        sends[pair[k]] += first_device[a] == a
        receives[pair[k]] += first_device[b] == b
    slots, taken = table
    for i in range(len(taken)):
        taken[i] = -1
    found = 0
    for g in range(len(group)):
        for k in range(c.device_ptr[g], c.device_ptr[g + 1]):
            d = c.group_devices[k]
            if first_device[d] == d:
                key = np.uint64(group[g]) * np.uint64(len(first_device)) + np.uint64(d)
                at = slot_of(slots, taken, key)
                if taken[at] < 0:
                    slots[at], taken[at] = key, found
                    load_group[found], load_device[found] = group[g], d
                    found += 1
                load_count[taken[at]] += 1
    return found

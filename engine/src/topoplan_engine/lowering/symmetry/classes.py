"""Classes of the parts, all-reduces and pairs of one iteration, and what the interfaces of each class of devices carry.

Data flow: one compiled pass, `equitable_partition`, refines colors (`topoplan_engine.lowering.symmetry.refinement`),
numbers the classes anew in an order that no numbers decide (`topoplan_engine.lowering.symmetry.order`), names the
channels by which messages go that are served in turn, and counts what the classes send.
`topoplan_engine.lowering.symmetry.quotient` makes one task for each class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, U64
from topoplan_engine.kernels.hashing import slot_of
from topoplan_engine.kernels.jit import njit, part
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.symmetry.order import (
    ascending,
    device_order,
    group_order,
    pair_order,
    part_order,
    renumber,
)
from topoplan_engine.lowering.symmetry.refinement import (
    ColoredGraph,
    Workspace,
    color_of_channel,
    colored_graph,
    partition,
    slots_for,
    workspace,
)

__all__ = ["Classes", "equitable_partition", "loads_of_groups"]


class Classes(NamedTuple):
    """An equitable partition; classes are in canonical order (`topoplan_engine.lowering.symmetry.order`).

    Attributes:
        part, group, pair: class of each part (n,), all-reduce (G,) and pair (m,); of no pair, where those of devices
            were known before (`topoplan_engine.lowering.symmetry.known_devices`).
        first_part, first_group, first_pair: first member of each class, which represents it; where those of devices
            were known, the first one that is on the first device of a class, or begins or ends there.
        channels: (pair classes, 2) numbers of the channels by which the messages of the class go, from the producers
            and back, in the order in which classes of pairs meet them; 0 where messages are too long to be served in
            turn.
        sends, receives: (pair classes,) pairs of the class that leave the first device of the class of its producers'
            devices, and that reach the first device of the class of its consumers' devices.
        load_group, load_device, load_count: rows (class of all-reduces, class of devices, all-reduces of the class
            that each of these devices takes part in), by the first.
        device: (D,) class of each device.
        key: equal for strategies that differ in the numbers of their parts, devices and automorphic operators only.
    """

    part: I32
    group: I32
    pair: I32
    first_part: I32
    first_group: I32
    first_pair: I32
    channels: I32
    sends: I64
    receives: I64
    load_group: I32
    load_device: I32
    load_count: I64
    device: I32
    key: int


def equitable_partition(
    table: PartTable, op_class: U64, edge_class: U64, device_color: U64, in_turn_bytes: int = 0
) -> Classes | None:
    """Return the coarsest equitable partition that refines initial colors.

    None if two messages of one class are served in turn by the same channel: then one has to wait for the other.

    Args:
        table, op_class, edge_class, in_turn_bytes: see `topoplan_engine.lowering.symmetry.refinement.initial_colors`.
        device_color: (D,) initial colors of devices; zeros, if nothing is known of them.  Those of an equitable
            partition need not be refined.
    """
    equitable, columns = _equitable_partition(tuple(table), op_class, edge_class, device_color, in_turn_bytes)
    return Classes(*columns) if equitable else None


@njit()
def _equitable_partition(columns: Any, op_class: U64, edge_class: U64, device_color: U64, in_turn_bytes: int) -> Any:
    """See `equitable_partition`; ``columns`` are those of the table (a tuple with names takes longer to hand over)."""
    table, n_devices = PartTable(*columns), len(device_color)
    graph = colored_graph(table, op_class, edge_class, n_devices, in_turn_bytes)
    work = workspace(graph, n_devices)
    n_parts, n_groups, n_pairs, n_classes = partition(graph, work, device_color)
    order = part_order(table, op_class, graph.place, work.part, work.first_part[:n_parts])
    first_part = renumber(order, work.part_class, work.first_part[:n_parts])
    order = group_order(table, op_class, work.group, work.first_group[:n_groups])
    first_group = renumber(order, work.group_class, work.first_group[:n_groups])
    ends = (graph.src, graph.dst, work.part_class)
    order = pair_order(table, edge_class, graph.turn, work.pair, work.first_pair[:n_pairs], *ends)
    first_pair = renumber(order, work.pair_class, work.first_pair[:n_pairs])
    order = device_order(graph.device, first_part, work.device_class, n_classes)
    first_device = renumber(order, work.device_class, work.first_device[:n_classes])
    channels = np.empty((n_pairs, 2), np.int32)
    equitable = _name_channels(graph, work, first_pair, np.zeros(len(work.channel), np.int32), channels)
    _number_channels(table, in_turn_bytes, first_pair, graph.places, channels)
    sends, receives = _loads_of_pairs(graph, work, first_device, n_pairs)
    of_groups = (work.group_class, n_groups, work.device_class, first_device)
    loads = loads_of_groups(table.device_ptr, table.group_devices, *of_groups)
    of_parts = (work.part_class, work.group_class, work.pair_class)
    return equitable, (
        *of_parts,
        first_part,
        first_group,
        first_pair,
        channels,
        sends,
        receives,
        *loads,
        work.device_class,
        work.part.sum(),
    )


@part(_nrt=False)
def _name_channels(graph: ColoredGraph, work: Workspace, first_pair: I32, waiting: I32, channels: I32) -> bool:
    """Write the first of the channels that are like that of each class of pairs that waits, there and back; else -1.

    Say whether every channel serves at most one message of each class.  ``waiting`` (places,) counts the messages of
    each channel that no class has claimed yet; it is 0.
    """
    if len(graph.in_turn) == 0:
        for c in range(len(channels)):
            channels[c, 0] = channels[c, 1] = -1
        return True
    for k in range(len(graph.in_turn)):
        if graph.in_turn[k]:
            waiting[graph.forth[k]] += 1
            waiting[graph.back[k]] += 1
    keys, numbers = work.keys, work.numbers
    for slot in range(len(numbers)):
        numbers[slot] = -1
    for c in range(len(channels)):
        k = first_pair[c]
        channels[c, 0] = channels[c, 1] = -1
        if not graph.in_turn[k]:
            continue
        forth, back = graph.forth[k], graph.back[k]
        for way in range(2):
            color = color_of_channel(work, forth, back)
            slot = slot_of(keys, numbers, color)
            if numbers[slot] < 0:
                keys[slot], numbers[slot] = color, forth
            channels[c, way] = numbers[slot]
            waiting[numbers[slot]] -= 1
            forth, back = back, forth
    for c in range(len(channels)):
        for way in range(2):
            if channels[c, way] >= 0 and waiting[channels[c, way]] != 0:
                return False
    return True


@part()
def _number_channels(table: PartTable, in_turn_bytes: int, first_pair: I32, places: int, channels: I32) -> None:
    """Write `Classes.channels`, given those that `_name_channels` has written.

    Where no message waits for another, there are no places, and each of those that might has channels of its own.
    """
    number = np.full(places, -1, np.int32)
    count = 0
    for c in range(len(channels)):
        k = first_pair[c]
        for way in range(2):
            channel = channels[c, way]
            channels[c, way] = 0
            if table.local[k] or table.size[k] > in_turn_bytes:
                continue
            if places == 0:
                channels[c, way] = count
                count += 1
                continue
            if number[channel] < 0:
                number[channel] = count
                count += 1
            channels[c, way] = number[channel]


@part()
def _loads_of_pairs(graph: ColoredGraph, work: Workspace, first_device: I32, n_pairs: int) -> Any:
    """Return `Classes.sends` and ``receives``."""
    sends, receives = np.zeros(n_pairs, np.int64), np.zeros(n_pairs, np.int64)
    counts = work.next_part
    for p in range(len(counts)):  # whether the part is on the first device of a class
        counts[p] = np.uint64(first_device[work.device_class[graph.device[p]]] == graph.device[p])
    for k in range(len(graph.src)):
        sends[work.pair_class[k]] += np.int64(counts[graph.src[k]])
        receives[work.pair_class[k]] += np.int64(counts[graph.dst[k]])
    return sends, receives


@part()
def loads_of_groups(
    device_ptr: I32, devices: I32, group_class: I32, n_groups: int, device_class: I32, first_device: I32
) -> Any:
    """Return `Classes.load_group`, ``load_device`` and ``load_count``.

    Args:
        device_ptr, devices: CSR, the devices of each all-reduce.
        group_class, n_groups: class of each all-reduce, and how many there are.
        device_class: (D,) class of each device.
        first_device: the first one of each class.
    """
    slots = slots_for(min(n_groups * len(first_device), len(devices)) + 1)
    keys, numbers = np.empty(slots, np.uint64), np.full(slots, -1, np.int32)
    load_group, load_device = np.empty(len(devices), np.int32), np.empty(len(devices), np.int32)
    load_count, count = np.zeros(len(devices), np.int64), 0
    for g in range(len(group_class)):
        for k in range(device_ptr[g], device_ptr[g + 1]):
            d = device_class[devices[k]]
            if first_device[d] != devices[k]:
                continue
            key = np.uint64(group_class[g]) * np.uint64(len(first_device)) + np.uint64(d)
            slot = slot_of(keys, numbers, key)
            if numbers[slot] < 0:
                keys[slot], numbers[slot] = key, count
                load_group[count], load_device[count] = group_class[g], d
                count += 1
            load_count[numbers[slot]] += 1
    groups = np.empty((1, count), np.uint64)
    for k in range(count):
        groups[0, k] = load_group[k]
    order = ascending(groups)
    return load_group[order], load_device[order], load_count[order]

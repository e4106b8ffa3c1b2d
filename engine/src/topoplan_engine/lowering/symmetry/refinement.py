"""Color refinement: the coarsest equitable partition of the parts of one iteration.

The parts of one class run for equally long, exchange the same messages with parts of the same classes, belong to
like all-reduces, and share their device with the same sequence of parts.  Where a simulator serves small messages
between the same two devices in turn, the pairs of one class share their *channels*, from one device to the other and
back, with the same sequences of such messages, too.  Colors are 64-bit numbers; each round
mixes into a part's color those of its device, its all-reduces and its neighbours, until no class splits any more
(Weisfeiler, Leman, 1968).

Data flow: `colored_graph` makes a `ColoredGraph` of a `PartTable` (`initial_colors` does that for Python);
`partition` refines its colors in a `Workspace` and numbers classes by their first members.
`topoplan_engine.lowering.symmetry.classes` puts these in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I32, U64
from topoplan_engine.kernels.hashing import mix_briefly, slot_of
from topoplan_engine.kernels.jit import inline_kernel, njit, part
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.symmetry.channels import ChannelTable, channel_place, channel_table

__all__ = [
    "ONE",
    "THREE",
    "TWO",
    "ColoredGraph",
    "Workspace",
    "color_of_channel",
    "color_of_part",
    "color_of_sum",
    "colored_graph",
    "initial_colors",
    "list_part",
    "number_colors",
    "partition",
    "slots_for",
    "workspace",
]

#: Odd numbers without pattern (the primes of xxHash64, the first one replaced by 2^64 / golden ratio): each marks one
#: kind of what is mixed, so that, for example, a producer is not taken for a consumer.
ONE = np.uint64(0x9E3779B97F4A7C15)
TWO = np.uint64(0xC2B2AE3D27D4EB4F)
THREE = np.uint64(0x165667B19E3779F9)
#: Slots of a hash table of colors at first; a power of two.
_FEW_SLOTS = 1 << 9


class ColoredGraph(NamedTuple):
    """Parts, all-reduces and pairs of parts of one strategy, with colors that tell them apart by themselves.

    Parts are numbered through, operator by operator.

    Attributes:
        device, part_color: (n,) device and color of each part.
        part_ptr, group_parts: CSR, the parts whose gradients enter each all-reduce.
        device_ptr, group_devices: CSR, its devices.
        group_color: (G,) of the all-reduces.
        src, dst, pair_color: (m,) parts at the ends of each pair, and its color.
        in_turn: (m,) whether the pair's messages are served in turn with others; empty if none has to wait for another.
        forth, back: (m,) places of their channels (`topoplan_engine.lowering.symmetry.channels`), from the producer and
            to it; empty likewise, and undefined where messages are not served in turn.
        places: of channels.
        turn, place: (n,) how many other operators of its class a part's device lists before, and how many parts of
            them and of its own.  Automorphic operators stand next to each other, so that the order of the parts of a
            device is that by (class of operators, place).
    """

    device: I32
    part_color: U64
    part_ptr: I32
    group_parts: I32
    device_ptr: I32
    group_devices: I32
    group_color: U64
    src: I32
    dst: I32
    pair_color: U64
    in_turn: NDArray[np.bool_]
    forth: I32
    back: I32
    places: int
    turn: I32
    place: I32


class Workspace(NamedTuple):
    """What the kernels write: colors, a hash table, and class numbers.

    Attributes:
        part, next_part: (n,) colors of parts in this round and in the next one.
        device, group, pair: (D,), (G,) and (m,) colors.
        sent, fetched: (n,) what a part's color adds to that of a part that it sends to, or is sent by.
        channel: (places,) colors of what producers send from one device to another, in turn; as much goes back there
            as gradients.  Empty if nothing is served in turn.
        label: (m,) colors of pairs without their parts, by the channels of the last round; empty likewise.
        keys, numbers: the hash table (`topoplan_engine.kernels.hashing`).
        part_class, device_class, group_class, pair_class: numbers of the classes.
        first_part, first_device, first_group, first_pair: the first member of each class, as far as there are classes.
    """

    part: U64
    next_part: U64
    device: U64
    group: U64
    pair: U64
    sent: U64
    fetched: U64
    channel: U64
    label: U64
    keys: U64
    numbers: I32
    part_class: I32
    device_class: I32
    group_class: I32
    pair_class: I32
    first_part: I32
    first_device: I32
    first_group: I32
    first_pair: I32


class _Bits(NamedTuple):
    """The bit patterns of a `PartTable`'s seconds."""

    forward: U64
    backward: U64
    group_seconds: U64


def initial_colors(
    table: PartTable, op_class: U64, edge_class: U64, n_devices: int, in_turn_bytes: int = 0
) -> ColoredGraph:
    """Color parts, all-reduces and pairs by what tells them apart by themselves.

    Args:
        table: the strategy.
        op_class, edge_class: (n_ops,) and (m,), equal for automorphic operators and edges.
        n_devices: of the cluster.
        in_turn_bytes: messages of no more bytes between the same two devices are served in turn.
    """
    return ColoredGraph(*colored_graph(table, op_class, edge_class, n_devices, in_turn_bytes))


@njit()
def colored_graph(table: PartTable, op_class: U64, edge_class: U64, n_devices: int, in_turn_bytes: int) -> Any:
    """See `initial_colors`."""
    turn, place = np.empty(len(table.device), np.int32), np.empty(len(table.device), np.int32)
    _count_before(table, op_class, np.full((4, n_devices), -1, np.int32), turn, place)
    graph = ColoredGraph(
        table.device,
        np.empty(len(table.device), np.uint64),
        table.part_ptr,
        np.empty(len(table.group_parts), np.int32),
        table.device_ptr,
        table.group_devices,
        np.empty(len(table.group_bytes), np.uint64),
        np.empty(len(table.src), np.int32),
        np.empty(len(table.dst), np.int32),
        np.empty(len(table.src), np.uint64),
        np.empty(len(table.src), np.bool_),
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        0,
        turn,
        place,
    )
    seconds = (table.forward.view(np.uint64), table.backward.view(np.uint64), table.group_seconds.view(np.uint64))
    _color(table, _Bits(*seconds), op_class, edge_class, in_turn_bytes, graph)
    in_turn, waiting = graph.in_turn, 0
    for k in range(len(in_turn)):
        waiting += 1 if in_turn[k] else 0
    forth, back, places, waits = graph.forth, graph.back, 0, waiting > 0
    if waits:
        channels = channel_table(n_devices, waiting)
        forth, back = np.empty(len(in_turn), np.int32), np.empty(len(in_turn), np.int32)
        places = channels.places
        waits = _find_channels(graph, channels, np.zeros(places, np.bool_), forth, back)
    if not waits:
        in_turn, forth, back, places = np.zeros(0, np.bool_), graph.forth, graph.back, 0
    return ColoredGraph(
        graph.device,
        graph.part_color,
        graph.part_ptr,
        graph.group_parts,
        graph.device_ptr,
        graph.group_devices,
        graph.group_color,
        graph.src,
        graph.dst,
        graph.pair_color,
        in_turn,
        forth,
        back,
        places,
        turn,
        place,
    )


@inline_kernel
def slots_for(most: int) -> int:
    """Return the slots of a hash table for so many colors: a power of two."""
    slots = 1
    while slots < 2 * most:
        slots *= 2
    return slots


@part()
def workspace(graph: ColoredGraph, n_devices: int) -> Any:
    """Allocate a workspace; all is undefined before a kernel writes it."""
    parts, groups, pairs, waiting = len(graph.device), len(graph.group_color), len(graph.src), len(graph.in_turn)
    slots = slots_for(max(parts, groups, pairs, len(graph.group_devices), n_devices, 1))
    return Workspace(
        np.empty(parts, np.uint64),
        np.empty(parts, np.uint64),
        np.empty(n_devices, np.uint64),
        np.empty(groups, np.uint64),
        np.empty(pairs, np.uint64),
        np.empty(parts, np.uint64),
        np.empty(parts, np.uint64),
        np.empty(graph.places, np.uint64),
        np.empty(waiting, np.uint64),
        np.empty(slots, np.uint64),
        np.empty(slots, np.int32),
        np.empty(parts, np.int32),
        np.empty(n_devices, np.int32),
        np.empty(groups, np.int32),
        np.empty(pairs, np.int32),
        np.empty(parts, np.int32),
        np.empty(n_devices, np.int32),
        np.empty(groups, np.int32),
        np.empty(pairs, np.int32),
    )


@part(_nrt=False)
def _count_before(table: PartTable, op_class: U64, latest: I32, turn: I32, place: I32) -> None:
    """Write `ColoredGraph.turn` and ``place``.

    ``latest`` (4, D) is of the part that each device has listed last: its class, its operator, its turn and its place;
    -1 at first.
    """
    for p in range(len(table.op)):
        d = table.device[p]
        list_part(latest, d, table.op[p], op_class)
        turn[p], place[p] = latest[2, d], latest[3, d]


@inline_kernel
def list_part(latest: I32, d: int, op: int, op_class: U64) -> None:
    """Take note of the next part that device ``d`` lists, which is one of ``op``; see `_count_before`."""
    if latest[0, d] != op_class[op]:
        latest[0, d], latest[2, d], latest[3, d] = op_class[op], 0, 0
    else:
        latest[2, d] += latest[1, d] != op
        latest[3, d] += 1
    latest[1, d] = op


@inline_kernel
def color_of_part(of_class: Any, turn: int, forward: Any, backward: Any) -> Any:
    """Color of a part by itself: class of operators, turn, and bits of its seconds."""
    return mix_briefly(mix_briefly(mix_briefly(of_class) + np.uint64(turn) * TWO + forward) + backward)


@inline_kernel
def color_of_sum(nbytes: int, n_devices: int, seconds: Any) -> Any:
    """Color of an all-reduce by itself: bytes, devices, and bits of its seconds."""
    return mix_briefly(mix_briefly(np.uint64(nbytes)) + np.uint64(n_devices) + seconds)


@part(_nrt=False)
def _color(
    table: PartTable, bits: _Bits, op_class: U64, edge_class: U64, in_turn_bytes: int, graph: ColoredGraph
) -> None:
    """Number parts through, and write the initial colors into ``graph``."""
    for p in range(len(table.op)):
        graph.part_color[p] = color_of_part(op_class[table.op[p]], graph.turn[p], bits.forward[p], bits.backward[p])
    for g in range(len(table.group_op)):
        n_devices = table.device_ptr[g + 1] - table.device_ptr[g]
        graph.group_color[g] = color_of_sum(table.group_bytes[g], n_devices, bits.group_seconds[g])
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            graph.group_parts[k] = table.op_base[table.group_op[g]] + table.group_parts[k]
    for e in range(len(table.edge_src_op)):
        label = mix_briefly(edge_class[e] + ONE)
        for k in range(table.edge_ptr[e], table.edge_ptr[e + 1]):
            graph.src[k] = table.op_base[table.edge_src_op[e]] + table.src[k]
            graph.dst[k] = table.op_base[table.edge_dst_op[e]] + table.dst[k]
            graph.pair_color[k] = mix_briefly(label + np.uint64(2 * table.size[k] + table.local[k]))
            graph.in_turn[k] = not table.local[k] and table.size[k] <= in_turn_bytes


@part(_nrt=False)
def _find_channels(
    graph: ColoredGraph, channels: ChannelTable, visited: NDArray[np.bool_], forth: I32, back: I32
) -> bool:
    """Write `ColoredGraph.forth` and ``back``; say whether any two pairs that are served in turn have the same devices.

    ``channels`` is empty, ``visited`` (places,) is room.
    """
    waits = False
    for k in range(len(graph.in_turn)):
        if graph.in_turn[k]:
            a, b = graph.device[graph.src[k]], graph.device[graph.dst[k]]
            forth[k], back[k] = channel_place(channels, a, b), channel_place(channels, b, a)
            waits |= visited[forth[k]]
            visited[forth[k]] = visited[back[k]] = True
    return bool(waits)


@inline_kernel
def number_colors(colors: U64, keys: U64, numbers: I32, classes: I32, first: I32) -> int:
    """Give equal colors one number, by first occurrence; return how many different ones there are.

    Most colors are equal, so that the table begins small, and stays where memory is fast.  Invariant: at most half of
    its slots are taken.
    """
    slots = min(_FEW_SLOTS, len(numbers))
    for slot in range(slots):
        numbers[slot] = -1
    count = 0
    for k in range(len(colors)):
        slot = slot_of(keys[:slots], numbers[:slots], colors[k])
        if numbers[slot] < 0:
            keys[slot], numbers[slot] = colors[k], count
            first[count] = k
            classes[k] = count
            count += 1
            if 2 * count > slots and slots < len(numbers):
                slots *= 2
                for slot in range(slots):
                    numbers[slot] = -1
                for c in range(count):
                    slot = slot_of(keys[:slots], numbers[:slots], colors[first[c]])
                    keys[slot], numbers[slot] = colors[first[c]], c
        else:
            classes[k] = numbers[slot]
    return count


@inline_kernel
def _splits(colors: U64, classes: I32, first: I32) -> bool:
    """Whether members of some class have different colors now."""
    k = 0
    while k < len(colors) and colors[k] == colors[first[classes[k]]]:
        k += 1
    return k < len(colors)


@inline_kernel
def _color_of_group(graph: ColoredGraph, part: U64, g: int) -> Any:
    """Color of an all-reduce: its initial one, and its parts in any order."""
    total = np.uint64(0)
    for k in range(graph.part_ptr[g], graph.part_ptr[g + 1]):
        total += mix_briefly(part[graph.group_parts[k]] + TWO)
    return mix_briefly(total + graph.group_color[g])


@inline_kernel
def _color_of_pair(graph: ColoredGraph, work: Workspace, k: int, label: Any) -> Any:
    """Color of a pair: a label, and its parts."""
    return mix_briefly(work.sent[graph.src[k]] + work.fetched[graph.dst[k]] * label)


@inline_kernel
def _color_ends(work: Workspace) -> None:
    """Mix what the colors of parts add to others.

    That is multiplied by colors of pairs.  Sums of products tell apart which factors belong together, for all of them
    are mixed.
    """
    for p in range(len(work.part)):
        work.sent[p] = mix_briefly(work.part[p] * TWO + THREE)
        work.fetched[p] = mix_briefly(work.part[p] + TWO)


@inline_kernel
def _color_channels(graph: ColoredGraph, work: Workspace) -> None:
    """Color the channels by their messages, in the order of the pairs: in it they leave if nothing else tells."""
    channel = work.channel
    for c in range(len(channel)):
        channel[c] = ONE
    for k in range(len(graph.in_turn)):
        if graph.in_turn[k]:
            c = graph.forth[k]
            color = _color_of_pair(graph, work, k, graph.pair_color[k])
            channel[c] = mix_briefly(channel[c] * TWO + color)


@inline_kernel
def color_of_channel(work: Workspace, forth: int, back: int) -> Any:
    """Color of all that passes by the channel at place ``forth``, the gradients of what passes back among it."""
    return mix_briefly(work.channel[forth] + mix_briefly(work.channel[back] + THREE))


@inline_kernel
def _label(graph: ColoredGraph, work: Workspace, k: int) -> Any:
    """Color of a pair without its parts: its initial one, and its channels if it waits there."""
    if not graph.in_turn[k]:
        return graph.pair_color[k]
    forth, back = work.channel[graph.forth[k]], work.channel[graph.back[k]]
    return mix_briefly(graph.pair_color[k] + forth * TWO + mix_briefly(back + ONE))


@part(_nrt=False)
def partition(graph: ColoredGraph, work: Workspace, device_color: U64) -> tuple[int, int, int, int]:
    """Write colors and class numbers; return how many classes of parts, all-reduces, pairs and devices there are.

    ``device_color`` are initial colors of the devices.
    """
    n_parts = _refine(graph, work, device_color)
    _color_rest(graph, work)
    n_groups = number_colors(work.group, work.keys, work.numbers, work.group_class, work.first_group)
    n_pairs = number_colors(work.pair, work.keys, work.numbers, work.pair_class, work.first_pair)
    n_devices = number_colors(work.device, work.keys, work.numbers, work.device_class, work.first_device)
    return n_parts, n_groups, n_pairs, n_devices


@inline_kernel
def _refine(graph: ColoredGraph, work: Workspace, device_color: U64) -> int:
    """Color the parts until no class splits; number the classes and return how many there are.

    Invariant: parts of different colors stay different, since each round mixes in a part's own color before it.
    """
    part, next_part, device = work.part, work.next_part, work.device
    for p in range(len(part)):
        part[p] = mix_briefly(graph.part_color[p] + device_color[graph.device[p]])
    waits = len(graph.in_turn) > 0
    split, channels = True, waits and device_color[0] != 0  # a round may be all that is left to do
    count = number_colors(part, work.keys, work.numbers, work.part_class, work.first_part)
    while split or (waits and not channels):
        if not split:  # channels cost more than all else, and rarely tell more apart
            channels = True
        _color_ends(work)
        if channels:
            _color_channels(graph, work)
        for d in range(len(device)):
            device[d] = ONE
        for p in range(len(part)):  # in the order in which the device lists them, which tells equal ones apart
            device[graph.device[p]] = mix_briefly(device[graph.device[p]] * TWO + part[p])
            next_part[p] = device[graph.device[p]] * THREE
        for p in range(len(part)):
            next_part[p] += mix_briefly(device[graph.device[p]] + ONE)
        for g in range(len(work.group)):
            color = _color_of_group(graph, part, g)
            for k in range(graph.part_ptr[g], graph.part_ptr[g + 1]):
                next_part[graph.group_parts[k]] += color
        for k in range(len(graph.src)):
            a, b = graph.src[k], graph.dst[k]
            label = graph.pair_color[k]
            if channels:
                label = work.label[k] = _label(graph, work, k)
            next_part[a] += work.fetched[b] * label
            next_part[b] += work.sent[a] * label
        for p in range(len(part)):
            part[p] = mix_briefly(next_part[p])
        split = _splits(part, work.part_class, work.first_part)
        if split:
            count = number_colors(part, work.keys, work.numbers, work.part_class, work.first_part)
    return int(count)


@inline_kernel
def _color_rest(graph: ColoredGraph, work: Workspace) -> None:
    """Color devices, all-reduces and pairs by the final colors of the parts, and pairs by the labels that they have."""
    for d in range(len(work.device)):
        work.device[d] = ONE
    for p in range(len(work.part)):
        d = graph.device[p]
        work.device[d] = mix_briefly(work.device[d] * TWO + work.part[p])
    for g in range(len(work.group)):
        work.group[g] = _color_of_group(graph, work.part, g)
    _color_ends(work)
    # The last round split nothing, so that its channels tell apart what those of the final colors would.
    labels = work.label if len(work.label) > 0 else graph.pair_color
    for k in range(len(work.pair)):
        work.pair[k] = _color_of_pair(graph, work, k, labels[k])

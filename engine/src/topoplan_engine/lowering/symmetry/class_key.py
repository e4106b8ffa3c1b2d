"""Keys of classes of strategies: equal where only the numbers of parts, devices and automorphic operators differ.

A search asks for the class of every strategy that it may accept, and has met most classes before.  So the key is
derived without the partition (`topoplan_engine.lowering.symmetry.refinement`), from the columns of the fragments, and
by refining the colors of devices instead of those of parts.  Both tell the same strategies apart: parts of one class
are parts of devices of one color that have the same operator and *place* among its parts there.

What a device's own parts say never changes, so that it is mixed into the first color of the device: its list of parts,
pairs of them, and all-reduces of one part.  Neither do two kinds of neighbours tell devices apart, of an operator with
one part on each device (a *spread* one): an all-reduce over all of its parts, and an edge from which each of its parts
takes as much of every part of the producer.  Each device sees the same colors there, but for its own parts.  Those that
are left, pairs of parts on different devices and other all-reduces, are what each round mixes.

Messages that one device sends another in turn are named by what they are, and by what goes the same way before them.
Edges to a spread operator send along all channels of a device alike; the list of them is mixed into its color.

Data flow: `ClassKeys.of` hands the columns of `Pieces` to one compiled pass: `_list_parts` colors devices and weighs
parts, `_join_groups` and `_join_pairs` list the neighbours, `_refine` mixes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I8, I32, I64, U64
from topoplan.model.strategy import Strategy
from topoplan_engine.kernels.hashing import mix_briefly, slot_of
from topoplan_engine.kernels.jit import njit, part
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.pieces import (
    FIRST_FLAG,
    FIRST_FLOAT,
    FIRST_INT,
    FIRST_LONG,
    GROUP_PARTS,
    GROUPS,
    PARTS,
    Pieces,
)
from topoplan_engine.lowering.symmetry.channels import ChannelTable, channel_place, channel_table

__all__ = ["ClassKeys"]

#: Odd numbers without pattern; see `topoplan_engine.lowering.symmetry.refinement`.
_ONE = np.uint64(0x9E3779B97F4A7C15)
_TWO = np.uint64(0xC2B2AE3D27D4EB4F)
_THREE = np.uint64(0x165667B19E3779F9)
#: Whether an edge sends as many bytes from every part of its producer to every part of its consumer.
_UNKNOWN, _VARIED, _UNIFORM = range(3)


class _Fragments(NamedTuple):
    """Fragments of one strategy.

    Attributes:
        numbers: (operators + edges,) of the fragments.
        rows, ints, bits, longs, flags: `FragmentColumns`, with the bits of the floats.
        uniform: by fragment, whether an edge is uniform.
        op_class, edge_class: (n_ops,) and (m,), equal for automorphic operators and edges.
        edge_ops: (2, m) producers and consumers.
    """

    numbers: I64
    rows: I64
    ints: I32
    bits: U64
    longs: I64
    flags: NDArray[np.bool_]
    uniform: I8
    op_class: U64
    edge_class: U64
    edge_ops: I32


class _Devices(NamedTuple):
    """What is known of (D,) devices.

    Attributes:
        parts: color of the list of their parts.
        inside: sum over pairs of their parts, and all-reduces of one of them.
        outside: color of the list of edges from their parts to spread operators.
        latest: (4, D) class, operator, turn and place of the part that was listed last; -1 at first.
        color, neighbour: colors of a round, and what they add to those of neighbours.
        keys, numbers: a hash table.
    """

    parts: U64
    inside: U64
    outside: U64
    latest: I32
    color: U64
    neighbour: U64
    keys: U64
    numbers: I32


class _Parts(NamedTuple):
    """What is known of parts and operators.

    Attributes:
        base: (n_ops+1,) parts before each operator.
        weight: (n,) color of the class of operators and of the place among its parts on the device.
        spread: (n_ops,) whether there is one part on each device.
    """

    base: I64
    weight: U64
    spread: NDArray[np.bool_]


class _Neighbours(NamedTuple):
    """What rounds mix: pairs of parts on different devices, and all-reduces.

    Attributes:
        source, target, weight: of each pair, the devices and the color.
        in_turn: whether its messages may be served in turn with others.
        before: color of the list of edges to spread operators that the source's device had by then.
        group_op, group_first, group_size, group_color: of each all-reduce, its operator, where its parts begin in
            ``_Fragments.ints``, how many they are, and its color.
    """

    source: I32
    target: I32
    weight: U64
    in_turn: NDArray[np.bool_]
    before: U64
    group_op: I32
    group_first: I64
    group_size: I32
    group_color: U64


class ClassKeys:
    """Keys of classes of placed strategies."""

    def __init__(self, fragments: FragmentCache, pieces: Pieces) -> None:
        self._pieces = pieces
        self._n_devices = fragments.cluster.n_devices
        self._of_model = (fragments.op_class, fragments.edge_class, fragments.edge_ops)
        # By the number of a fragment, in one generation of numbers.
        self._generation, self._uniform = pieces.generation, np.zeros(0, np.int8)
        # The answer to the last question: of a strategy whose key is new, the colors of the devices are asked next.
        self._last_refined: tuple[Any, Any] = (None, None)

    def of(self, strategy: Strategy, in_turn_bytes: int) -> int:
        """Return the key of a strategy; messages of no more bytes between the same two devices are served in turn."""
        self._pieces.make_room()
        return self.of_numbers(self._pieces.numbers(strategy), in_turn_bytes)

    def of_numbers(self, numbers: I64, in_turn_bytes: int) -> int:
        """Return the key of a strategy whose fragments have these numbers (`Pieces.numbers`)."""
        return int(self._refined(numbers, in_turn_bytes)[0])

    def device_colors(self, numbers: I64, in_turn_bytes: int) -> U64:
        """Return (D,) colors of the devices, the same for strategies of one class: of an equitable partition."""
        colors: U64 = self._refined(numbers, in_turn_bytes)[1]
        return colors

    def _refined(self, numbers: I64, in_turn_bytes: int) -> Any:
        """Return the key, and the colors of the devices."""
        pieces = self._pieces
        question = (pieces.generation, in_turn_bytes, numbers.tobytes())
        if self._last_refined[0] == question:
            return self._last_refined[1]
        rows, ints, floats, longs, flags = pieces.columns
        if self._generation != pieces.generation or len(self._uniform) < len(rows):
            earlier = self._uniform if self._generation == pieces.generation else self._uniform[:0]
            self._generation, self._uniform = pieces.generation, np.zeros(len(rows), np.int8)
            self._uniform[: len(earlier)] = earlier
        columns = (numbers, rows, ints, floats.view(np.uint64), longs, flags, self._uniform, *self._of_model)
        self._last_refined = question, _class_key(columns, self._n_devices, in_turn_bytes)
        return self._last_refined[1]


@njit()
def _class_key(columns: Any, n_devices: int, in_turn_bytes: int) -> Any:
    """See `ClassKeys._refined`; ``columns`` are those of `_Fragments`, a plain tuple, handed over faster."""
    f = _Fragments(*columns)
    n_ops = len(f.op_class)
    base = np.zeros(n_ops + 1, np.int64)
    pairs, groups = 0, 0
    for op in range(n_ops):
        base[op + 1] = base[op] + f.rows[f.numbers[op], PARTS]
        groups += f.rows[f.numbers[op], GROUPS]
    parts = _Parts(base, np.empty(base[n_ops], np.uint64), np.empty(n_ops, np.bool_))
    slots = 1
    while slots < 2 * n_devices:
        slots *= 2
    devices = _Devices(
        np.full(n_devices, _ONE),
        np.zeros(n_devices, np.uint64),
        np.zeros(n_devices, np.uint64),
        np.full((4, n_devices), -1, np.int32),
        np.empty(n_devices, np.uint64),
        np.empty(n_devices, np.uint64),
        np.empty(slots, np.uint64),
        np.empty(slots, np.int32),
    )
    _list_parts(f, parts, devices)
    for e in range(len(f.edge_class)):
        if not _is_alike(f, parts, e):
            pairs += f.rows[f.numbers[n_ops + e], PARTS]
    neighbours = _Neighbours(
        np.empty(pairs, np.int32),
        np.empty(pairs, np.int32),
        np.empty(pairs, np.uint64),
        np.empty(pairs, np.bool_),
        np.empty(pairs, np.uint64),
        np.empty(groups, np.int32),
        np.empty(groups, np.int64),
        np.empty(groups, np.int32),
        np.empty(groups, np.uint64),
    )
    n_groups, common = _join_groups(f, parts, devices, neighbours)
    n_pairs = _join_pairs(f, parts, devices, neighbours, in_turn_bytes)
    waiting = 0
    for k in range(n_pairs):
        waiting += 1 if neighbours.in_turn[k] else 0
    if waiting > 0:
        channels = channel_table(n_devices, waiting)
        _mix_channels(neighbours, n_pairs, channels, np.full(channels.places, _ONE))
    return _refine(f, parts, devices, neighbours, n_pairs, n_groups) + common, devices.color


@part(_nrt=False)
def _list_parts(f: _Fragments, parts: _Parts, devices: _Devices) -> None:
    """Weigh all parts, and color devices by the lists of theirs."""
    latest = devices.latest
    for op in range(len(f.op_class)):
        row = f.rows[f.numbers[op]]
        count, first, seconds = row[PARTS], row[FIRST_INT], row[FIRST_FLOAT]
        op_class = np.int32(f.op_class[op])
        of_class = mix_briefly(f.op_class[op] + _ONE)
        spread = count == len(devices.parts)
        for k in range(count):
            d = f.ints[first + k]
            if latest[0, d] != op_class:
                latest[0, d], latest[2, d], latest[3, d] = op_class, 0, 0
            else:
                latest[2, d] += latest[1, d] != op
                latest[3, d] += 1
                spread = False
            latest[1, d] = op
            weight = of_class if latest[3, d] == 0 else mix_briefly(of_class + np.uint64(latest[3, d]))
            parts.weight[parts.base[op] + k] = weight
            color = mix_briefly(weight + np.uint64(latest[2, d]) * _TWO + f.bits[seconds + k])
            color = mix_briefly(color + f.bits[seconds + count + k])
            devices.parts[d] = mix_briefly(devices.parts[d] * _TWO + color)
        parts.spread[op] = spread


@part(_nrt=False)
def _is_alike(f: _Fragments, parts: _Parts, e: int) -> bool:
    """Whether an edge sends each device as much of every part of the producer."""
    number, u, v = f.numbers[len(f.op_class) + e], f.edge_ops[0, e], f.edge_ops[1, e]
    if not parts.spread[v]:
        return False
    if f.uniform[number] == _UNKNOWN:
        row = f.rows[number]
        count, first = row[PARTS], row[FIRST_LONG]
        uniform = count == (parts.base[u + 1] - parts.base[u]) * (parts.base[v + 1] - parts.base[v])
        for k in range(first, first + count):
            uniform &= f.longs[k] == f.longs[first]
        f.uniform[number] = _UNIFORM if uniform else _VARIED
    return bool(f.uniform[number] == _UNIFORM)


@part(_nrt=False)
def _join_groups(f: _Fragments, parts: _Parts, devices: _Devices, neighbours: _Neighbours) -> tuple[int, Any]:
    """List the all-reduces that tell devices apart; return how many, and the sum over those that do not."""
    listed, common = 0, np.uint64(0)
    for op in range(len(f.op_class)):
        row = f.rows[f.numbers[op]]
        count, groups, members = row[PARTS], row[GROUPS], row[GROUP_PARTS]
        sizes = row[FIRST_INT] + count
        first = sizes + groups
        for g in range(groups):
            size = f.ints[sizes + g]
            color = mix_briefly(f.op_class[op] + _TWO) + np.uint64(f.ints[sizes + groups + members + g])
            color = mix_briefly(color + f.bits[row[FIRST_FLOAT] + 2 * count + g])
            color = mix_briefly(color + np.uint64(f.longs[row[FIRST_LONG] + g]))
            if parts.spread[op] and size == count:
                common += color
            elif size == 1:
                p = f.ints[first]
                devices.inside[f.ints[row[FIRST_INT] + p]] += mix_briefly(parts.weight[parts.base[op] + p] + color)
            else:
                neighbours.group_op[listed], neighbours.group_first[listed] = op, first
                neighbours.group_size[listed], neighbours.group_color[listed] = size, color
                listed += 1
            first += size
    return listed, common


@part(_nrt=False)
def _join_pairs(f: _Fragments, parts: _Parts, devices: _Devices, neighbours: _Neighbours, in_turn_bytes: int) -> int:
    """Mix pairs on one device into its color, list those on two, and return how many."""
    listed = 0
    for e in range(len(f.edge_class)):
        row, u, v = f.rows[f.numbers[len(f.op_class) + e]], f.edge_ops[0, e], f.edge_ops[1, e]
        of_edge = mix_briefly(f.edge_class[e] + _THREE)
        source, target = f.rows[f.numbers[u], FIRST_INT], f.rows[f.numbers[v], FIRST_INT]
        count, first, size, local = row[PARTS], row[FIRST_INT], row[FIRST_LONG], row[FIRST_FLAG]
        if _is_alike(f, parts, e):
            color = mix_briefly(of_edge + np.uint64(f.longs[size])) + parts.weight[parts.base[v]]
            for a in range(parts.base[u + 1] - parts.base[u]):
                d = f.ints[source + a]
                weight = mix_briefly(color + parts.weight[parts.base[u] + a] * _TWO)
                devices.outside[d] = mix_briefly(devices.outside[d] * _TWO + weight)
            continue
        for k in range(count):
            a, b = f.ints[first + k], f.ints[first + count + k]
            color = mix_briefly(of_edge + np.uint64(2 * f.longs[size + k] + f.flags[local + k]))
            weight = parts.weight[parts.base[u] + a] * _TWO + parts.weight[parts.base[v] + b] * _THREE
            weight = mix_briefly(color + weight)
            a, b = f.ints[source + a], f.ints[target + b]
            if a == b:
                devices.inside[a] += weight
                continue
            neighbours.source[listed], neighbours.target[listed], neighbours.weight[listed] = a, b, weight
            neighbours.in_turn[listed] = f.longs[size + k] <= in_turn_bytes
            neighbours.before[listed] = devices.outside[a]
            listed += 1
    return listed


@part(_nrt=False)
def _mix_channels(neighbours: _Neighbours, n_pairs: int, channels: ChannelTable, channel: U64) -> None:
    """Mix into pairs whose messages wait what goes the same way, there and back.

    The table of channels is empty; ``channel`` (places,) is `_ONE`.
    """
    for k in range(n_pairs):
        if neighbours.in_turn[k]:
            forth = channel_place(channels, neighbours.source[k], neighbours.target[k])
            color = mix_briefly(neighbours.before[k] + neighbours.weight[k])
            channel[forth] = mix_briefly(channel[forth] * _TWO + color)
    for k in range(n_pairs):
        if neighbours.in_turn[k]:
            a, b = neighbours.source[k], neighbours.target[k]
            forth, back = channel_place(channels, a, b), channel_place(channels, b, a)
            ways = channel[forth] * _TWO + mix_briefly(channel[back] + _ONE)
            neighbours.weight[k] = mix_briefly(neighbours.weight[k] + ways)


@part(_nrt=False)
def _refine(
    f: _Fragments, parts: _Parts, devices: _Devices, neighbours: _Neighbours, n_pairs: int, n_groups: int
) -> Any:
    """Color devices until no class splits, and return the sum over all of them.

    The last round splits nothing: in it each device sees the final classes of its neighbours.
    """
    color, total = devices.color, np.uint64(0)
    for d in range(len(color)):
        color[d] = mix_briefly(mix_briefly(devices.parts[d] + devices.inside[d] * _THREE) + devices.outside[d])
    if n_pairs + n_groups > 0:
        before, classes = 0, _count(devices)
        while before < classes:
            _mix_neighbours(f, parts, devices, neighbours, n_pairs, n_groups)
            before, classes = classes, _count(devices)
    for d in range(len(color)):
        total += mix_briefly(color[d])
    return total


@part(_nrt=False)
def _mix_neighbours(
    f: _Fragments, parts: _Parts, devices: _Devices, neighbours: _Neighbours, n_pairs: int, n_groups: int
) -> None:
    """Mix colors of neighbours into those of all devices.

    Sums of products tell apart which factors belong together, for all of them are mixed.
    """
    color, neighbour = devices.color, devices.neighbour
    for d in range(len(color)):
        neighbour[d] = mix_briefly(color[d] + _TWO)
        color[d] = color[d] * _THREE
    for k in range(n_pairs):
        a, b, weight = neighbours.source[k], neighbours.target[k], neighbours.weight[k]
        color[a] += neighbour[b] * weight
        color[b] += neighbour[a] * mix_briefly(weight)
    for g in range(n_groups):
        op, first = neighbours.group_op[g], neighbours.group_first[g]
        device, base, total = f.rows[f.numbers[op], FIRST_INT], parts.base[op], neighbours.group_color[g]
        for k in range(first, first + neighbours.group_size[g]):
            p = f.ints[k]
            total += neighbour[f.ints[device + p]] * parts.weight[base + p]
        total = mix_briefly(total)
        for k in range(first, first + neighbours.group_size[g]):
            p = f.ints[k]
            color[f.ints[device + p]] += total * parts.weight[base + p]
    for d in range(len(color)):
        color[d] = mix_briefly(color[d])


@part(_nrt=False)
def _count(devices: _Devices) -> int:
    """Return how many different colors there are."""
    keys, numbers, count = devices.keys, devices.numbers, 0
    for slot in range(len(numbers)):
        numbers[slot] = -1
    for color in devices.color:
        slot = slot_of(keys, numbers, color)
        if numbers[slot] < 0:
            keys[slot], numbers[slot] = color, 0
            count += 1
    return count

"""Color refinement: which vertices of a graph with labelled edges nothing tells apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.kernels.hashing import mix, mix_briefly, slot_of
from topoplan_engine.kernels.jit import inline_kernel, njit

__all__ = ["Classes", "bits_of", "classes_of", "few_classes_of", "label"]

_TWO, _THREE = np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
#: Bits of a float's mantissa that are not looked at: 40 of 52 stay, which is 1e-12 of a value.
_ROUNDED = 12
#: Slots of the hash table of colors, to begin with.
_FEW_SLOTS = 1 << 12


class Classes(NamedTuple):
    """A partition of the vertices of a graph.

    Attributes:
        of: (V,) number of the class of each vertex, by first occurrence.
        first: (C,) the first vertex of each class.
    """

    of: I64
    first: I64


class FlowEdges(NamedTuple):
    """Edges from the vertices of flows to those of the links that they load, which are not written out; N flows.

    Attributes:
        vertex, label: (N,) of each flow; an edge has the `label` of these parts and its load.
        listed: (N,) whether the edges of a flow are there.
        ptr, links, loads: as compressed rows, the links of each, and units of load there.
        counts: (E,) whether edges to a link are there.
        first_link: the vertex of the first link.
    """

    vertex: I64
    label: Any
    listed: Any
    ptr: I64
    links: I32
    loads: I64
    counts: Any
    first_link: int


def bits_of(values: Any) -> Any:
    """Return (n,) numbers for floats that are equal but for rounding."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    return (bits + np.uint64(1 << (_ROUNDED - 1))) >> np.uint64(_ROUNDED)


def label(*parts: Any) -> Any:
    """Return a uint64 for each row of some columns of integers, or for one row of numbers."""
    with np.errstate(over="ignore"):
        total: Any = np.uint64(0x9E3779B97F4A7C15)
        for part in parts:
            total = (total ^ np.asarray(part).astype(np.uint64)) * _TWO
            total = total ^ (total >> np.uint64(29))
    return total


_NO_FLOWS = FlowEdges(
    np.zeros(0, np.int64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.bool_),
    np.zeros(1, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.int64),
    np.zeros(0, np.bool_),
    0,
)


def classes_of(color: Any, tail: I32, head: I32, labels: Any) -> Classes:
    """Return the coarsest equitable partition that is finer than some colors.

    Args:
        color: (V,) uint64 of vertices; equal vertices may be in one class.
        tail, head: (n,) ends of edges, which have a direction.
        labels: (n,) uint64 of edges.

    Examples:
        Two vertices with an edge to a third one are equal:

        >>> import numpy as np
        >>> no_color, edges = np.zeros(3, np.uint64), np.zeros(2, np.uint64)
        >>> classes_of(no_color, np.array([0, 2], np.int32), np.array([1, 1], np.int32), edges).of.tolist()
        [0, 1, 0]
    """
    of, first, _ = _refined(color, tail, head, labels, _NO_FLOWS, 0, 0)
    return Classes(of, first)


def few_classes_of(
    color: Any, tail: I32, head: I32, labels: Any, flows: FlowEdges, among: int, most: int
) -> Classes | None:
    """Return the same as `classes_of`; None where the first ``among`` vertices are of more classes than ``most``.

    The edges of ``flows`` stand behind those that are listed.
    """
    of, first, few = _refined(color, tail, head, labels, flows, among, most)
    return Classes(of, first) if few else None


def _refined(
    color: Any, tail: I32, head: I32, labels: Any, flows: FlowEdges, among: int, most: int
) -> tuple[I64, I64, bool]:
    """Give `_refine` its room: numpy asks for large pages, of which a million vertices need a few."""
    n = len(color)
    slots = 1 << max(1, (2 * n - 1).bit_length())
    table = np.empty(slots, np.uint64), np.empty(slots, np.int32)
    of, first = np.empty(n, np.int64), np.empty(n, np.int64)
    colors = np.array(color, np.uint64), np.empty(n, np.uint64)
    count, few = _refine(colors, tail, head, labels, flows, among, most, table, of, first)
    return of, first[:count].copy(), few


@njit()
def _refine(
    colors: Any,
    tail: I32,
    head: I32,
    labels: Any,
    flows: FlowEdges,
    among: int,
    most: int,
    table: Any,
    of: I64,
    first: I64,
) -> tuple[int, bool]:
    """Color vertices by those of their neighbours until no class splits; return how many classes, and if they are few.

    ``of`` and ``first`` are written (`Classes`); both ``colors`` and the hash ``table`` are room, of which the first
    color is given.

    A round colors links by their flows, then flows by their links, then all vertices by the edges that are listed: what
    splits messages splits devices in the same round.  Each step mixes a vertex's own color in, so that different ones
    stay different; a round that splits no class leaves no step one to split.  Equal sums of mixed colors are taken for
    equal multisets, as in `topoplan_engine.lowering.symmetry.refinement`.
    """
    (color, following), n = colors, len(of)
    count, before, slots = 0, -1, min(_FEW_SLOTS, len(table[0]))
    while count != before:
        before = count
        count, slots = _number(color, table, slots, of, first, among, most)
        if slots == 0:
            return count, False
        if count == before:
            break
        if len(flows.vertex):
            _color_links(color, following, flows)
            _color_flows(color, following, flows)
        _start(color, following, 0, n)
        for e in range(len(tail)):
            a, b = tail[e], head[e]
            following[a] += mix_briefly(mix_briefly(color[b] + labels[e]) + _TWO)
            following[b] += mix_briefly(mix_briefly(color[a] + labels[e]) + _THREE)
        _end(color, following, 0, n)
    return count, True


@njit()
def _number(color: Any, table: Any, slots: int, of: I64, first: I64, among: int, most: int) -> tuple[int, int]:
    """Number colors by first occurrence; return how many there are, and the slots of the table that they needed.

    No slots where the first ``among`` vertices are of more classes than ``most``.  The table begins small: colors are
    few as a rule, and their slots then stay in the processor's cache.
    """
    v, count = 0, 0
    keys, numbers = table[0][:slots], table[1][:slots]
    numbers[:] = -1
    while v < len(of):
        slot = slot_of(keys, numbers, color[v])
        if numbers[slot] < 0:
            if 2 * count >= slots and slots < len(table[0]):
                slots, v, count = min(8 * slots, len(table[0])), 0, 0
                keys, numbers = table[0][:slots], table[1][:slots]
                numbers[:] = -1
                continue
            keys[slot], numbers[slot] = color[v], count
            first[count] = v
            count += 1
        of[v] = numbers[slot]
        if v < among and count > most:
            return count, 0
        v += 1
    return count, slots


@inline_kernel
def _start(color: Any, following: Any, first: int, end: int) -> None:
    """Begin the next colors of some vertices with their own."""
    for v in range(first, end):
        following[v] = color[v] * _THREE


@inline_kernel
def _end(color: Any, following: Any, first: int, end: int) -> None:
    """Take the next colors of some vertices."""
    for v in range(first, end):
        color[v] = mix(following[v])


@inline_kernel
def _edge(label: Any, load: int) -> Any:
    """Return the label of the edge from a flow to a link, which is `label` of both."""
    edge = (label ^ np.uint64(load)) * _TWO
    return edge ^ (edge >> np.uint64(29))


@njit()
def _color_links(color: Any, following: Any, flows: FlowEdges) -> None:
    """Color links by the flows that load them; most loads of a flow are equal to the one before."""
    first_link = flows.first_link
    _start(color, following, first_link, len(color))
    for flow in range(len(flows.vertex)):
        if not flows.listed[flow]:
            continue
        load, part = np.int64(-1), np.uint64(0)
        for entry in range(flows.ptr[flow], flows.ptr[flow + 1]):
            link = flows.links[entry]
            if flows.counts[link]:
                if flows.loads[entry] != load:
                    load = flows.loads[entry]
                    own_color = color[flows.vertex[flow]]
                    part = mix_briefly(mix_briefly(own_color + _edge(flows.label[flow], load)) + _THREE)
                following[first_link + link] += part
    _end(color, following, first_link, len(color))


@njit()
def _color_flows(color: Any, following: Any, flows: FlowEdges) -> None:
    """Color the vertices of flows by the links that these load."""
    first_link = flows.first_link
    _start(color, following, 0, first_link)
    for flow in range(len(flows.vertex)):
        if not flows.listed[flow]:
            continue
        load, edge, total = np.int64(-1), np.uint64(0), np.uint64(0)
        for entry in range(flows.ptr[flow], flows.ptr[flow + 1]):
            link = flows.links[entry]
            if flows.counts[link]:
                if flows.loads[entry] != load:
                    load = flows.loads[entry]
                    edge = _edge(flows.label[flow], load)
                total += mix_briefly(mix_briefly(color[first_link + link] + edge) + _TWO)
        following[flows.vertex[flow]] += total
    _end(color, following, 0, first_link)

"""Paths for the pairs of hosts that communicate.

Data flow: a simulator asks `paths` for the pairs that occur in its task graph; an exporter asks
`full_routes` for all of them.

Pairs that the fabric's `Routes` name take them.  All others take equal-cost shortest paths (fewest links),
at most ``fabric.max_paths`` of them with equal weights.  Where there are more, the kept ones are spread
evenly over all of them, starting at a place that a fixed hash of the pair chooses, so that many pairs load
parallel links alike.  Nothing is random: the same fabric and pair always give the same paths.

How: hosts that hang on one neighbour are cut off first, so that a star or a fat-tree is searched among its
switches only; then breadth-first searches from each distinct source, and from its destinations where these are
few, count the shortest paths (`topoplan_engine.network.nearest`); the n-th path to a destination is read off the
counts backwards.  Work is proportional to the pairs asked and the links between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike

from topoplan.arrays import ARRAY_EQ, F64, I32, I64, f64, i32, i64
from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric, Routes
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.hashing import GOLDEN, fraction, mix
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.network.nearest import (
    FEW_TARGETS,
    Core,
    Meeting,
    Scratch,
    core_of,
    distances,
    leave,
    meet,
    search,
    start,
)

__all__ = ["Paths", "Router", "full_routes", "paths"]

#: Pairs of which one path is asked for at a time: some tenths of a second, after which a search may have to end.
_AT_A_TIME = 1 << 16
#: Links of each of many paths for which there is room.
_LINKS_OF_PATH = 32


@attrs.frozen(kw_only=True)
class Paths:
    """Paths of k asked pairs, as compressed rows; row i answers pair i.

    Attributes:
        pair_ptr: (k+1,) int64; the paths of pair ``i`` are ``pair_ptr[i] .. pair_ptr[i+1]``, none where it
            is a host and itself or cannot be reached.
        path_ptr: (p+1,) int64; the links of path ``j`` are ``links[path_ptr[j] : path_ptr[j+1]]``.
        links: link indices of the fabric, in the order in which a message crosses them.
        weight: (p,) float64, share of the pair's traffic on each path; sums to 1 for each pair with paths.
    """

    pair_ptr: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    path_ptr: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    links: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    weight: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)


def paths(fabric: Fabric, src: ArrayLike, dst: ArrayLike) -> Paths:
    """Return the paths of pairs of hosts; the same pair may be asked more than once.

    Args:
        fabric: the network.
        src: (k,) source hosts.
        dst: (k,) destination hosts.

    Raises:
        TopoplanError: a host that the fabric does not have.
    """
    sources, targets = i64(np.atleast_1d(src)), i64(np.atleast_1d(dst))
    if sources.shape != targets.shape:
        raise ValueError(f"src has shape {sources.shape} and dst {targets.shape}")
    for hosts in (sources, targets):
        if len(hosts) and (hosts.min() < 0 or hosts.max() >= fabric.n_hosts):
            bad = hosts[(hosts < 0) | (hosts >= fabric.n_hosts)][0]
            raise TopoplanError(f"fabric {fabric.name!r}: no host {bad} (have 0 .. {fabric.n_hosts - 1})")

    return Router(fabric).paths(sources, targets)


class Router:
    """Finds paths of one fabric: its nodes and links are put in order once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._nodes = _attach(fabric)
        self._links = _core(fabric, self._nodes.core)

    def paths(self, sources: I64, targets: I64) -> Paths:
        """Return the paths of pairs of hosts, as `paths` does."""
        fabric, nodes, core = self.fabric, self._nodes, self._links
        explicit = _explicit_rows(fabric.routes, sources, targets)
        order = np.lexsort((nodes.core[targets], explicit >= 0, nodes.core[sources]))
        pairs = _Pairs(order, sources, targets, explicit)
        room = Scratch.of(fabric.n_nodes), Meeting.of(fabric.n_nodes)
        counts = _Counts(np.zeros(len(sources)), *np.zeros((2, len(sources)), dtype=np.int64))
        ways = _Ways.of(len(sources) if fabric.max_paths == 1 and fabric.routes is None else 0)
        has_ways = _count_paths(pairs, nodes, core, *room, fabric.max_paths, counts, ways)
        routes = fabric.routes or _NO_ROUTES
        named = explicit >= 0
        counts.kept[named] = routes.pair_ptr[explicit[named] + 1] - routes.pair_ptr[explicit[named]]
        pair_ptr = indptr(counts.kept)
        hops = np.repeat(counts.length, counts.kept)
        if named.any():
            rows = np.repeat(named, counts.kept)
            path = np.arange(pair_ptr[-1]) + np.repeat(routes.pair_ptr[explicit] - pair_ptr[:-1], counts.kept)
            hops[rows] = np.diff(routes.path_ptr)[path[rows]]
        path_ptr = indptr(hops)
        table = _Table(pair_ptr, path_ptr, np.empty(path_ptr[-1], dtype=np.int32), np.empty(pair_ptr[-1]))
        if has_ways:
            table.weight[:] = 1.0
            _copy_ways(ways, counts.length, table.path_ptr, table.links)
        else:
            named_table = _Table(*map(_read_only, (routes.pair_ptr, routes.path_ptr, routes.links, routes.weight)))
            _write_paths(pairs, nodes, core, *room, counts, named_table, table)
        for array in table:
            array.setflags(write=False)
        return Paths(**table._asdict())

    def drawn(self, sources: I64, targets: I64, place: F64) -> tuple[I64, I32]:
        """Return the links of one path of each pair of different hosts, of those that `paths` returns.

        Args:
            sources, targets: (k,) hosts; the fabric has no routes of its own.
            place: (k,) in [0, 1), of the path among those of its pair.

        Returns:
            (k,) numbers of links, 0 where there is no path, and these links, pair by pair.

        Raises:
            Stopped: the search must end.
        """
        nodes, core = self._nodes, self._links
        order = np.lexsort((nodes.core[targets], nodes.core[sources]))
        pairs = _Pairs(order, sources, targets, np.full(len(sources), -1))
        room = Scratch.of(self.fabric.n_nodes), Meeting.of(self.fabric.n_nodes)
        counts = _Counts(np.zeros(len(sources)), *np.zeros((2, len(sources)), dtype=np.int64))
        parts = [pairs._replace(order=order[k : k + _AT_A_TIME]) for k in range(0, len(order), _AT_A_TIME)]
        for part in parts:
            stop_if_wanted()
            _count_paths(part, nodes, core, *room, self.fabric.max_paths, counts, _Ways.of(0))
        path_ptr = indptr(counts.length)
        links = np.empty(path_ptr[-1], dtype=np.int32)
        for part in parts:
            stop_if_wanted()
            _write_drawn(part, nodes, core, *room, counts, place, path_ptr, links)
        links.setflags(write=False)
        return counts.length, links

    def links_between(self, sources: I64, targets: I64) -> I64:
        """Return the links on a shortest path of each pair of hosts; -1 where there is none."""
        core = self._nodes.core
        links = distances(self._links, core[sources], core[targets])
        at_ends = (core[sources] != sources).astype(np.int64) + (core[targets] != targets)
        return np.where(links < 0, links, links + np.where(sources == targets, 0, at_ends))


def _read_only(array: Any) -> Any:
    """Return a view that cannot be written: kernels are compiled for such, and what was unpickled is not one."""
    view = array.view()
    view.setflags(write=False)
    return view


def full_routes(fabric: Fabric) -> Routes:
    """Return the paths of all ordered pairs of different hosts, as exporters write them."""
    hosts = np.arange(fabric.n_hosts)
    pairs = np.stack(np.meshgrid(hosts, hosts, indexing="ij"), axis=-1).reshape(-1, 2)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rows = paths(fabric, pairs[:, 0], pairs[:, 1])
    return Routes(pairs=pairs, pair_ptr=rows.pair_ptr, path_ptr=rows.path_ptr, links=rows.links, weight=rows.weight)


_NO_ROUTES = Routes(pairs=np.zeros((0, 2)), pair_ptr=[0], path_ptr=[0], links=[], weight=[])


def _explicit_rows(routes: Routes | None, src: I64, dst: I64) -> I64:
    """Return the row of each pair in ``routes.pairs``, -1 if it is not named."""
    if routes is None or not len(routes.pairs):
        return np.full(len(src), -1, dtype=np.int64)
    width = max(int(routes.pairs.max()), int(dst.max(initial=0))) + 1
    named = routes.pairs[:, 0].astype(np.int64) * width + routes.pairs[:, 1]
    asked = src * width + dst
    row = np.minimum(np.searchsorted(named, asked), len(named) - 1)
    return np.where(named[row] == asked, row, -1)


class _Nodes(NamedTuple):
    """How nodes reach the core of a network; nodes of the core are there themselves.

    Attributes:
        core: of each node, itself or the only neighbour that it hangs on.
        up, down: the link to that neighbour, and the one from it; -1 for nodes of the core.
    """

    core: I64
    up: I64
    down: I64


class _Pairs(NamedTuple):
    """(k,) asked pairs.

    Attributes:
        order: pairs, sorted by the core node of their source.
        src, dst: hosts.
        explicit: row in the fabric's routes, -1 if they do not name the pair.
    """

    order: I64
    src: I64
    dst: I64
    explicit: I64


class _Counts(NamedTuple):
    """(k,) shortest paths of each pair, how many of them are kept, and their links."""

    shortest: F64
    kept: I64
    length: I64


class _Ways(NamedTuple):
    """Paths of pairs that have one each, as searches find them.

    Attributes:
        links: path by path.
        first: (k,) where that of each pair begins in ``links``; -1 where it has none.
    """

    links: I32
    first: I64

    @classmethod
    def of(cls, pairs: int) -> _Ways:
        """Return room for the paths of so many pairs; what is not written takes no memory."""
        return cls(np.empty(_LINKS_OF_PATH * pairs, np.int32), np.full(pairs, -1))


class _Table(NamedTuple):
    """The columns of `Paths`, or of the fabric's `Routes`."""

    pair_ptr: I64
    path_ptr: I64
    links: I32
    weight: F64


def _attach(fabric: Fabric) -> _Nodes:
    """Find nodes that hang on one neighbour: no path of others crosses them."""
    nodes = fabric.n_nodes
    attached = np.arange(nodes, dtype=np.int64)
    up, down = np.full(nodes, -1, dtype=np.int64), np.full(nodes, -1, dtype=np.int64)
    out_degree = np.bincount(fabric.link_src, minlength=nodes)
    in_degree = np.bincount(fabric.link_dst, minlength=nodes)
    rows = np.arange(fabric.n_links)
    up[fabric.link_src], down[fabric.link_dst] = rows, rows
    leaf = np.flatnonzero((out_degree == 1) & (in_degree == 1))
    leaf = leaf[fabric.link_dst[up[leaf]] == fabric.link_src[down[leaf]]]
    neighbour = fabric.link_dst[up[leaf]].astype(np.int64)
    keep = (out_degree[neighbour] > 1) | (in_degree[neighbour] > 1)  # not two leaves on each other
    attached[leaf[keep]] = neighbour[keep]
    stays = attached == np.arange(nodes)
    up[stays] = -1
    down[stays] = -1
    return _Nodes(attached, up, down)


def _core(fabric: Fabric, attached: I64) -> Core:
    """Return the links between nodes of the core."""
    src, dst = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
    rows = np.flatnonzero((attached[src] == src) & (attached[dst] == dst))
    return core_of(src[rows], dst[rows], rows, fabric.n_nodes)


@inline_kernel
def _same_source(pairs: _Pairs, nodes: _Nodes, first: int) -> int:
    """End of the pairs whose sources have one core node, that of the first pair."""
    root, end = nodes.core[pairs.src[pairs.order[first]]], first
    while end < len(pairs.order) and nodes.core[pairs.src[pairs.order[end]]] == root:
        end += 1
    return end


@inline_kernel
def _ask(pairs: _Pairs, nodes: _Nodes, core: Core, scratch: Scratch, meeting: Meeting, first: int, end: int) -> int:
    """Search from the root of some pairs; return the nodes that are reached, -1 where `_reach` meets few targets."""
    root, missing = nodes.core[pairs.src[pairs.order[first]]], 0
    for k in range(first, end):
        pair = pairs.order[k]
        target = nodes.core[pairs.dst[pair]]
        if pairs.explicit[pair] < 0 and pairs.src[pair] != pairs.dst[pair] and scratch.asked[target] != root:
            scratch.asked[target] = root
            missing += 1
    if missing == 0:
        return 0
    if missing > FEW_TARGETS:
        return int(search(root, -1, missing, scratch, core))
    start(root, scratch, meeting)
    return -1


@inline_kernel
def _reach(pairs: _Pairs, nodes: _Nodes, core: Core, scratch: Scratch, meeting: Meeting, first: int, k: int) -> None:
    """Meet the target of the k-th pair, unless it is that of the pair before, or has an explicit row."""
    target = nodes.core[pairs.dst[pairs.order[k]]]
    if pairs.explicit[pairs.order[k]] >= 0:
        return
    if k == first or nodes.core[pairs.dst[pairs.order[k - 1]]] != target:
        meet(target, scratch, meeting, core)


@inline_kernel
def _forget(scratch: Scratch, meeting: Meeting, count: int) -> None:
    """Leave a root from which so many nodes are reached, or -1; see `_ask`."""
    if count < 0:
        leave(scratch, meeting)
    for k in range(count):
        scratch.distance[scratch.queue[k]] = -1


@kernel
def _count_paths(
    pairs: _Pairs,
    nodes: _Nodes,
    core: Core,
    scratch: Scratch,
    meeting: Meeting,
    max_paths: int,
    counts: _Counts,
    ways: _Ways,
) -> bool:
    """Write ``counts``, source by source, and a path of each pair; pairs with an explicit row are left out.

    Returns:
        Whether there was room for all these paths.
    """
    first, filled, is_whole = 0, 0, len(ways.links) > 0
    while first < len(pairs.order):
        root, end = nodes.core[pairs.src[pairs.order[first]]], _same_source(pairs, nodes, first)
        n_reached = _ask(pairs, nodes, core, scratch, meeting, first, end)
        for k in range(first, end):
            pair = pairs.order[k]
            if n_reached < 0:
                _reach(pairs, nodes, core, scratch, meeting, first, k)
            src, dst = pairs.src[pair], pairs.dst[pair]
            target = nodes.core[dst]
            if pairs.explicit[pair] >= 0 or src == dst or scratch.distance[target] < 0:
                continue
            shortest = scratch.n_paths[target]
            counts.shortest[pair] = shortest
            counts.kept[pair] = int(min(shortest, float(max_paths)))
            counts.length[pair] = scratch.distance[target] + (src != root) + (dst != target)
            is_whole = is_whole and filled + counts.length[pair] <= len(ways.links)
            if is_whole:
                ways.first[pair] = filled
                filled += counts.length[pair]
                _write_path(nodes, core, scratch, ways.links, src, dst, filled, _rank(src, dst, shortest, 1, 0))
        _forget(scratch, meeting, n_reached)
        first = end
    scratch.asked[:] = -1
    return is_whole


@kernel
def _copy_ways(ways: _Ways, length: I64, path_ptr: I64, links: I32) -> None:
    """Write the links of all paths, pair by pair."""
    path = 0
    for pair in range(len(length)):
        if ways.first[pair] >= 0:
            for i in range(length[pair]):
                links[path_ptr[path] + i] = ways.links[ways.first[pair] + i]
            path += 1


@kernel
def _write_paths(
    pairs: _Pairs,
    nodes: _Nodes,
    core: Core,
    scratch: Scratch,
    meeting: Meeting,
    counts: _Counts,
    routes: _Table,
    table: _Table,
) -> None:
    """Write links and weights of all pairs, source by source; ``routes`` are those of explicit rows."""
    first = 0
    while first < len(pairs.order):
        end = _same_source(pairs, nodes, first)
        n_reached = _ask(pairs, nodes, core, scratch, meeting, first, end)
        for k in range(first, end):
            pair = pairs.order[k]
            if n_reached < 0:
                _reach(pairs, nodes, core, scratch, meeting, first, k)
            if pairs.explicit[pair] >= 0:
                _copy_route(routes, pairs.explicit[pair], table, pair)
            else:
                _write_pair(pairs, nodes, core, scratch, counts, table, pair)
        _forget(scratch, meeting, n_reached)
        first = end
    scratch.asked[:] = -1


@kernel
def _write_drawn(
    pairs: _Pairs,
    nodes: _Nodes,
    core: Core,
    scratch: Scratch,
    meeting: Meeting,
    counts: _Counts,
    place: F64,
    path_ptr: I64,
    links: I32,
) -> None:
    """Write the links of one path of each pair, source by source: of those that are kept, the one at its place."""
    first = 0
    while first < len(pairs.order):
        end = _same_source(pairs, nodes, first)
        n_reached = _ask(pairs, nodes, core, scratch, meeting, first, end)
        for k in range(first, end):
            pair = pairs.order[k]
            if n_reached < 0:
                _reach(pairs, nodes, core, scratch, meeting, first, k)
            if counts.kept[pair] > 0:
                src, dst, n_paths = pairs.src[pair], pairs.dst[pair], counts.kept[pair]
                rank = _rank(src, dst, counts.shortest[pair], n_paths, min(int(place[pair] * n_paths), n_paths - 1))
                _write_path(nodes, core, scratch, links, src, dst, path_ptr[pair + 1], rank)
        _forget(scratch, meeting, n_reached)
        first = end
    scratch.asked[:] = -1


@inline_kernel
def _copy_route(routes: _Table, row: int, table: _Table, pair: int) -> None:
    """Copy a row of the fabric's routes."""
    first, source = table.pair_ptr[pair], routes.pair_ptr[row]
    for j in range(table.pair_ptr[pair + 1] - first):
        table.weight[first + j] = routes.weight[source + j]
        for i in range(routes.path_ptr[source + j + 1] - routes.path_ptr[source + j]):
            table.links[table.path_ptr[first + j] + i] = routes.links[routes.path_ptr[source + j] + i]


@inline_kernel
def _write_pair(
    pairs: _Pairs, nodes: _Nodes, core: Core, scratch: Scratch, counts: _Counts, table: _Table, pair: int
) -> None:
    """Write the paths of a pair."""
    src, dst, n_paths = pairs.src[pair], pairs.dst[pair], counts.kept[pair]
    for j in range(n_paths):
        path = table.pair_ptr[pair] + j
        table.weight[path] = 1.0 / n_paths
        rank = _rank(src, dst, counts.shortest[pair], n_paths, j)
        _write_path(nodes, core, scratch, table.links, src, dst, table.path_ptr[path + 1], rank)


@inline_kernel
def _rank(src: int, dst: int, shortest: float, n_paths: int, j: int) -> float:
    """Return which of all shortest paths is the j-th that is kept: they are at even distances from a hashed start."""
    start = np.floor(_hashed(src, dst) * shortest) if n_paths < shortest else 0.0
    rank = start + np.floor(j * shortest / n_paths)
    return float(rank - shortest if rank >= shortest else rank)


@inline_kernel
def _write_path(
    nodes: _Nodes, core: Core, scratch: Scratch, links: I32, src: int, dst: int, place: int, rank: float
) -> None:
    """Write the links of the shortest path of a rank, from its end, before a place, to its start.

    Invariant: ``rank`` is that of the path to ``node`` among all shortest paths to it, which are sorted by their last
    link first.
    """
    node = nodes.core[dst]
    if node != dst:
        place -= 1
        links[place] = nodes.down[dst]
    while node != nodes.core[src]:
        last = -1
        for i in range(core.in_ptr[node], core.in_ptr[node + 1]):
            before = core.in_node[i]
            if scratch.distance[before] == scratch.distance[node] - 1:
                last = i
                if rank < scratch.n_paths[before]:
                    break
                rank -= scratch.n_paths[before]
        place -= 1
        links[place] = core.in_link[last]
        node = core.in_node[last]
    if nodes.core[src] != src:
        links[place - 1] = nodes.up[src]


@inline_kernel
def _hashed(src: int, dst: int) -> float:
    """Return a fixed pseudo-random number in [0, 1) for a pair."""
    bits = np.uint64(src) * GOLDEN + np.uint64(dst) * np.uint64(0xD1B54A32D192ED03) + np.uint64(1)
    return float(fraction(mix(bits)))

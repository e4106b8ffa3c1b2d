"""Paths for the pairs of hosts that communicate.

Data flow: a simulator asks `paths` for the pairs that occur in its task graph; an exporter asks
`full_routes` for all of them; a topology with paths of its own makes them with `routes_from_nodes`.

Pairs that the fabric's `Routes` name take them.  All others take equal-cost shortest paths (fewest links),
at most ``fabric.max_paths`` of them with equal weights.  Where there are more, the kept ones are spread
evenly over all of them, starting at a place that a fixed hash of the pair chooses, so that many pairs load
parallel links alike.  Nothing is random: the same fabric and pair always give the same paths.

How: hosts that hang on one neighbour are cut off first, so that a star or a fat-tree is searched among its
switches only; then one breadth-first search per distinct source counts the shortest paths to every node
(and stops at the farthest destination asked); the n-th path to a destination is read off the counts
backwards.  Work is proportional to the pairs asked and the links between them.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike

from topoplan.arrays import ARRAY_EQ, F64, I32, I64, f64, i32, i64
from topoplan.csr import indptr
from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric, Routes
from topoplan_engine.kernels.hashing import GOLDEN, fraction, mix
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["Paths", "full_routes", "paths"]


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

    explicit = _explicit_rows(fabric.routes, sources, targets)
    attached, up, down = _attach(fabric)
    order = np.argsort(attached[sources], kind="stable")
    core = _core(fabric, attached)
    scratch = _Scratch.of(fabric.n_nodes)
    counts, lengths = np.zeros((2, len(sources)), dtype=np.int64)
    found = np.zeros(len(sources))
    _measure(order, sources, targets, explicit, attached, fabric.max_paths, scratch, core, counts, lengths, found)
    routes = fabric.routes or _NO_ROUTES
    here = explicit >= 0
    counts[here] = routes.pair_ptr[explicit[here] + 1] - routes.pair_ptr[explicit[here]]
    pair_ptr = indptr(counts)
    hops = np.repeat(lengths, counts)
    if here.any():
        named = np.repeat(here, counts)
        path = np.arange(pair_ptr[-1]) + np.repeat(routes.pair_ptr[explicit] - pair_ptr[:-1], counts)
        hops[named] = np.diff(routes.path_ptr)[path[named]]
    path_ptr = indptr(hops)
    links = np.empty(path_ptr[-1], dtype=np.int32)
    weight = np.empty(pair_ptr[-1], dtype=np.float64)
    _fill(
        order, sources, targets, attached, up, down, found, explicit,
        routes.pair_ptr, routes.path_ptr, routes.links, routes.weight,
        pair_ptr, path_ptr, links, weight, scratch, core,
    )  # fmt: skip
    for array in (pair_ptr, path_ptr, links, weight):
        array.setflags(write=False)
    return Paths(pair_ptr=pair_ptr, path_ptr=path_ptr, links=links, weight=weight)


def full_routes(fabric: Fabric) -> Routes:
    """Return the paths of all ordered pairs of different hosts, as exporters write them."""
    hosts = np.arange(fabric.n_hosts)
    pairs = np.stack(np.meshgrid(hosts, hosts, indexing="ij"), axis=-1).reshape(-1, 2)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    found = paths(fabric, pairs[:, 0], pairs[:, 1])
    return Routes(pairs=pairs, pair_ptr=found.pair_ptr, path_ptr=found.path_ptr, links=found.links, weight=found.weight)


_NO_ROUTES = Routes(pairs=np.zeros((0, 2)), pair_ptr=[0], path_ptr=[0], links=[], weight=[])


def _explicit_rows(routes: Routes | None, src: I64, dst: I64) -> I64:
    """Return the row of each pair in ``routes.pairs``, -1 where it is not named."""
    if routes is None or not len(routes.pairs):
        return np.full(len(src), -1, dtype=np.int64)
    width = max(int(routes.pairs.max()), int(dst.max(initial=0))) + 1
    have = routes.pairs[:, 0].astype(np.int64) * width + routes.pairs[:, 1]
    want = src * width + dst
    row = np.minimum(np.searchsorted(have, want), len(have) - 1)
    return np.where(have[row] == want, row, -1)


def _attach(fabric: Fabric) -> tuple[I64, I64, I64]:
    """Find nodes that hang on one neighbour: no path of others crosses them.

    Returns:
        For each node: itself or the neighbour it hangs on, its link up and its link down (or -1).
    """
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
    return attached, up, down


class _Core(NamedTuple):
    """Links among nodes that paths may cross, by tail and by head, in ascending order of links."""

    out_ptr: I64
    out_node: I64
    in_ptr: I64
    in_node: I64
    in_link: I64


class _Scratch(NamedTuple):
    """What a search writes, by node: distance and mark (-1 where none), number of paths, and the queue."""

    distance: I64
    wanted: I64
    number: F64
    queue: I64

    @classmethod
    def of(cls, nodes: int) -> _Scratch:
        none = np.full(nodes, -1, dtype=np.int64)
        return cls(none, none.copy(), np.zeros(nodes), np.empty(nodes, dtype=np.int64))


def _core(fabric: Fabric, attached: I64) -> _Core:
    """Return the links between nodes that hang on nobody."""
    nodes = fabric.n_nodes
    src, dst = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
    rows = np.flatnonzero((attached[src] == src) & (attached[dst] == dst))
    by_tail = rows[np.argsort(src[rows], kind="stable")]
    by_head = rows[np.argsort(dst[rows], kind="stable")]
    out_ptr = indptr(np.bincount(src[rows], minlength=nodes))
    in_ptr = indptr(np.bincount(dst[rows], minlength=nodes))
    return _Core(out_ptr, dst[by_tail], in_ptr, src[by_head], by_head)


@inline_kernel
def _search(root, depth, missing, scratch, core):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Search breadth first from ``root``, counting shortest paths; return the number of nodes reached.

    ``distance`` is -1 everywhere on entry; ``queue`` lists the reached nodes on exit.  The search ends after
    level ``depth`` (where not negative), or after the level where the last of the ``missing`` nodes with
    ``wanted[node] == root`` turns up.
    """
    distance, wanted, count, queue = scratch
    distance[root], count[root], queue[0] = 0, 1.0, root
    if wanted[root] == root:
        missing -= 1
        if missing == 0:
            depth = 0
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        step = distance[node] + 1
        if 0 <= depth < step:
            break
        for at in range(core.out_ptr[node], core.out_ptr[node + 1]):
            other = core.out_node[at]
            if distance[other] < 0:
                distance[other], count[other], queue[tail] = step, 0.0, other
                tail += 1
                if wanted[other] == root:
                    missing -= 1
                    if missing == 0:
                        depth = step
            if distance[other] == step:
                count[other] += count[node]
    return tail


@kernel
def _measure(order, src, dst, explicit, attached, max_paths, scratch, core, kept, length, found):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write for each pair the paths kept, their length in links, and how many shortest paths exist.

    Pairs with an explicit row keep what is there.
    """
    distance, wanted, count, queue = scratch
    begin = 0
    while begin < len(order):
        root = attached[src[order[begin]]]
        end = begin
        missing = 0
        while end < len(order) and attached[src[order[end]]] == root:
            pair = order[end]
            target = attached[dst[pair]]
            if explicit[pair] < 0 and src[pair] != dst[pair] and wanted[target] != root:
                wanted[target] = root
                missing += 1
            end += 1
        reached = 0
        if missing:
            reached = _search(root, -1, missing, scratch, core)
        for at in range(begin, end):
            pair = order[at]
            target = attached[dst[pair]]
            if explicit[pair] >= 0 or src[pair] == dst[pair] or distance[target] < 0:
                continue
            found[pair] = count[target]
            kept[pair] = int(min(count[target], float(max_paths)))
            length[pair] = distance[target] + (src[pair] != root) + (dst[pair] != target)
        for at in range(reached):
            distance[queue[at]] = -1
        begin = end
    wanted[:] = -1


@inline_kernel
def _fraction(src, dst):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return a fixed pseudo-random number in [0, 1) for a pair."""
    return fraction(mix(np.uint64(src) * GOLDEN + np.uint64(dst) * np.uint64(0xD1B54A32D192ED03) + np.uint64(1)))


@kernel
def _fill(  # type: ignore[no-untyped-def]  # noqa: ANN202
    order, src, dst, attached, up, down, found, explicit,  # noqa: ANN001
    route_pair_ptr, route_path_ptr, route_links, route_weight,  # noqa: ANN001
    pair_ptr, path_ptr, links, weight, scratch, core,  # noqa: ANN001
):  # fmt: skip
    """Write links and weights of all pairs."""
    distance, _, count, queue = scratch
    in_ptr, in_node, in_link = core.in_ptr, core.in_node, core.in_link
    begin = 0
    while begin < len(order):
        root = attached[src[order[begin]]]
        end = begin
        depth = -1
        while end < len(order) and attached[src[order[end]]] == root:
            pair = order[end]
            if explicit[pair] < 0 and pair_ptr[pair + 1] > pair_ptr[pair]:
                first = pair_ptr[pair]
                hang = (src[pair] != root) + (dst[pair] != attached[dst[pair]])
                depth = max(depth, path_ptr[first + 1] - path_ptr[first] - hang)
            end += 1
        reached = 0
        if depth >= 0:
            reached = _search(root, depth, 0, scratch, core)
        for at in range(begin, end):
            pair = order[at]
            first, kept = pair_ptr[pair], pair_ptr[pair + 1] - pair_ptr[pair]
            if explicit[pair] >= 0:
                for j in range(kept):
                    path = route_pair_ptr[explicit[pair]] + j
                    weight[first + j] = route_weight[path]
                    for i in range(route_path_ptr[path + 1] - route_path_ptr[path]):
                        links[path_ptr[first + j] + i] = route_links[route_path_ptr[path] + i]
                continue
            start = np.floor(_fraction(src[pair], dst[pair]) * found[pair]) if kept < found[pair] else 0.0
            for j in range(kept):
                weight[first + j] = 1.0 / kept
                rank = start + np.floor(j * found[pair] / kept)
                if rank >= found[pair]:
                    rank -= found[pair]
                place = path_ptr[first + j + 1]
                node = attached[dst[pair]]
                if node != dst[pair]:
                    place -= 1
                    links[place] = down[dst[pair]]
                while node != root:
                    chosen = -1
                    for i in range(in_ptr[node], in_ptr[node + 1]):
                        if distance[in_node[i]] == distance[node] - 1:
                            chosen = i
                            if rank < count[in_node[i]]:
                                break
                            rank -= count[in_node[i]]
                    place -= 1
                    links[place] = in_link[chosen]
                    node = in_node[chosen]
                if src[pair] != root:
                    links[place - 1] = up[src[pair]]
        for at in range(reached):
            distance[queue[at]] = -1
        begin = end

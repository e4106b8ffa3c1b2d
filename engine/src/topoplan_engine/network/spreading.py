"""All equal shortest paths between switches, as the share of a message that each link carries.

A pair of hosts of a fat-tree has hundreds of shortest paths, of which routing keeps some.  A message that is to load
all of them evenly needs none of these written out: walked backwards from the target, a share that has reached a switch
divides among the switches before it as these have shortest paths from the source.  Work is proportional to the links on
the way, and hosts on the same two switches share it: a pair of switches is a *route*.

Most links between switches never matter.  `limiting` finds those that may, and one for all that carry the same:

- A link of which every message takes at most the share w_h that it puts on the link by which it enters the network at
  host h carries at most the sum of w_h C_h.  If that is no more than its own bandwidth, the links of hosts are full
  before it is, or together with it: rates that are max-min fair are the same without it, since these depend on the set
  of all rates that are possible alone.  The same holds for the hosts that messages go to.
- What leaves a switch is held to its links, too, where these are slower than those of its hosts together.
- Links of one bandwidth that carry the same share of every route are full at the same time: one stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.fabric import Fabric
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.hashing import GOLDEN, mix
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.network.routing import Core, Scratch, search

__all__ = ["Limiting", "Routes", "Spreading", "between_switches"]

#: Shares of links that are written at a time.
_AT_A_TIME = 1 << 20
#: Shares are equal if they are so in units of this, and a link is full where rounding alone keeps it from that.
_SHARE, _ROUNDING = float(1 << 32), 1e-9


def between_switches(fabric: Fabric) -> Any:
    """(E,) whether each link of a fabric joins two switches.

    >>> from topoplan import Fabric
    >>> tree = Fabric.from_links(name="tree", n_hosts=1, n_switches=2, links=[(0, 1), (1, 2)], bandwidth=1.0, latency=0)
    >>> between_switches(tree).tolist()
    [False, True]
    """
    return (fabric.link_src >= fabric.n_hosts) & (fabric.link_dst >= fabric.n_hosts)


class Routes(NamedTuple):
    """Pairs of switches between which messages go, all different; R of them.

    Attributes:
        source, target: (R,) nodes of the fabric.
        enters, leaves: (N,) bytes/s by which messages enter the network at each node, and leave it there.
    """

    source: I64
    target: I64
    enters: F64
    leaves: F64


class Limiting(NamedTuple):
    """The links between switches that may hold messages up, one for those that are full at the same time.

    Attributes:
        ptr, links, shares: as compressed rows, those on each route, and the share of a message that each carries.
        several: whether some route has several shortest paths.
    """

    ptr: I64
    links: I32
    shares: F64
    several: bool


class _Room(NamedTuple):
    """Room of a walk; ``share`` (N,) is 0 between two of them."""

    share: F64
    queue: I64


class _Shares(NamedTuple):
    """Shares of the links on some routes, which follow each other: compressed rows, and the first route's number."""

    first: int
    ptr: I64
    links: I32
    parts: F64


class Spreading:
    """The switches of a fabric, and the shares of links of the routes among them.

    >>> from topoplan import Fabric
    >>> ends = [(0, 2), (1, 5), (2, 3), (2, 4), (3, 5), (4, 5)]  # two hosts; from switch 2 two ways to switch 5
    >>> links = ends + [(b, a) for a, b in ends]
    >>> tree = Fabric.from_links(name="tree", n_hosts=2, n_switches=4, links=links, bandwidth=1.0, latency=0.0)
    >>> spreading, source, target, rate = Spreading(tree), np.array([2]), np.array([5]), np.ones(6)
    >>> carried = spreading.carried(source, target, np.array([1.0]))
    >>> [(int(tree.link_src[k]), int(tree.link_dst[k]), carried[k]) for k in np.flatnonzero(carried)]
    [(2, 3, 0.5), (2, 4, 0.5), (3, 5, 0.5), (4, 5, 0.5)]
    >>> spreading.limiting(Routes(source, target, rate, rate)).ptr.tolist()  # hosts send no faster than one of these
    [0, 0]
    """

    def __init__(self, fabric: Fabric) -> None:
        rows = np.flatnonzero(between_switches(fabric))
        src, dst = fabric.link_src[rows].astype(np.int64), fabric.link_dst[rows].astype(np.int64)
        self._fabric, self._rows, self._nodes = fabric, rows, fabric.n_nodes
        self._onward = _core(src, dst, rows, fabric.n_nodes)
        self._back = _core(dst, src, rows, fabric.n_nodes)
        self._leaving = np.bincount(src, fabric.link_bandwidth[rows], fabric.n_nodes)
        self._arriving = np.bincount(dst, fabric.link_bandwidth[rows], fabric.n_nodes)

    def limiting(self, routes: Routes) -> Limiting:
        """Return the links that may hold up messages on these routes."""
        fabric, n_links = self._fabric, self._fabric.n_links
        most = fabric.link_bandwidth * (1 + _ROUNDING)
        number = np.zeros(n_links, np.uint64)
        several = False
        bounds = []
        for core, source, target, hosts, links, tails in (
            (self._onward, routes.source, routes.target, routes.enters, self._leaving, fabric.link_src),
            (self._back, routes.target, routes.source, routes.leaves, self._arriving, fabric.link_dst),
        ):
            order = np.lexsort((target, source))
            by_hosts, by_links, widest = np.zeros(n_links), np.zeros(n_links), np.zeros(n_links)
            narrowed = np.minimum(hosts, np.where(links > 0, links, np.inf))
            for part in self._walk(core, source[order], target[order]):
                several = several or bool((part.parts < 1 - _ROUNDING).any())
                of_part = order[part.first : part.first + len(part.ptr) - 1]
                _survey(part.ptr, part.links, part.parts, source[of_part], hosts, narrowed, by_hosts, by_links, widest)
                if core is self._onward:
                    _number(part.ptr, part.links, part.parts, of_part, number)
            is_source = np.zeros(self._nodes, dtype=bool)
            is_source[source] = True
            bounds.append((by_hosts, by_links, (is_source & (narrowed < hosts))[tails]))
        (out, out_held, tight), (into, into_held, tight_too) = bounds
        holds = (number > 0) & (np.minimum(out, into) > most)
        holds &= tight | tight_too | (np.minimum(out_held, into_held) > most)
        holding = np.flatnonzero(holds)
        holding = holding[np.lexsort((holding, fabric.link_bandwidth[holding], number[holding]))]
        begins = (np.diff(number[holding]) != 0) | (np.diff(fabric.link_bandwidth[holding]) != 0)
        listed = np.zeros(n_links, dtype=bool)
        listed[holding[np.append(True, begins)[: len(holding)]]] = True
        return self._listed(routes, listed, several=several)

    def carried(self, source: I64, target: I64, nbytes: F64) -> F64:
        """(E,) bytes that cross each link between switches, given (R,) source, target and bytes of routes."""
        order = np.lexsort((target, source))
        total = np.zeros(self._fabric.n_links)
        for part in self._walk(self._onward, source[order], target[order]):
            lengths = np.diff(part.ptr)
            sent = np.repeat(nbytes[order[part.first : part.first + len(lengths)]], lengths)
            total += np.bincount(part.links, sent * part.parts, len(total))
        return total

    def _listed(self, routes: Routes, listed: Any, *, several: bool) -> Limiting:
        """Return some links of all routes."""
        order = np.lexsort((routes.target, routes.source))
        rows, links, shares = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0)]
        for part in self._walk(self._onward, routes.source[order], routes.target[order]) if listed.any() else ():
            is_listed = listed[part.links]
            number = np.repeat(np.arange(len(part.ptr) - 1), np.diff(part.ptr))
            rows.append(order[part.first + number[is_listed]])
            links.append(part.links[is_listed])
            shares.append(part.parts[is_listed])
        row = np.concatenate(rows)
        sort = np.argsort(row, kind="stable")
        ptr = indptr(np.bincount(row, minlength=len(routes.source)))
        return Limiting(ptr, np.concatenate(links)[sort], np.concatenate(shares)[sort], several)

    def _walk(self, core: Core, source: I64, target: I64) -> Iterator[_Shares]:
        """Yield the shares of links on routes that are sorted by their sources; all of one source at a time."""
        scratch, room = Scratch.of(self._nodes), _Room(np.zeros(self._nodes), np.empty(self._nodes, np.int64))
        first, size = 0, _AT_A_TIME
        while first < len(source):
            stop_if_wanted()
            ptr = np.zeros(len(source) - first + 1, np.int64)
            links, parts = np.empty(size, np.int32), np.empty(size)
            count = _write_shares(core, scratch, room, source[first:], target[first:], ptr, links, parts)
            if not count:
                size *= 2
                continue
            yield _Shares(first, ptr[: count + 1], links[: ptr[count]], parts[: ptr[count]])
            first += count


def _core(src: I64, dst: I64, rows: I64, nodes: int) -> Core:
    """Return links among nodes as compressed rows, by tail and by head."""
    by_tail, by_head = np.argsort(src, kind="stable"), np.argsort(dst, kind="stable")
    tails, heads = (indptr(np.bincount(ends, minlength=nodes)) for ends in (src, dst))
    return Core(tails, dst[by_tail], heads, src[by_head], rows[by_head])


@kernel
def _write_shares(
    core: Core, scratch: Scratch, room: _Room, source: I64, target: I64, ptr: I64, links: I32, parts: F64
) -> int:
    """Write the shares of links of routes until the next source may not fit; return how many routes are written.

    A target that is not reached has none.
    """
    first, end = 0, 0
    while first < len(source):
        root, last, missing = source[first], first, 0
        while last < len(source) and source[last] == root:
            missing += scratch.asked[target[last]] != root
            scratch.asked[target[last]] = root
            last += 1
        n_nodes = search(root, -1, missing, scratch, core)
        fits = True
        for route in range(first, last):
            if scratch.distance[target[route]] >= 0:
                end = _divide(root, target[route], core, scratch, room, links, parts, end)
            if end < 0:
                fits = False
                break
            ptr[route + 1] = end
        for k in range(n_nodes):
            scratch.distance[scratch.queue[k]] = -1
        if not fits:
            scratch.asked[:] = -1
            return first
        first = last
    scratch.asked[:] = -1
    return first


@inline_kernel
def _divide(root: int, target: int, core: Core, scratch: Scratch, room: _Room, links: I32, parts: F64, end: int) -> int:
    """Write the shares of the links from a root to a target from ``end`` on; return their end, -1 for too little room.

    Invariant: nodes leave the queue by their distance from the root, farthest first, so that all that a node passes on
    has reached it when it leaves.
    """
    share, queue = room.share, room.queue
    share[target], queue[0] = 1.0, target
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        whole = share[node]
        share[node] = 0.0
        if node == root or end < 0:
            continue
        for i in range(core.in_ptr[node], core.in_ptr[node + 1]):
            before = core.in_node[i]
            if scratch.distance[before] != scratch.distance[node] - 1:
                continue
            if end == len(links):
                end = -1
                break
            part = whole * scratch.n_paths[before] / scratch.n_paths[node]
            if share[before] == 0.0:
                queue[tail] = before
                tail += 1
            share[before] += part
            links[end], parts[end] = core.in_link[i], part
            end += 1
    return end


@kernel
def _survey(
    ptr: I64,
    links: I32,
    parts: F64,
    source: I64,
    hosts: F64,
    narrowed: F64,
    by_hosts: F64,
    by_links: F64,
    widest: F64,
) -> None:
    """Add to (E,) how much each link can carry, source by source: the largest share of a route times what enters.

    ``widest`` (E,) is room, all 0.
    """
    first = 0
    while first < len(source):
        last = first
        while last < len(source) and source[last] == source[first]:
            last += 1
        for i in range(ptr[first], ptr[last]):
            widest[links[i]] = max(widest[links[i]], parts[i])
        for i in range(ptr[first], ptr[last]):
            if widest[links[i]] > 0.0:
                by_hosts[links[i]] += widest[links[i]] * hosts[source[first]]
                by_links[links[i]] += widest[links[i]] * narrowed[source[first]]
                widest[links[i]] = 0.0
        first = last


@kernel
def _number(ptr: I64, links: I32, parts: F64, routes: I64, number: Any) -> None:
    """Add to a (E,) number for each link, which is the same for those that carry the same shares of all routes."""
    for row in range(len(routes)):
        for i in range(ptr[row], ptr[row + 1]):
            units = np.uint64(np.rint(parts[i] * _SHARE))
            number[links[i]] += mix(units * GOLDEN + np.uint64(routes[row] + 1))

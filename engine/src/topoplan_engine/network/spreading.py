"""All equal shortest paths between hosts, as the share of a message that each link carries.

A pair of hosts of a fat-tree has hundreds of shortest paths, of which routing keeps some.  A message that is to load
all of them evenly needs none of these written out: walked backwards from the target, a share that has reached a switch
divides among the switches before it as these have shortest paths from the source.  Work is proportional to the links on
the way, and hosts on the same two switches share it: a pair of switches is a *route*.  A host with several ways out
(rails, planes, hosts that forward) is an end of routes itself; of those on the same switches one is, for all of them.
Where hosts have insides, their NICs take their place.

Most links of routes never matter.  `limiting` finds those that may, and one for all that carry the same:

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
from topoplan_engine.network.doors import Doors, Ends
from topoplan_engine.network.nearest import FEW_TARGETS, Core, Meeting, Scratch, core_of, leave, meet, search, start

__all__ = ["AtHosts", "Limiting", "Routes", "Spreading", "Ways"]

#: Shares of links that are written at a time.
_AT_A_TIME = 1 << 22
#: Parts of so many shares that are kept of one walk: some tens of MB.
_MOST_KEPT = 2
#: Shares are equal if they are so in units of this, and a link is full where rounding alone keeps it from that.
_SHARE, _ROUNDING = float(1 << 32), 1e-9


class Ways(NamedTuple):
    """A graph of the ends of messages and of switches: a fabric, or one with NICs in place of hosts.

    Attributes:
        graph: it; its hosts are the ends.
        link: (L,) of each of its links, the link of a network that holds messages up there.
        also: (L,) a link of the network that carries the same bytes, and is never full before it.
    """

    graph: Fabric
    link: I64
    also: I64

    @classmethod
    def of(cls, fabric: Fabric) -> Ways:
        """Return those of hosts without insides."""
        rows = np.arange(fabric.n_links)
        return cls(fabric, rows, rows)


class Routes(NamedTuple):
    """Pairs of nodes between which messages go, all different; R of them.

    Attributes:
        source, target: (R,) nodes of the graph.
        enters, leaves: (N,) bytes/s by which messages enter the network at each node, and leave it there.
    """

    source: I64
    target: I64
    enters: F64
    leaves: F64


class Limiting(NamedTuple):
    """The links of routes that may hold messages up, one for those that are full at the same time, and doors.

    Attributes:
        ptr, links, shares: as compressed rows, those on each route, links of the graph, and the share of a message that
            each carries.
        least_share: (R,) smallest share of a message that a link of each route carries: less than that of a stripe
            where it has several shortest paths, or lanes to several planes.
    """

    ptr: I64
    links: I64
    shares: F64
    least_share: F64


class AtHosts(NamedTuple):
    """Links of the network for those of the graph; of some there are two, the second one is -1 for the others.

    Attributes:
        ends: of the graph's hosts.
        links: (2, L) both of each link of the graph.
        of_hosts: (2, 2, L) both of each link in the order of those that leave hosts, and that lead to them.
    """

    ends: Ends
    links: I32
    of_hosts: I32


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
    """Switches and ends of a network, and the shares of links of the routes among them.

    A host that hangs on one switch, and on nothing else, is no node of routes: its switch is.

    Attributes:
        links: links of the network that may be on routes, ascending.
        between: those of them that are no doors.
        doors: of the graph.
        drawn: the fabric among whose paths messages draw, one by one, and rings in whole iterations.

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

    def __init__(self, fabric: Fabric, ways: Ways | None = None, n_links: int = 0, interfaces: int = 1) -> None:
        """Look at a fabric.

        Args:
            fabric: its links are the first ones of a network.
            ways: of messages; None: those of hosts without insides.
            n_links: of the network; 0: as many as the fabric has.
            interfaces: by which a message leaves its host at a time (`topoplan_engine.network.stripes`).
        """
        self._of_stripes, self.drawn = 1 / interfaces, fabric
        self._last_walk: tuple[I64, I64, list[_Shares]] | None = None
        graph, self._link, self._also = ways or Ways.of(fabric)
        self.doors = doors = Doors(graph)
        tails, heads = graph.link_src.astype(np.int64), graph.link_dst.astype(np.int64)
        rows = np.flatnonzero(doors.is_node[tails] & doors.is_node[heads])
        heads += np.where(doors.is_door & (heads < graph.n_hosts), graph.n_nodes, 0)
        src, dst = tails[rows], heads[rows]
        self._n_links, self._nodes, self._bandwidth = n_links or fabric.n_links, doors.n_nodes, graph.link_bandwidth
        self._tails, self._heads = tails, heads
        on_routes = np.zeros(graph.n_links, dtype=bool)
        on_routes[rows] = True
        self.links, self.between = (
            _numbers(self._n_links, self._link[some], self._also[some])
            for some in (on_routes | doors.at_ends, on_routes & ~doors.at_ends)
        )
        self._onward, self._back = (core_of(*ends, rows, doors.n_nodes) for ends in ((src, dst), (dst, src)))
        # Without links, sums are integers, which cannot be infinite.
        sums = (np.bincount(ends, graph.link_bandwidth[rows], doors.n_nodes) for ends in (src, dst))
        self._rates = [each.astype(np.float64) for each in sums]
        if doors.has_doors:  # one node is many hosts
            for rates in self._rates:
                rates[: graph.n_hosts] = rates[graph.n_nodes :] = np.inf

    def routes(self, source: I64, target: I64) -> tuple[Routes, I64]:
        """Return the routes of messages, given (n,) hosts of the graph at both ends, and (n,) the route of each.

        It is -1 for one that goes over no link of routes.
        """
        doors, bandwidth, nodes = self.doors, self._bandwidth, self._nodes
        ends = doors.leaving[source], doors.arriving[target]
        away = ends[0] != ends[1]
        keys, place = np.unique(ends[0][away] * nodes + ends[1][away], return_inverse=True)
        route = np.full(len(source), -1)
        route[away] = place.ravel()
        hosts = len(doors.leaving)
        enters = doors.rates(_numbers(hosts, source[away]), bandwidth, arriving=False)
        leaves = doors.rates(_numbers(hosts, target[away]), bandwidth, arriving=True)
        return Routes(*np.divmod(keys, nodes), enters, leaves), route

    @property
    def at_hosts(self) -> AtHosts:
        """Which links of the network messages of hosts take where routes have links of the graph, for kernels."""
        also = np.where(self.doors.at_ends & (self._also != self._link), self._also, -1)
        links = np.stack([self._link, also]).astype(np.int32)
        return AtHosts(self.doors.ends, links, np.stack([links[:, order] for order in self.doors.orders]))

    def limiting(self, routes: Routes) -> Limiting:
        """Return the links that may hold up messages on these routes."""
        bandwidth, n_links = self._bandwidth, len(self._bandwidth)
        most = bandwidth * (1 + _ROUNDING)
        number = np.zeros(n_links, np.uint64)
        least_share = np.ones(len(routes.source))
        bounds = []
        for onward, source, hosts, links, tails in (
            (True, routes.source, routes.enters, self._rates[0], self._tails),
            (False, routes.target, routes.leaves, self._rates[1], self._heads),
        ):
            by_hosts, by_links, widest = np.zeros(n_links), np.zeros(n_links), np.zeros(n_links)
            narrowed = np.minimum(hosts, np.where(links > 0, links, np.inf))
            for part, rows, of_rows in self._from_sources(routes) if onward else self._from_targets(routes):
                of_part = source[of_rows]
                _survey(*part[1:], rows, of_part, hosts, narrowed, by_hosts, by_links, widest)
                if onward:
                    _number(part.ptr, part.links, part.parts, of_rows, number, least_share)
            is_source = np.zeros(self._nodes, dtype=bool)
            is_source[source] = True
            bounds.append((by_hosts, by_links, (is_source & (narrowed < hosts))[tails]))
        (out, out_held, tight), (into, into_held, tight_too) = bounds
        holds = (number > 0) & (np.minimum(out, into) > most)
        holds &= tight | tight_too | (np.minimum(out_held, into_held) > most)
        holding = np.flatnonzero(holds & ~self.doors.is_door)
        holding = holding[np.lexsort((holding, bandwidth[holding], number[holding]))]
        begins = (np.diff(number[holding]) != 0) | (np.diff(bandwidth[holding]) != 0)
        listed = self.doors.is_door.copy()
        listed[holding[np.append(True, begins)[: len(holding)]]] = True
        return self._listed(routes, listed, least_share)

    def _from_sources(self, routes: Routes) -> Iterator[tuple[_Shares, I64, I64]]:
        """Yield shares of routes, rows of these by their sources, and the route of each row."""
        order = np.lexsort((routes.target, routes.source))
        for part in self._onward_walk(routes.source, routes.target):
            rows = np.arange(len(part.ptr) - 1)
            yield part, rows, order[part.first + rows]

    def _from_targets(self, routes: Routes) -> Iterator[tuple[_Shares, I64, I64]]:
        """Yield the same by targets: a way back divides as the way there does, so that one walk says both."""
        order = np.lexsort((routes.source, routes.target))
        kept_walk = self._last_walk
        if kept_walk is not None and len(kept_walk[2]) == 1 and kept_walk[0] is routes.source:
            row_of = np.empty(len(order), np.int64)
            row_of[np.lexsort((routes.target, routes.source))] = np.arange(len(order))
            yield kept_walk[2][0], row_of[order], order
            return
        for part in self._walk(self._back, routes.target[order], routes.source[order]):
            rows = np.arange(len(part.ptr) - 1)
            yield part, rows, order[part.first + rows]

    def draws(self, least_share: F64, flow: I64, is_ring: Any, lanes: int) -> bool:
        """Whether a flow draws one of several ways.

        A message does that has several paths, or several lanes.  A ring runs on all lanes that all its steps have.

        Args:
            least_share: (n,) of the routes of flows (`Limiting.least_share`).
            flow: (n,) numbers of these, those of one next to each other.
            is_ring: (N,) whether each is a ring.
            lanes: of an interface.
        """
        if not len(flow):
            return False
        rings = is_ring[flow]
        begins = np.flatnonzero(np.diff(flow, prepend=-1))
        smallest, largest = np.minimum.reduceat(least_share, begins), np.maximum.reduceat(least_share, begins)
        uneven = rings[begins] & (largest - smallest > _ROUNDING)
        part = np.where(rings, self._of_stripes / lanes, self._of_stripes)
        return bool(uneven.any() or (least_share < part - _ROUNDING).any())

    def carried(self, source: I64, target: I64, nbytes: F64) -> F64:
        """(E,) bytes that cross each link on routes, given (R,) source, target and bytes of these."""
        order = np.lexsort((target, source))
        total = np.zeros(len(self._bandwidth))
        for part in self._onward_walk(source, target):
            lengths = np.diff(part.ptr)
            sent = np.repeat(nbytes[order[part.first : part.first + len(lengths)]], lengths)
            total += np.bincount(part.links, sent * part.parts, len(total))
        twice = np.flatnonzero(self._also != self._link)
        links, nbytes = np.append(self._link, self._also[twice]), np.append(total, total[twice])
        carried: F64 = np.bincount(links, nbytes, self._n_links).astype(np.float64)
        return carried

    def _listed(self, routes: Routes, listed: Any, least_share: F64) -> Limiting:
        """Return some links of all routes."""
        order = np.lexsort((routes.target, routes.source))
        rows, links, shares = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for part in self._onward_walk(routes.source, routes.target) if listed.any() else ():
            is_listed = listed[part.links]
            number = np.repeat(np.arange(len(part.ptr) - 1), np.diff(part.ptr))
            rows.append(order[part.first + number[is_listed]])
            links.append(part.links[is_listed].astype(np.int64))
            shares.append(part.parts[is_listed])
        row = np.concatenate(rows)
        sort = np.argsort(row, kind="stable")
        ptr = indptr(np.bincount(row, minlength=len(routes.source)))
        return Limiting(ptr, np.concatenate(links)[sort], np.concatenate(shares)[sort], least_share)

    def _onward_walk(self, source: I64, target: I64) -> Iterator[_Shares]:
        """Yield what `_walk` does from sources on; that of the last routes is kept, unless it is large."""
        if self._last_walk is not None and self._last_walk[0] is source and self._last_walk[1] is target:
            yield from self._last_walk[2]
            return
        self._last_walk = None
        order, parts = np.lexsort((target, source)), list[_Shares]()
        for part in self._walk(self._onward, source[order], target[order]):
            if len(parts) < _MOST_KEPT:
                parts.append(part)
            yield part
        if len(parts) < _MOST_KEPT:
            self._last_walk = source, target, parts

    def _walk(self, core: Core, source: I64, target: I64) -> Iterator[_Shares]:
        """Yield the shares of links on routes that are sorted by their sources; all of one source at a time."""
        scratch, meeting = Scratch.of(self._nodes), Meeting.of(self._nodes)
        room = _Room(np.zeros(self._nodes), np.empty(self._nodes, np.int64))
        first, size = 0, _AT_A_TIME
        while first < len(source):
            stop_if_wanted()
            ptr = np.zeros(len(source) - first + 1, np.int64)
            links, parts = np.empty(size, np.int32), np.empty(size)
            count = _write_shares(core, scratch, meeting, room, source[first:], target[first:], ptr, links, parts)
            if not count:
                size *= 2
                continue
            yield _Shares(first, ptr[: count + 1], links[: ptr[count]], parts[: ptr[count]])
            first += count


def _numbers(count: int, *several: I64) -> I64:
    """Return which of the numbers below ``count`` there are, ascending; `numpy.unique` hashes all of them."""
    is_listed = np.zeros(count, dtype=bool)
    for numbers in several:
        is_listed[numbers] = True
    return np.flatnonzero(is_listed)


@kernel
def _write_shares(
    core: Core,
    scratch: Scratch,
    meeting: Meeting,
    room: _Room,
    source: I64,
    target: I64,
    ptr: I64,
    links: I32,
    parts: F64,
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
        is_met, n_nodes = missing <= FEW_TARGETS, 0
        if is_met:
            start(root, scratch, meeting)
        else:
            n_nodes = search(root, -1, missing, scratch, core)
        for route in range(first, last):
            if is_met:
                meet(target[route], scratch, meeting, core)
            if scratch.distance[target[route]] >= 0:
                end = _divide(root, target[route], core, scratch, room, links, parts, end)
            if end < 0:
                break
            ptr[route + 1] = end
        if is_met:
            leave(scratch, meeting)
        for k in range(n_nodes):
            scratch.distance[scratch.queue[k]] = -1
        if end < 0:
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
    rows: I64,
    source: I64,
    hosts: F64,
    narrowed: F64,
    by_hosts: F64,
    by_links: F64,
    widest: F64,
) -> None:
    """Add to (E,) how much each link can carry, source by source: the largest share of a route times what enters.

    ``rows`` (n,) are routes, of which those of a source (n,) follow each other; ``widest`` (E,) is room, all 0.
    """
    first = 0
    while first < len(source):
        last = first
        while last < len(source) and source[last] == source[first]:
            for i in range(ptr[rows[last]], ptr[rows[last] + 1]):
                widest[links[i]] = max(widest[links[i]], parts[i])
            last += 1
        for row in rows[first:last]:
            for i in range(ptr[row], ptr[row + 1]):
                if widest[links[i]] > 0.0:
                    by_hosts[links[i]] += widest[links[i]] * hosts[source[first]]
                    by_links[links[i]] += widest[links[i]] * narrowed[source[first]]
                    widest[links[i]] = 0.0
        first = last


@kernel
def _number(ptr: I64, links: I32, parts: F64, routes: I64, number: Any, least_share: F64) -> None:
    """Add to a (E,) number for each link, which is the same for those that carry the same shares of all routes.

    ``least_share`` (R,) gets the smallest share of each route.
    """
    for row in range(len(routes)):
        for i in range(ptr[row], ptr[row + 1]):
            units = np.uint64(np.rint(parts[i] * _SHARE))
            number[links[i]] += mix(units * GOLDEN + np.uint64(routes[row] + 1))
            least_share[routes[row]] = min(least_share[routes[row]], parts[i])

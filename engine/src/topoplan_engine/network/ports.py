"""Where the NICs of hosts join a fabric, and by which of them a message leaves and arrives.

A fabric says how many cables lead from a host to each of its neighbours; the NICs take them in order: those to the
first neighbour get the first NICs, so that on rails NIC r is on leaf r of its unit.  A host that lost some cables keeps
the others at the NICs that they have at hosts that lost none.  Lanes to several planes belong to the same NICs
(`topoplan_engine.network.lanes`).

The rule for messages between GPUs of different hosts, of which p and q are the NICs:

1. It leaves by p and arrives by q, on the shortest paths between the switches that both are on.
2. With ``cross_rail = "nvlink"`` (NCCL's PXN), where another NIC of the sending host is fewer links away from q, it
   goes over the links inside the host to that NIC: over NVLink to the rail of its target.
3. Where no path leads there (rails without a spine, a link that failed), it leaves and arrives by the two NICs of both
   hosts that are the fewest links apart.
4. Where switches alone lead nowhere (hosts joined to each other, BCube), or the fabric has routes of its own, paths are
   those between hosts, and each cable of them belongs to a NIC.

Data flow: `Ports` is made once for a fabric and a host's ways; `Ports.choose` gives NICs for pairs of devices,
`Ports.paths` the paths of the fabric between them.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64, i32, i64
from topoplan.errors import FabricError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan_engine.csr import expand
from topoplan_engine.network.doors import some_links
from topoplan_engine.network.host_paths import HostPaths
from topoplan_engine.network.lanes import Lanes, connected
from topoplan_engine.network.pairs import PairTable
from topoplan_engine.network.ring_gates import NicPlaces
from topoplan_engine.network.routing import Paths, Router
from topoplan_engine.network.routing import paths as route

__all__ = ["Chosen", "Ports"]

#: Links between ports that no path joins, plus one.
_NEVER = 1 << 28


class Chosen(NamedTuple):
    """(k,) of each pair of devices: the NICs it leaves and arrives by; -1 where paths between hosts say them."""

    leaves: I64
    arrives: I64


class _Rows(NamedTuple):
    """The cables between hosts and the rest of the fabric, in one direction.

    Attributes:
        first, last: (L,) of each link the NICs of its host that it belongs to; -1 for links that end at no host.
    """

    first: I64
    last: I64


def _as_at_whole_hosts(place: F64, cables: F64, owner: I32, neighbour: I32, n_nics: int) -> F64:
    """Return the first NIC of each link, where hosts with fewer cables have them at the NICs that others have.

    Hosts with a cable for each NIC say which NIC is on which switch.  A host with fewer is left as it is where they
    disagree, or where two of its links would share a NIC.

    Args:
        place: (k,) first NIC of each link if NICs are taken in order.
        cables: (k,) how many NICs it has.
        owner, neighbour: (k,) its host and its other end, sorted.
        n_nics: of each host.

    >>> place, owner, leaf = np.array([0.0, 1.0, 2.0, 0.0, 1.0]), np.array([0, 0, 0, 1, 1]), np.array([8, 9, 10, 8, 10])
    >>> _as_at_whole_hosts(place, np.ones(5), owner, leaf, 3).tolist()
    [0.0, 1.0, 2.0, 0.0, 2.0]
    """
    whole = (np.bincount(owner, cables) > n_nics - 0.5)[owner]
    if whole.all() or not whole.any():
        return place
    low, high = np.full(neighbour.max() + 1, np.inf), np.full(neighbour.max() + 1, -1.0)
    np.minimum.at(low, neighbour[whole], place[whole])
    np.maximum.at(high, neighbour[whole], place[whole])
    same_nic = np.where(low == high, low, np.inf)[neighbour]
    is_next = np.append(False, owner[1:] == owner[:-1])
    end = np.append(0.0, (same_nic + cables)[:-1])
    fits = (same_nic + cables <= n_nics) & (~is_next | (same_nic >= end))
    is_moved = ~whole & (np.bincount(owner, ~fits) == 0)[owner]
    return np.where(is_moved, same_nic, place)


class Ports:
    """The NICs of all hosts on a fabric; NIC ``n`` of host ``h`` is port ``h * n_nics + n``."""

    def __init__(self, fabric: Fabric, cluster: Cluster, inside: HostPaths, lanes: Lanes) -> None:
        if (fabric.link_kind == LinkKind.INSIDE).any():
            raise FabricError(
                f"fabric {fabric.name!r}: has links inside hosts of its own (leave out the machine, or take another "
                "topology)"
            )
        self.fabric, self._inside, self._cluster, self._lanes = fabric, inside, cluster, lanes
        self._n_nics = inside.n_nics
        assert cluster.host is not None
        self._over_nvlink = cluster.host.cross_rail == "nvlink"
        self.leaving = self._rows(fabric.link_src, fabric.link_dst)
        self.entering = self._rows(fabric.link_dst, fabric.link_src)
        hosts = fabric.n_hosts
        #: Whether hosts hang on switches alone, by shortest paths.
        self.switched = fabric.routes is None and not ((fabric.link_src < hosts) & (fabric.link_dst < hosts)).any()
        if self.switched:
            self._graph, self._row = self._port_graph()
            self._router = self._nearest = Router(self._graph)
            self._out, self._in = (self._places(end) for end in (self._graph.link_src, self._graph.link_dst))
            self._links_between = PairTable()
            self._least_links = self._least_between()

    def _rows(self, host: I32, neighbour: I32) -> _Rows:
        """Give the cables at hosts, which are sorted by their other ends, to NICs in order."""
        fabric = self.fabric
        first, last = (np.full(fabric.n_links, -1, dtype=np.int64) for _ in range(2))
        rows = np.flatnonzero(host < fabric.n_hosts)
        rows = rows[np.lexsort((neighbour[rows], host[rows]))]
        owner = host[rows]
        rate = self._cluster.interface_bandwidth[owner]
        part = fabric.link_kind[rows] == LinkKind.LANE
        cables = np.where(part, fabric.link_bandwidth[rows] / rate, fabric.link_count[rows])
        before = np.concatenate([[0.0], np.cumsum(cables)])
        start = before[np.searchsorted(owner, np.arange(fabric.n_hosts))]
        most = max(self._n_nics - 1, 0)
        place, count = before[:-1] - start[owner], cables
        if self._lanes.most > 1:
            place, count = self._of_planes(rows, owner, cables)
        else:
            place = _as_at_whole_hosts(place, cables, owner, neighbour[rows], self._n_nics)
        first[rows] = np.clip(np.floor(place + 1e-6), 0, most)
        last[rows] = np.clip(np.ceil(place + count - 1e-6) - 1, first[rows], most)
        return _Rows(first, last)

    def _of_planes(self, rows: I64, owner: I32, cables: F64) -> tuple[F64, F64]:
        """Give the lanes to all planes that follow each other the same NICs, one for each lane to a plane.

        Args:
            rows, owner: links of hosts, and their hosts, sorted.
            cables: NICs of each that is no lane to a plane.

        Returns:
            How many NICs of its host are before each link, and how many it has.
        """
        plane = self._lanes.number[rows]
        same_host = np.append(False, owner[1:] == owner[:-1])
        is_next = same_host & (plane >= 0) & (np.append(-1, plane[:-1]) >= 0)
        begins = ~(is_next & (plane > np.append(-1, plane[:-1])))
        block = np.cumsum(begins) - 1
        firsts = np.flatnonzero(begins)
        lanes = self.fabric.link_count[rows].astype(np.float64)
        nics_of_row = np.where(plane >= 0, np.maximum.reduceat(lanes, firsts)[block], cables)
        of_blocks = np.concatenate([[0.0], np.cumsum(nics_of_row[firsts])])
        of_hosts = np.searchsorted(owner[firsts], owner)
        return of_blocks[block] - of_blocks[of_hosts], np.where(plane >= 0, lanes, cables)

    def _port_graph(self) -> tuple[Fabric, I64]:
        """Return the network with ports in place of hosts, and the link of the fabric that each of its links is."""
        fabric, hosts, nics = self.fabric, self.fabric.n_hosts, self._n_nics
        columns = []
        for ends, rows in ((fabric.link_src, self.leaving), (fabric.link_dst, self.entering)):
            at_host = np.flatnonzero(rows.first >= 0)
            which, nic = expand(rows.first[at_host], rows.last[at_host] - rows.first[at_host] + 1)
            columns.append((at_host[which], ends[at_host[which]].astype(np.int64) * nics + nic))
        (up, up_port), (down, down_port) = columns
        between = np.flatnonzero((fabric.link_src >= hosts) & (fabric.link_dst >= hosts))
        shift = hosts * (nics - 1)
        row = np.concatenate([up, down, between])
        src = np.concatenate([up_port, fabric.link_src[down] + shift, fabric.link_src[between] + shift])
        dst = np.concatenate([fabric.link_dst[up] + shift, down_port, fabric.link_dst[between] + shift])
        order = np.lexsort((dst, src))
        graph = Fabric(
            name=fabric.name,
            n_hosts=hosts * nics,
            n_switches=fabric.n_switches,
            link_src=src[order],
            link_dst=dst[order],
            link_count=np.ones(len(row)),
            link_bandwidth=fabric.link_bandwidth[row[order]],
            link_latency=fabric.link_latency[row[order]],
            max_paths=fabric.max_paths,
        )
        return graph, row[order]

    def _places(self, end: I32) -> I64:
        """(H, n) of each port a number that it shares with those on the same switch; -1 where it joins none."""
        graph = self._graph
        switch_end = graph.link_dst if end is graph.link_src else graph.link_src
        at_port = np.flatnonzero(end < graph.n_hosts)
        counts = np.bincount(end[at_port], minlength=graph.n_hosts)
        place = np.full(graph.n_hosts, -1, dtype=np.int64)
        place[end[at_port]] = switch_end[at_port]
        several = np.flatnonzero(counts > 1)
        for number in np.unique(counts[several]).tolist():  # ports on the same switches are equal
            ports = np.flatnonzero(counts == number)
            rows = at_port[counts[end[at_port]] == number]
            rows = rows[np.lexsort((switch_end[rows], end[rows]))]
            switches = switch_end[rows].reshape(len(ports), number)
            _, first, same = np.unique(switches, axis=0, return_index=True, return_inverse=True)
            place[ports] = ports[first[same.ravel()]]
        result: I64 = place.reshape(self.fabric.n_hosts, self._n_nics)
        return result

    def _least_between(self) -> int:
        """Return links that any two ports of different places are apart at least.

        These are 2 where ports have several switches, of which some may be the same, 3 where switches of ports are
        joined to each other, and else 4.
        """
        graph, hosts = self._graph, self._graph.n_hosts
        at_port = np.zeros(graph.n_nodes, dtype=bool)
        for ends, far_ends in ((graph.link_src, graph.link_dst), (graph.link_dst, graph.link_src)):
            ports = ends < hosts
            if (np.bincount(ends[ports], minlength=1) > 1).any():
                return 2
            at_port[far_ends[ports]] = True
        return 3 if (at_port[graph.link_src] & at_port[graph.link_dst]).any() else 4

    def nic_places(self) -> NicPlaces:
        """Return where the NICs of all hosts join the network of switches."""
        graph, ports = self._graph, self._graph.n_hosts
        at_port, between = graph.link_src < ports, (graph.link_src >= ports) & (graph.link_dst >= ports)
        port, switch = graph.link_src[at_port], graph.link_dst[at_port] - ports
        some_switch = np.full(ports, -1, dtype=np.int32)
        some_switch[port] = switch
        tails = np.concatenate([graph.link_src[between] - ports, some_switch[port]])
        heads = np.concatenate([graph.link_dst[between] - ports, switch])
        part = np.where(some_switch < 0, -1, connected(tails, heads, graph.n_switches)[some_switch])
        return NicPlaces(part.reshape(self._out.shape), self._out)

    @property
    def graph(self) -> tuple[Fabric, I64]:
        """The network with ports in place of hosts, and the link of the fabric that each of its links is."""
        return self._graph, self._row

    def keep(self, links: I64) -> None:
        """Look for paths over some links of the graph alone."""
        self._graph, self._row = some_links(self._graph, links), self._row[links]
        self._router = Router(self._graph)

    def choose(self, src: I64, dst: I64) -> Chosen:
        """Choose the NICs of pairs of devices of different hosts; see the rule of the module."""
        own_nic, peer_nic = self._own(src, dst), self._own(dst, src)
        if not self.switched:
            none = np.full(len(src), -1, dtype=np.int64)
            return Chosen(none, none)
        host, target = (self._cluster.device_host[device].astype(np.int64) for device in (src, dst))
        leaves, arrives = own_nic.copy(), peer_nic.copy()
        out_place, in_place = self._out[host, own_nic], self._in[target, peer_nic]
        pairs = np.flatnonzero((out_place != in_place) | (out_place < 0))
        if len(pairs) and self._over_nvlink:
            nic_places = self._out[host[pairs]]
            is_same = (nic_places == in_place[pairs, None]) & (nic_places >= 0)
            same_rail = is_same[np.arange(len(pairs)), peer_nic[pairs]]
            on_rail = is_same.any(axis=1)
            leaves[pairs[on_rail]] = np.where(same_rail, peer_nic[pairs], np.argmax(is_same, axis=1))[on_rail]
            pairs = pairs[~on_rail]
        if len(pairs) and self._over_nvlink:  # no other NIC is nearer than the least there can be
            pairs = pairs[self._between(out_place[pairs], in_place[pairs]) > self._least_links]
        if len(pairs):
            candidates = self._out[host[pairs]] if self._over_nvlink else out_place[pairs, None]
            links = self._between(candidates, in_place[pairs, None])
            nics = np.arange(self._n_nics) if self._over_nvlink else own_nic[pairs, None]
            best = np.argmin(2 * links + (nics != own_nic[pairs, None]), axis=1)
            if self._over_nvlink:
                leaves[pairs] = best
            pairs = pairs[links.min(axis=1) >= _NEVER]
        if len(pairs):
            self._by_any(pairs, host, target, own_nic, peer_nic, leaves, arrives)
        return Chosen(leaves, arrives)

    def _by_any(
        self, pairs: I64, host: I64, target: I64, own_nic: I64, peer_nic: I64, leaves: I64, arrives: I64
    ) -> None:
        """Write the two NICs that are the fewest links apart, of pairs whose own ones lead nowhere; else -1."""
        n = self._n_nics
        links = self._between(self._out[host[pairs]][:, :, None], self._in[target[pairs]][:, None, :])
        nics = np.arange(n)
        detours = (nics[:, None] != own_nic[pairs, None, None]) | np.zeros((1, 1, n), dtype=bool)
        detours = detours.astype(np.int64) + 2 * (nics != peer_nic[pairs, None, None])  # rather to the target's own NIC
        best = np.argmin((4 * links + detours).reshape(len(pairs), n * n), axis=1)
        is_lost = links.reshape(len(pairs), n * n)[np.arange(len(pairs)), best] >= _NEVER
        leaves[pairs] = np.where(is_lost, -1, best // n)
        arrives[pairs] = np.where(is_lost, -1, best % n)

    def _own(self, device: I64, peer: I64) -> I64:
        """Return the NIC of each device; of several each peer gets its own, in turn."""
        inside = self._inside
        place, of_peer = device % inside.n_devices, peer % inside.n_devices
        first, count = inside.own_ptr[place], np.diff(inside.own_ptr)[place]
        nics: I64 = inside.own_nics[first + of_peer % count].astype(np.int64)
        return nics

    def _between(self, out: I64, into: I64) -> I64:
        """Return the links between ports of these places, `_NEVER` where there is no way; any shapes that fit."""
        out, into = np.broadcast_arrays(out, into)
        nodes = self._graph.n_nodes
        key = np.where((out < 0) | (into < 0), -1, out * nodes + into)
        links, joined = np.full(key.shape, _NEVER), key >= 0
        keys = key[joined]
        numbers = self._links_between.get(keys)
        if (new := keys[numbers == 0]).size:
            new = np.unique(new)
            self._links_between.put(new, self._search(new // nodes, new % nodes))
            numbers = self._links_between.get(keys)
        links[joined] = numbers - 1
        return np.where(out == into, np.where(out < 0, _NEVER, 2), links)

    def _search(self, out: I64, into: I64) -> I32:
        """Return one more than the links between a port of one place and a port of another."""
        some = [np.zeros(self._graph.n_nodes, dtype=np.int64) for _ in range(2)]
        for port, places in zip(some, (self._out, self._in), strict=True):
            joined = np.flatnonzero(places.ravel() >= 0)
            port[places.ravel()[joined]] = joined
        length = self._nearest.links_between(some[0][out], some[1][into])
        return i32(np.where(length < 0, _NEVER, length) + 1)

    def paths(self, src: I64, dst: I64, chosen: Chosen) -> Paths:
        """Return the paths of the fabric for pairs of devices, links as numbers of its rows."""
        hosts, nics = self._cluster.device_host.astype(np.int64), self._n_nics
        by_ports = chosen.leaves >= 0
        parts = []
        if by_ports.any():
            leaves = hosts[src[by_ports]] * nics + chosen.leaves[by_ports]
            ways = self._router.paths(leaves, hosts[dst[by_ports]] * nics + chosen.arrives[by_ports])
            parts.append((np.flatnonzero(by_ports), attrs.evolve(ways, links=i32(self._row[ways.links]))))
        if not by_ports.all():
            by_hosts = np.flatnonzero(~by_ports)
            parts.append((by_hosts, route(self.fabric, hosts[src[by_hosts]], hosts[dst[by_hosts]])))
        return parts[0][1] if len(parts) == 1 else _merged(len(src), parts)


def _merged(count: int, parts: list[tuple[I64, Paths]]) -> Paths:
    """Return the paths of two sets of pairs, in the order of all pairs."""
    pair = np.concatenate([np.repeat(pairs, np.diff(ways.pair_ptr)) for pairs, ways in parts])
    order = np.argsort(pair, kind="stable")
    lengths = np.concatenate([np.diff(ways.path_ptr) for _, ways in parts])
    starts = np.concatenate([parts[0][1].path_ptr[:-1], parts[1][1].path_ptr[:-1] + len(parts[0][1].links)])
    _, entry = expand(starts[order], lengths[order])
    return Paths(
        pair_ptr=i64(np.searchsorted(pair[order], np.arange(count + 1))),
        path_ptr=i64(np.concatenate([[0], np.cumsum(lengths[order])])),
        links=np.concatenate([ways.links for _, ways in parts])[entry],
        weight=np.concatenate([ways.weight for _, ways in parts])[order],
    )

"""The network of hosts whose insides are modelled: every device is an endpoint, and NICs and links inside carry load.

A path from device to device of another host is: links inside the first host to a NIC, that NIC, the path of the fabric,
a NIC of the second host, and links inside it.  `topoplan_engine.network.ports` has the rule for the NICs.  A message
takes one NIC at each end, so it never is faster than one.

Links: those of the fabric, in its order, then for each host the links inside that some way takes, in both directions,
and two for every NIC, out and in; of a network with planes two for every lane of a NIC.

Rings: a group with k devices on each host, which own n NICs, runs n rings (NCCL's channels).  Ring c visits the hosts
in the order in which they are listed.  Inside a host it goes zigzag, c, c+1, c-1, c+2, ..., so that the rings of a full
mesh share no link (Walecki's paths), and it leaves by the device where it enters the next host: it stays on a rail.
Where hosts have fewer NICs than devices, rings enter and leave at devices with NICs of their own; where NICs lead
nowhere, at those of the others (`topoplan_engine.network.ring_gates`).
Where the fabric has rings or cycles for the hosts of a group, rings run along these, one for each cable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64, i32, i64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import indptr, row_of_entry, select
from topoplan_engine.host_models import shares_links
from topoplan_engine.network.host_paths import HostPaths, host_paths
from topoplan_engine.network.host_ways import ways_through, zigzag
from topoplan_engine.network.joining import Cables, Insides, Outside, joined_paths
from topoplan_engine.network.lanes import lanes_of
from topoplan_engine.network.new_rows import NewRings, NewRows
from topoplan_engine.network.ports import Chosen, Ports
from topoplan_engine.network.ring_gates import NicPlaces, gates_of_rings, rings_through
from topoplan_engine.network.ring_search import find_cycles
from topoplan_engine.network.rings import cycles_of, looks_along_links, own_links, rings_of
from topoplan_engine.network.spreading import Spreading, Ways
from topoplan_engine.network.tables import Network
from topoplan_engine.network.walks import find_nics

__all__ = ["HostLinks", "MachineNetwork", "network_of", "spreading_network"]


def network_of(fabric: Fabric, cluster: Cluster) -> Network:
    """Return the network of a cluster on a fabric: with the insides of its hosts, where they are modelled."""
    return MachineNetwork(fabric, cluster) if shares_links(cluster.host) else Network(fabric, cluster)


def spreading_network(fabric: Fabric, cluster: Cluster) -> Network | None:
    """Return a network whose messages load all equal paths, and keep one; None where none is such.

    Paths are the shortest ones, several on each plane, and no ring of a group is wired.  Where hosts have insides, they
    hang on switches.
    """
    is_star = fabric.n_links <= 2 * fabric.n_hosts
    if (
        is_star
        or fabric.routes is not None
        or fabric.max_paths <= lanes_of(fabric, cluster).most
        or fabric.rings
        or fabric.cycles
        or looks_along_links(fabric)
    ):
        return None
    network = network_of(attrs.evolve(fabric, max_paths=1), cluster)
    if isinstance(network, MachineNetwork) and not network.ports.switched:
        return None
    network.spread()
    assert network.spreading is not None
    network.spreading.drawn = fabric
    return network


class _Walk(NamedTuple):
    """A ring of devices along links between hosts.

    Attributes:
        order: (n,) devices; each sends to the next one.
        last: (stops,) numbers of those that send to another host.
        links: (stops, jumps) by which links they do.
        chosen: NICs of these flows.
    """

    order: I64
    last: I64
    links: I64
    chosen: Chosen


def _place_of(ring: I64, members: list[I64]) -> I64:
    """Return where each number of a ring is in the list of all members of all hosts."""
    listed = np.concatenate(members)
    place = np.empty(len(listed), dtype=np.int64)
    place[listed] = np.arange(len(listed))
    return place[ring]


#: Of no pairs.
_NOTHING_OUTSIDE = Outside(i64([0]), i64([0]), i32([]), i64([]), i64([]))


class HostLinks(NamedTuple):
    """Numbers of the links of hosts behind those of a fabric; all hosts have equal blocks.

    Attributes:
        first: number of the first one.
        inside: links of a block that are inside a host, see `topoplan_engine.network.host_paths`.
        n_nics: NICs of a host, with two links each behind these for every lane: out and in.
        lanes: of a NIC, one for each plane of the network.
    """

    first: int
    inside: int
    n_nics: int
    lanes: int = 1

    @property
    def block(self) -> int:
        """Links of one host."""
        return self.inside + 2 * self.n_nics * self.lanes

    def nic(self, host: I64, nic: I64, lane: I64, arriving: int) -> I64:
        """Return the link of a lane of a NIC of each host, out (0) or in (1)."""
        return self.first + host * self.block + self.inside + 2 * (nic * self.lanes + np.maximum(lane, 0)) + arriving


class MachineNetwork(Network):
    """Links, paths and rings of a fabric whose hosts have insides."""

    def __init__(self, fabric: Fabric, cluster: Cluster) -> None:
        assert cluster.host is not None
        self.inside: HostPaths = host_paths(cluster.host)
        planes = lanes_of(fabric, cluster).most
        self.host_links = HostLinks(fabric.n_links, len(self.inside.bandwidth), self.inside.n_nics, planes)
        super().__init__(fabric, cluster)
        self.ports = Ports(fabric, cluster, self.inside, self.lanes)
        leaving, entering = self.ports.leaving, self.ports.entering
        self._cables = Cables(fabric.link_src, fabric.link_dst, self.lanes.number, *leaving, *entering)
        inside, links = self.inside, self.host_links
        ways = inside.ptr, inside.links, inside.own_ptr, inside.own_nics, inside.n_devices, inside.n_endpoints
        self._insides = Insides(cluster.device_host, *ways, links.first, links.block, links.inside, links.lanes)

    def _endpoints(self) -> I32:
        """(D,) every device is one."""
        return i32(np.arange(self.cluster.n_devices))

    def _host_columns(self) -> tuple[F64, F64]:
        """Bandwidth and latency of the links of hosts."""
        hosts, lanes = self.cluster.n_hosts, self.host_links.lanes
        nics = 2 * self.inside.n_nics * lanes
        bandwidth = np.empty((hosts, self.host_links.block))
        bandwidth[:, : -nics or None] = self.inside.bandwidth
        if nics:
            bandwidth[:, -nics:] = self.cluster.interface_bandwidth[:, None] / lanes
        latency = np.tile(np.concatenate([self.inside.latency, np.zeros(nics)]), hosts)
        return bandwidth.ravel(), latency

    @property
    def _first_inside(self) -> int:
        """Loads of rings are those of the links on their way: none is a share (`flows.inside_load`)."""
        return self.n_links

    def _devices_of(self, keys: I64) -> tuple[I64, I64]:
        return np.divmod(keys, self.cluster.n_devices)  # type: ignore[return-value]

    def _routed(self, keys: I64) -> tuple[I64, NewRows]:
        """Find the paths of pairs of devices."""
        src, dst = self._devices_of(keys)
        host = self.cluster.device_host
        away = host[src] != host[dst]
        counts, outside, weight = np.ones(len(keys), dtype=np.int64), _NOTHING_OUTSIDE, np.zeros(0)
        if away.any():
            chosen = self.ports.choose(src[away], dst[away])
            ways = self.ports.paths(src[away], dst[away], chosen)
            outside, weight = Outside(ways.pair_ptr, ways.path_ptr, ways.links, *chosen), ways.weight
            counts[away] = np.diff(ways.pair_ptr)
        if not away.all():
            between_hosts, parts = np.repeat(away, counts), weight
            weight = np.ones(len(between_hosts))
            weight[between_hosts] = parts
        lengths, links = joined_paths(src, dst, outside, self._cables, self._insides)
        reachable, ends = counts > 0, np.cumsum(counts)
        running = np.concatenate([[0.0], np.cumsum(weight)])
        cumulative_weight = running[1:] - np.repeat(running[ends - counts], counts)
        cumulative_weight[ends[reachable] - 1] = 1.0  # rounding must not leave a draw without a path
        pairs = np.where(away, keys, -1)[reachable]
        return counts, NewRows(counts[reachable], lengths, links, self._sums(lengths, links), cumulative_weight, pairs)

    def _place(self, device: I64) -> I64:
        """Return the places of devices in their hosts."""
        return device % self.inside.n_devices

    # ── Spreading ────────────────────────────────────────────────────────────────────────────────────────

    def spread(self) -> None:
        """Let messages load all equal paths; NICs are their ends."""
        graph, row = self.ports.graph
        link = row.copy()
        for ends, arriving in ((graph.link_src, 0), (graph.link_dst, 1)):
            at_nic = np.flatnonzero(ends < graph.n_hosts)
            host, nic = np.divmod(ends[at_nic].astype(np.int64), self.inside.n_nics)
            link[at_nic] = self.host_links.nic(host, nic, self.lanes.number[row[at_nic]], arriving)
        nic_graph = attrs.evolve(graph, link_bandwidth=self.bandwidth[link])
        self.spreading = Spreading(self.fabric, Ways(nic_graph, link, row), self.n_links)
        thin_rows = self.spreading.doors.thinned(graph)
        if thin_rows is not None:
            self.ports.keep(thin_rows)

    def ends_of(self, rows: I32) -> tuple[I64, I64]:
        """Return the NICs of all hosts by which the first path of each row leaves and arrives.

        -1 inside a host, and -2 where it goes through others.
        """
        paths, host_links = self.paths, self.host_links
        ends = np.empty((2, len(rows)), np.int64)
        columns = paths.row_ptr, paths.path_ptr, paths.links
        find_nics(rows, *columns, host_links.first, host_links.inside, host_links.n_nics, host_links.lanes, ends)
        return ends[0], ends[1]

    # ── Rings ────────────────────────────────────────────────────────────────────────────────────────────

    def _backward(self, members: I32) -> I32:
        return np.concatenate([members[:1], members[:0:-1]])

    def _ring_rows(self, taskgraph: TaskGraph, group: I64, pointers: I64, devices: I32) -> NewRings:
        """Find the rings of new groups, and the rows of their flows, ring by ring."""
        along = self._rows_along_fabric(pointers, devices)
        patterns = self._patterns(pointers, devices)
        lengths, parallel = np.zeros(len(group), dtype=np.int64), np.ones(len(group), dtype=np.int64)
        for number, rows_of_rings in along.items():
            lengths[number], parallel[number] = sum(map(len, rows_of_rings)), len(rows_of_rings)
        orders_of: list[tuple[I64, list[I64]]] = []
        for several in patterns:
            plain = i64([each for each in several if each not in along])
            if len(plain):
                orders = self._orders(devices[pointers[plain[0]] : pointers[plain[0] + 1]])
                lengths[plain], parallel[plain] = sum(map(len, orders)), len(orders)
                orders_of.append((plain, orders))
        row_ptr = indptr(lengths)
        src, dst = np.zeros((2, row_ptr[-1]), dtype=np.int32)
        rows = np.empty(row_ptr[-1], dtype=np.int32)
        for plain, orders in orders_of:
            senders = np.concatenate(orders)
            receivers = np.concatenate([np.roll(order, -1) for order in orders])
            flows = row_ptr[plain][:, None] + np.arange(len(senders))
            src[flows], dst[flows] = (devices[pointers[plain][:, None] + ends] for ends in (senders, receivers))
        rows[:] = self._rows(i32(src), i32(dst))
        for number, rows_of_rings in along.items():
            rows[row_ptr[number] : row_ptr[number + 1]] = np.concatenate(rows_of_rings)
        if (lost := np.flatnonzero(rows < 0)).size:
            first = group[np.searchsorted(row_ptr, lost[0], "right") - 1]
            task = np.flatnonzero((taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.group == first))[0]
            self._unreachable(taskgraph, int(task), int(src[lost[0]]), int(dst[lost[0]]))
        return NewRings(group, pointers, devices, pointers, devices, parallel, row_ptr, i32(rows))

    def _rows_along_fabric(self, pointers: I64, devices: I32) -> dict[int, list[I32]]:
        """Return the rows of the rings of those groups that have some along the fabric's, by their numbers."""
        fabric = self.fabric
        if not (fabric.rings or fabric.cycles or looks_along_links(fabric)):
            return {}
        hosts, first = self.cluster.device_host[devices], pointers[:-1]
        several = np.maximum.reduceat(hosts, first) > np.minimum.reduceat(hosts, first)
        turns_of: dict[bytes, list[tuple[I64, I64]]] = {}
        groups = {g: devices[pointers[g] : pointers[g + 1]] for g in np.flatnonzero(several)}
        rings = {g: self._rings_of_fabric(listed, turns_of) for g, listed in groups.items()}
        if not any(rings.values()):
            return {}
        rows = iter(self._rows_of_walks([walk for walks in rings.values() for walk in walks]))
        return {int(g): [next(rows) for _ in walks] for g, walks in rings.items() if walks}

    def _patterns(self, pointers: I64, devices: I32) -> list[list[int]]:
        """Return groups whose members lie on hosts in the same way: their rings are the same, member by member."""
        host = self.cluster.device_host[devices].astype(np.int64)
        key = row_of_entry(pointers) * self.cluster.n_hosts + host
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        on_host = first[place.ravel()] - np.repeat(pointers[:-1], np.diff(pointers))  # the first member on its host
        pattern = i64(on_host * self.inside.n_devices + self._place(devices.astype(np.int64)))
        columns, size = pattern.tobytes(), pattern.itemsize
        several: dict[bytes, list[int]] = {}
        for number, (first_member, end) in enumerate(itertools.pairwise(pointers.tolist())):
            lone_group = number if self._lacks_nics(host[first_member:end]) else -1
            several.setdefault(
                columns[size * first_member : size * end] + lone_group.to_bytes(8, signed=True), []
            ).append(number)
        return list(several.values())

    @cached_property
    def _nic_places(self) -> tuple[NicPlaces, tuple[I64, NDArray[np.bool_]] | None]:
        """Where NICs join the network, and which hosts have NICs that lead nowhere, or elsewhere than others'."""
        places = self.ports.nic_places()
        return places, places.classes()

    def _lacks_nics(self, hosts: I64) -> bool:
        """Whether NICs of some hosts lead nowhere, or not to the same parts of the network."""
        if not self.ports.switched or (classes := self._nic_places[1]) is None:
            return False
        number, lacks_some = classes
        of_hosts = number[hosts]
        return bool((of_hosts != of_hosts[0]).any() or lacks_some[of_hosts[0]])

    def _orders(self, listed: I32) -> list[I64]:
        """Return the members of a group, by their numbers, in the order of each of its rings."""
        hosts, numbers = self.cluster.device_host[listed], np.arange(len(listed))
        _, first, lengths = np.unique(hosts, return_index=True, return_counts=True)
        if len(np.unique(listed)) < len(listed) or len(listed) == len(first):
            return [numbers]
        on_host = np.split(np.argsort(hosts, kind="stable"), np.cumsum(lengths)[:-1])
        members = [on_host[place] for place in np.argsort(first).tolist()]
        fewest_members = min(map(len, members))
        if len(members) == 1:
            return self._mesh_orders(listed)
        count = min(fewest_members, *(self._nics_of(listed[each]) for each in members))
        rings = []
        for ring in range(max(count, 1)):
            enters, order = ring * fewest_members // max(count, 1), []
            for each in members:
                way = zigzag(len(each), enters * len(each) // fewest_members)
                order.append(each[way])
                enters = way[-1] * fewest_members // len(each)
            rings.append(np.concatenate(order))
        rings = self._over_all_nics(listed, members, rings)
        return self._over_whole_nics(listed, members, rings) if self._lacks_nics(i64(hosts)) else rings

    def _over_whole_nics(self, listed: I32, members: list[I64], rings: list[I64]) -> list[I64]:
        """Return rings by NICs that lead from host to host, where the given ones have more on one NIC for their number.

        Args:
            listed, members, rings: see `_over_all_nics`.
        """
        stops = i64([self.cluster.device_host[listed[each[0]]] for each in members])
        gates = gates_of_rings([self._usual_nic(listed[each]) for each in members], stops, self._nic_places[0])
        if not len(gates[0]):
            return rings
        new_rings = rings_through(members, gates)
        return min(rings, new_rings, key=lambda some: self._most_on_a_nic(listed, some) / len(some))

    def _most_on_a_nic(self, listed: I32, rings: list[I64]) -> int:
        """Count the rings that leave or enter a host by one NIC, at most."""
        src, dst = (i64(listed[np.concatenate(each)]) for each in (rings, [np.roll(ring, -1) for ring in rings]))
        host, n_nics = self.cluster.device_host.astype(np.int64), self.inside.n_nics
        away = host[src] != host[dst]
        chosen = self.ports.choose(src[away], dst[away])
        ends = (host[src[away]] * n_nics + chosen.leaves, host[dst[away]] * n_nics + chosen.arrives)
        return max(int(np.unique(each, return_counts=True)[1].max()) for each in ends)

    def _over_all_nics(self, listed: I32, members: list[I64], rings: list[I64]) -> list[I64]:
        """Return rings that leave hosts by NICs of their own, where the given ones share some and others are idle.

        That is so where there are fewer NICs than devices.  A ring then takes its way through a host
        (`topoplan_engine.network.host_ways`) forward in every other host and backward between: it enters a host by the
        NIC by which it left the one before.

        Args:
            listed: a group.
            members: on each host, as numbers of the group.
            rings: in order of hosts.
        """
        usual = [self._usual_nic(listed[each]) for each in members]
        leaves = np.stack([np.concatenate(usual)[_place_of(ring, members)] for ring in rings])
        ends = np.cumsum([len(each) for each in members]) - 1
        gates = np.concatenate(
            [each[np.unique(nics, return_index=True)[1]] for each, nics in zip(members, usual, strict=True)]
        )
        by_gates = np.isin([ring[ends] for ring in rings], gates).all()
        if by_gates and all(len(np.unique(leaves[:, end])) == len(rings) for end in ends.tolist()):
            return rings
        ways = [ways_through(nics, len(rings)) for nics in usual]
        if not all(ways):
            return rings
        return [
            np.concatenate(
                [
                    each[way[number] if stop % 2 == 0 else way[number][::-1]]
                    for stop, (each, way) in enumerate(zip(members, ways, strict=True))
                ]
            )
            for number in range(len(rings))
        ]

    def _usual_nic(self, devices: I32) -> I64:
        """Return the NIC by which each device sends to the device with the same place in another host."""
        place = self._place(devices.astype(np.int64))
        first, count = self.inside.own_ptr[place], np.diff(self.inside.own_ptr)[place]
        nics: I64 = self.inside.own_nics[first + place % count].astype(np.int64)
        return nics

    def _nics_of(self, devices: I32) -> int:
        """Count the NICs that devices of one host leave by."""
        _, entry = select(self.inside.own_ptr, self._place(devices.astype(np.int64)))
        return len(np.unique(self.inside.own_nics[entry]))

    def _mesh_orders(self, listed: I32) -> list[I64]:
        """Return the rings of a group inside one host: one through a switch, several where devices are joined.

        Those share no link, as far as `topoplan_engine.network.ring_search` finds them.
        """
        place = self._place(listed.astype(np.int64))
        start, end = np.meshgrid(np.arange(len(place)), np.arange(len(place)), indexing="ij")
        rows = place[start] * self.inside.n_endpoints + place[end]
        joined = np.diff(self.inside.ptr)[rows] == 1
        mesh = Fabric.from_links(
            name="devices",
            n_hosts=len(place),
            links=np.stack([start[joined], end[joined]], axis=1),
            bandwidth=self.inside.bandwidth[self.inside.links[self.inside.ptr[rows[joined]]]],
            latency=0.0,
            rings_along_links=True,
        )
        cycles = find_cycles(mesh, i32(np.arange(len(place)))) if joined.any() else np.zeros((0, 0), dtype=np.int64)
        orders = []
        for receivers in cycles:
            order = [0]
            while len(order) < len(place):
                order.append(int(receivers[order[-1]]))
            orders.append(i64(order))
        return orders or [np.arange(len(listed))]

    def _rings_of_fabric(self, listed: I32, turns_of: dict[bytes, list[tuple[I64, I64]]]) -> list[_Walk]:
        """Return a group's rings along those of the fabric, one for each cable of the thinnest link.

        Groups on the same hosts share ``turns_of``: the order of hosts, and the links by which they are left.
        """
        hosts = self.cluster.device_host[listed]
        names, first = np.unique(hosts, return_index=True)
        stops = i32(names[np.argsort(first)])
        key = stops.tobytes()
        if key not in turns_of:
            turns_of[key] = self._turns(stops)
        walks = []
        for order, links in turns_of[key]:
            for cable in range(int(self.fabric.link_count[links].min())):
                walks.append(self._walk(listed, hosts, stops[order], links, cable))
        return walks

    def _turns(self, stops: I32) -> list[tuple[I64, I64]]:
        """Return the rings of the fabric through hosts: their numbers in order, and (stops, jumps) links from each."""
        if len(stops) < 2 or not (rings_of(self.fabric, stops) or len(cycles_of(self.fabric, stops))):
            return []
        turns = []
        place = np.zeros(self.cluster.n_hosts, np.int64)
        place[stops] = np.arange(len(stops))
        for links in own_links(self.fabric, stops):
            following = place[self.fabric.link_dst[links[:, -1]]].tolist()
            order = [0]
            while len(order) < len(stops):
                order.append(following[order[-1]])
            turns.append((i64(order), links[order]))
        return turns

    def _walk(self, listed: I32, hosts: I32, stops: I32, links: I64, cable: int) -> _Walk:
        """Return the flows of a ring along links (stops, jumps) that leave stops in turn.

        It enters and leaves a host at the devices that own the NICs of its links.
        """
        leaving, entering = self.ports.leaving, self.ports.entering
        out = np.minimum(leaving.first[links[:, 0]] + cable, leaving.last[links[:, 0]])
        into = np.roll(np.minimum(entering.first[links[:, -1]] + cable, entering.last[links[:, -1]]), 1)
        chosen = Chosen(out, np.roll(into, -1))
        order, last = [], []
        if len(listed) == len(stops):  # one member on each host
            place = np.empty(self.cluster.n_hosts, np.int64)
            place[hosts] = listed
            return _Walk(place[stops], np.arange(len(stops)), links, chosen)
        for stop, enters, leaves in zip(stops, into.tolist(), out.tolist(), strict=True):
            members = listed[hosts == stop]
            ends = [self._owner(members, nic) for nic in (enters, leaves)]
            middle = [device for device in members.tolist() if device not in ends]
            order += [ends[0], *middle, *([ends[1]] if ends[1] != ends[0] else [])]
            last.append(len(order) - 1)
        return _Walk(i64(order), i64(last), links, chosen)

    def _rows_of_walks(self, walks: list[_Walk]) -> list[I32]:
        """Append the flows of rings along links, all at once; return the rows of each ring."""
        first = indptr([len(walk.order) for walk in walks])
        src = np.concatenate([walk.order for walk in walks])
        dst = np.concatenate([np.roll(walk.order, -1) for walk in walks])
        last = np.concatenate([walk.last + start for walk, start in zip(walks, first[:-1], strict=True)])
        inner = np.ones(len(src), dtype=bool)
        inner[last] = False
        rows = np.empty(len(src), dtype=np.int32)
        rows[inner] = self._rows(i32(src[inner]), i32(dst[inner]))
        rows[last] = len(self.paths.row_ptr) - 1 + np.arange(len(last))
        self._append(*self._new_rows_of_walks(walks))
        return np.split(rows, first[1:-1])

    def _new_rows_of_walks(self, walks: list[_Walk]) -> Iterator[NewRows]:
        """Yield the flows between hosts, ring by ring: joining paths takes several times their size meanwhile."""
        for walk in walks:
            stops, jumps = walk.links.shape
            src, dst = walk.order[walk.last], np.roll(walk.order, -1)[walk.last]
            pointers, links = np.arange(stops + 1) * jumps, i32(walk.links.ravel())
            outside = Outside(np.arange(stops + 1), pointers, links, *walk.chosen)
            lengths, way = joined_paths(src, dst, outside, self._cables, self._insides)
            one_path, no_pair = np.ones(stops, dtype=np.int64), np.full(stops, -1)
            yield NewRows(one_path, lengths, way, self._sums(lengths, way), np.ones(stops), no_pair)

    def _owner(self, members: I32, nic: int) -> int:
        """Return the device of a group's members in one host that a NIC belongs to, else the first of them."""
        for device in members.tolist():
            place = device % self.inside.n_devices
            if nic in self.inside.own_nics[self.inside.own_ptr[place] : self.inside.own_ptr[place + 1]]:
                return int(device)
        return int(members[0])

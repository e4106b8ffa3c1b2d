"""The network as simulators see it: rows of paths, and the flows of every ring.

Data flow: a `Network` is made once for a fabric and a cluster.  `Network.lower` takes a task graph and says
which row of paths each transfer takes and which ring columns each all-reduce runs; what it has not met
before is routed (one question to `topoplan_engine.network.routing` for all new pairs) and kept, so that a search that
changes strategies on one fabric only looks rows up.  Kernels read the columns `Network.paths` and
`Network.rings`.

Links: those of the fabric, in its order, then two for every device, ``up`` and ``down``, inside its host.
Two devices of one host talk over up(a) and down(b); devices of different hosts talk over the fabric alone.

Rings: where the fabric has rings for the size of a group, and the group is one device on each of the hosts
``h, h + stride, h + 2 stride, ...`` with stride = hosts / size, every member sends along each of these rings,
over the direct links of its jumps, walked as FlexNet does: the second jump first, the first one last.
A group on exactly the hosts of some of the fabric's cycles sends along each of these, over their direct links; so does
one for which cycles are found, where the fabric has none and lets them be found.
All other groups run one ring over the routes, in the order in which their members are listed; of a network with planes
one on each of these (`topoplan_engine.network.lanes`).

A group with several devices on some of its hosts runs these rings among its hosts, in the order in which they are first
listed.  A ring enters a host at one of the group's devices, passes all of them, and leaves at the last: a flow from a
host to the next crosses the links of its devices, too.  Every device is the first of as many rings as any other one
(NCCL's channels), so of k devices the link of each carries (k - 1) / k of what the host sends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I8, I32, I64, i8, i32, i64
from topoplan.errors import FabricError, TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.cache import LruCache
from topoplan_engine.csr import GrowingColumns, append, expand, frozen, indptr, row_of_entry, select
from topoplan_engine.kernels.clock import routing
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.network.answered import AnsweredPairs, rows_of
from topoplan_engine.network.doors import some_links
from topoplan_engine.network.lanes import lanes_of, rings_on_lanes
from topoplan_engine.network.link_classes import LinkClasses
from topoplan_engine.network.new_rows import NewRings, NewRows
from topoplan_engine.network.pairs import PairTable
from topoplan_engine.network.ring_loads import LOAD, MOST_DRAWN, ring_loads
from topoplan_engine.network.rings import cycles_of, links_of_groups, looks_along_links, rings_of
from topoplan_engine.network.routing import paths as route
from topoplan_engine.network.spreading import Spreading
from topoplan_engine.network.stripes import Stripes, interfaces_of, rings_on_rails
from topoplan_engine.network.through_hosts import inside_shares, rows_through_hosts, stops_of
from topoplan_engine.network.walks import cross, find_rows, sum_paths

__all__ = [
    "CHOICE",
    "FEW",
    "LOAD",
    "Network",
    "PathColumns",
    "RingColumns",
    "Traffic",
    "ring_bytes",
]


#: `RingColumns.choice` of rings whose flows have one path each, draw one of several, or draw and are few.
ONE_PATH, CHOICE, FEW = range(3)
_COLLECTIVE = int(TaskKind.COLLECTIVE)
#: Flows of the largest ring that counts as few.
_MOST_FEW = 64
#: Lists of groups whose rings are kept by the bytes of the whole list, and bytes of the longest.
_LISTS, _LIST_BYTES = 256, 1 << 16


class PathColumns(NamedTuple):
    """Paths of all rows met so far.

    Attributes:
        bandwidth, latency: (E,) bytes/s and seconds of every link.
        row_ptr: (R+1,) the paths of row ``r`` are ``row_ptr[r] .. row_ptr[r+1]``; a row has at least one.
        path_ptr: (P+1,) the links of path ``p`` are ``links[path_ptr[p] : path_ptr[p+1]]``; none inside a device.
        links: link indices in the order in which a message crosses them.
        delay: (P,) latency of the path, seconds.
        per_byte: (P,) seconds that a byte needs to be written on each link of the path in turn.
        slowest: (P,) smallest bandwidth on the path, bytes/s; infinite where it has no links.
        cumulative_weight: (P,) share of the row's traffic on this path and those before it; 1 on the last.
        pair: (R,) sending host * hosts + receiving host of a row, whose draws of a path are a stream of their own; a
            number beyond these where the links of a ring's devices are on the way, too; -1 where the row has one path
            whoever asks (inside a host, over the jump of a ring).
        first_inside: links from this one on are those of devices inside their hosts.
    """

    bandwidth: F64
    latency: F64
    row_ptr: I64
    path_ptr: I64
    links: I32
    delay: F64
    per_byte: F64
    slowest: F64
    cumulative_weight: F64
    pair: I64
    first_inside: int


class RingColumns(NamedTuple):
    """Rings of all groups met so far.

    Attributes:
        first: (G,) where the rows of a group start in ``rows``.
        parallel: (G,) rings that the group runs at a time.
        members: (G,) flows of each ring: one from every member of the group to the next, or from every host of a group
            with several devices on some host.
        ranks: (G,) devices that sum: members of the group, see `ring_bytes`.
        rows: row of paths over which member ``i`` sends on ring ``r``, at ``first + r * members + i``.
        ring: (G,) where the rings of a group start in ``load_ptr``.
        load_ptr, load_links, load: ring ``r`` of a group loads ``load_links[load_ptr[ring + r] : ...]``, each
            once per flow that crosses it, in units of 1 / `LOAD`; a flow with several paths loads each by its
            share of the traffic.  Of links that nothing tells apart only the first one is listed.
        choice: (G,) `ONE_PATH`, or `CHOICE` where some flow has several paths and draws one; `FEW` where, besides,
            the group has few flows.
        representative: (E,) the link that represents the class of each link, if all all-reduces are coupled.
    """

    first: I64
    parallel: I32
    members: I32
    ranks: I32
    rows: I32
    ring: I64
    load_ptr: I64
    load_links: I32
    load: I64
    choice: I8
    representative: I64


@inline_kernel
def ring_bytes(rings: RingColumns, group: int) -> float:
    """Bytes on a link of a group's ring, as a share of those of a ring that has a member for each of its flows.

    A ring of n devices on m hosts puts ``2 (n-1) / n`` of an all-reduce on the links between hosts, in ``2 (m-1)``
    rounds; m members alone would put ``2 (m-1) / m`` there.  Exactly 1 where each host has one device.
    """
    n, m = float(rings.ranks[group]), float(rings.members[group])
    return m * (n - 1.0) / (n * (m - 1.0)) if m > 1.0 else 1.0


class Traffic(NamedTuple):
    """What each task asks of the network: (T,) row of a transfer, (T,) ring group of an all-reduce; else -1."""

    row: I32
    ring: I32


class Network:
    """Links, paths and rings of one fabric and cluster, grown as task graphs ask for them."""

    def __init__(self, fabric: Fabric, cluster: Cluster) -> None:
        if fabric.n_hosts != cluster.n_hosts:
            raise FabricError(f"fabric {fabric.name!r}: has {fabric.n_hosts} hosts, the cluster {cluster.n_hosts}")
        self.fabric, self.cluster, self.lanes = fabric, cluster, lanes_of(fabric, cluster)
        self._host = self._endpoints()  # of each device: its host, or itself
        bandwidth, latency = self._host_columns()
        self.bandwidth = frozen(np.concatenate([fabric.link_bandwidth, bandwidth]))
        self._latency = frozen(np.concatenate([fabric.link_latency, latency]))
        self._row_of_pair = PairTable()  # 0 unknown, 1 unreachable, row + 2
        self._groups: dict[bytes, int] = {}
        self._turned: dict[bytes, I32] = {}  # members of a group -> the other way round
        #: Prices of rounds by group, collective and algorithm, and where their loads stand; see `add_loads`.
        self.prices: dict[Any, Any] = {}
        self.load_rows: dict[Any, int] = {}
        #: Ring groups of all groups of a task graph, by their columns.
        self._group_lists: LruCache[tuple[bytes, bytes, bool], I32] = LruCache(_LISTS)
        self.paths, self._growing = self._inside_paths(), GrowingColumns()
        wide, narrow = i64(np.zeros(0)), i32(np.zeros(0))  # of no rings
        loads = i64(np.zeros(1)), narrow, wide, i8(np.zeros(0)), frozen(np.arange(self.n_links))
        self.rings_in_full = RingColumns(wide, narrow, narrow, narrow, narrow, wide, *loads)
        self._rings = self._merged = self.rings_in_full
        self._link_classes = LinkClasses(self.bandwidth)
        self._moved = np.zeros(len(self.paths.row_ptr) - 1, dtype=bool)  # rows that transfers take
        #: Of a network for folded iterations whose messages load all equal paths, of which rows have one.
        self.spreading: Spreading | None = None
        self._answered = AnsweredPairs()
        self._routed_by: tuple[Fabric, I32 | None] = fabric, None
        self.interfaces = interfaces_of(fabric, cluster, self.lanes)
        self._stripes = Stripes.of(fabric, self.interfaces)

    @property
    def n_links(self) -> int:
        """Number of links: the fabric's and those inside hosts, two for every device unless these are modelled."""
        return len(self.bandwidth)

    @property
    def rings(self) -> RingColumns:
        """Rings with the loads of one link of each class, listed anew where classes or loads have changed."""
        full = self.rings_in_full
        if self._merged is not full or self._link_classes.changed:
            columns = self._link_classes.listed(full.load_ptr, full.load_links, full.load)
            self._merged, self._rings = full, full._replace(**columns)
        return self._rings

    @property
    def outside(self) -> Any:
        """(E,) whether each link is one of the fabric; None where all hosts hang on one switch."""
        fabric = np.arange(self.n_links) < self.fabric.n_links
        return None if self.fabric.n_links <= 2 * self.fabric.n_hosts else fabric

    def _endpoints(self) -> I32:
        """(D,) what routes lead to for each device."""
        return self.cluster.device_host

    def _host_columns(self) -> tuple[F64, F64]:
        """Bandwidth and latency of the links inside hosts: ``up`` and ``down`` of each device."""
        inside = np.repeat(self.cluster.inside_bandwidth[self.cluster.device_host], 2)
        return inside, np.zeros(len(inside))

    @property
    def _first_inside(self) -> int:
        """Number of the first link of which a ring's flow takes a share (`flows.inside_load`)."""
        return self.fabric.n_links

    def rows_between(self, src: I32, dst: I32) -> I32:
        """(n,) row of paths of each pair of devices.

        Raises:
            TopoplanError: there is no path between two of them.
        """
        rows = self._rows(src, dst)
        if (lost := np.flatnonzero(rows < 0)).size:
            raise FabricError(f"{self._no_path(int(src[lost[0]]), int(dst[lost[0]]))} (link them)")
        return rows

    def spread(self) -> None:
        """Let messages load all equal paths, of which rows have one."""
        interfaces = self.interfaces.most if self.interfaces.on_rails else 1
        self.spreading = Spreading(self.fabric, None, self.n_links, interfaces)
        thin_rows = self.spreading.doors.thinned(self.fabric)
        if thin_rows is not None:
            self._routed_by = some_links(self.fabric, thin_rows), i32(thin_rows)

    def stripes_of(self, rows: I32) -> tuple[I64, F64] | None:
        """(n, interfaces) rows of stripes of messages, or -1, and shares; None where no message has any."""
        if (stripes := self._stripes) is None:
            return None
        if new := stripes.new_rows(rows, self.paths, self._routed_among):
            self._append(*new)
        return stripes.known(rows)

    def ends_of(self, rows: I32) -> tuple[I64, I64]:
        """Return the hosts at both ends of the first path of each row, as `Spreading` has them; -1 inside a host."""
        path = self.paths.row_ptr[rows]
        owner, entry = select(self.paths.path_ptr, path)
        links = self.paths.links[entry]
        outside = np.flatnonzero(links < self.fabric.n_links)
        source, target = np.full((2, len(rows)), -1)
        begins = np.diff(owner[outside], prepend=-1) != 0
        source[owner[outside][begins]] = self.fabric.link_src[links[outside][begins]]
        ends = np.diff(owner[outside], append=len(rows)) != 0
        target[owner[outside][ends]] = self.fabric.link_dst[links[outside][ends]]
        return source, target

    def add_loads(self, loads: Sequence[tuple[I64, I64]]) -> int:
        """Append what collectives put on links, in units of 1 / `LOAD`; return the first one's row of ``load_ptr``."""
        old = self.rings_in_full
        for links, load in loads:
            self._link_classes.load(i64([0, len(links)]), links, load)
        ends = old.load_ptr[-1] + np.cumsum([len(links) for links, _ in loads])
        self.rings_in_full = old._replace(
            load_ptr=append(old.load_ptr, ends),
            load_links=append(old.load_links, *(links.astype(np.int32) for links, _ in loads)),
            load=append(old.load, *(load for _, load in loads)),
        )
        return len(old.load_ptr) - 1

    def add_messages(self, rows: I32, counts: I64) -> I64:
        """Append what messages put on the links of rows of one path each; return their rows of ``load_ptr``.

        Args:
            rows: of paths.
            counts: how many messages take each at a time.
        """
        old, paths = self.rings_in_full, self.paths
        columns = paths.row_ptr, paths.path_ptr, paths.links, paths.cumulative_weight, self.n_links
        load_ptr, links, load = ring_loads(rows, np.ones(len(rows), np.int64), *columns)
        self._isolate(rows)
        self.rings_in_full = old._replace(
            load_ptr=append(old.load_ptr, old.load_ptr[-1] + load_ptr[1:]),
            load_links=append(old.load_links, links),
            load=append(old.load, load * np.repeat(counts, np.diff(load_ptr))),
        )
        return len(old.load_ptr) - 1 + np.arange(len(rows))

    def lower(self, taskgraph: TaskGraph, backward: bool = False) -> Traffic:
        """Find the rows of all transfers and the rings of all all-reduces.

        Args:
            taskgraph: its columns must be in range (`TaskGraph.check`).
            backward: walk rings in listed order the other way round: first, last, last but one, ...

        Raises:
            TopoplanError: a pair that must communicate cannot; the message names task and hosts.
        """
        if taskgraph.n_devices > self.cluster.n_devices:
            raise TopoplanError(
                f"task graph: {taskgraph.n_devices} devices, but the cluster has {self.cluster.n_devices} devices"
            )
        row = self._rows_of_tasks(taskgraph)
        ring = np.full(taskgraph.n_tasks, -1, dtype=np.int32)
        reduces = np.flatnonzero(taskgraph.kind == _COLLECTIVE)
        if len(reduces):
            ring[reduces] = self._ring_groups(taskgraph, backward)[taskgraph.group[reduces]]
        row.setflags(write=False)
        ring.setflags(write=False)
        return Traffic(row, ring)

    def _rows_of_tasks(self, taskgraph: TaskGraph) -> I32:
        """Row of each transfer, -1 for other tasks; the links that they can take are distinguished."""
        row = np.empty(taskgraph.n_tasks, dtype=np.int32)
        inside = (self._first_device, self._n_inside, self._first_row)
        tasks = (taskgraph.kind, taskgraph.src, taskgraph.dst)
        if find_rows(*tasks, self._host, *inside, *self._row_of_pair.columns, self._moved, row):
            return row
        row.fill(-1)
        transfers = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
        rows = self._rows(taskgraph.src[transfers], taskgraph.dst[transfers])
        if (lost := np.flatnonzero(rows < 0)).size:
            task = int(transfers[lost[0]])
            self._unreachable(taskgraph, task, int(taskgraph.src[task]), int(taskgraph.dst[task]))
        row[transfers] = rows
        self._isolate(rows)
        return row

    def _unreachable(self, taskgraph: TaskGraph, task: int, src: int, dst: int) -> None:
        raise FabricError(f"{self._no_path(src, dst)} for {taskgraph.label(task)} (link them, or place it elsewhere)")

    def _no_path(self, src: int, dst: int) -> str:
        a, b = self.cluster.device_host[[src, dst]].tolist()
        return f"fabric {self.fabric.name!r}: no path from host {a} to host {b}"

    # ── Paths ────────────────────────────────────────────────────────────────────────────────────────────

    def _inside_paths(self) -> PathColumns:
        """Rows for the ordered pairs of devices of each host, host by host; none has links from a device to itself."""
        sizes = np.bincount(self._host)
        self._first_device = indptr(sizes)[:-1]
        self._n_inside = sizes
        self._first_row = indptr(sizes**2)[:-1]
        rows = int((sizes**2).sum())
        host = np.repeat(np.arange(len(sizes)), sizes)
        sender, receiver = expand(self._first_device[host].astype(np.int32), sizes[host])
        pairs = np.stack([2 * sender, 2 * receiver + 1], axis=1)[sender != receiver]
        lengths = frozen(np.where(sender == receiver, 0, 2))
        links = frozen((pairs.ravel() + self.fabric.n_links).astype(np.int32, copy=False))
        return PathColumns(
            bandwidth=self.bandwidth,
            latency=self._latency,
            row_ptr=frozen(np.arange(rows + 1)),
            path_ptr=frozen(indptr(lengths)),
            links=links,
            **self._sums(lengths, links),
            cumulative_weight=frozen(np.ones(rows)),
            pair=frozen(np.full(rows, -1)),
            first_inside=self._first_inside,
        )

    def _rows(self, src: I32, dst: I32) -> I32:
        """Row of each pair of devices; -1 where there is no path."""
        a, b = self._host[src], self._host[dst]
        key = a.astype(np.int64) * len(self._n_inside) + b
        numbers = self._row_of_pair.get(key)
        if (unknown := (numbers == 0) & (a != b)).any():
            keys = np.sort(key[unknown])  # `numpy.unique` hashes them first, which takes several times as long
            keys = keys[np.append(True, keys[1:] != keys[:-1])]
            self._route(keys)
            numbers = self._row_of_pair.get(key)
        rows = numbers - 2
        if (same := a == b).any():
            local = (src - self._first_device[a]) * self._n_inside[a] + dst - self._first_device[a]
            rows = np.where(same, self._first_row[a] + local, rows)
        return i32(rows)

    def _route(self, keys: I64) -> None:
        """Ask for the paths of new host pairs, and append their rows: all at once, as columns may have gigabytes.

        Where a search has to leave this, what is answered by then is appended before anything else is asked for.
        """
        with routing():
            if self._answered:
                self._append_answered()
                keys = keys[self._row_of_pair.get(keys) == 0]
            self._answered.ask(keys, self._routed)
            if self._answered:
                self._append_answered()

    def _append_answered(self) -> None:
        keys, numbers, rows = self._answered.take(len(self.paths.row_ptr) - 1)
        self._row_of_pair.put(keys, numbers)
        self._append(*rows)

    def _routed(self, keys: I64) -> tuple[I64, NewRows]:
        """Ask for the paths of host pairs; return their numbers, and rows of the pairs that have some."""
        return self._routed_among(keys, *self._routed_by)

    def _routed_among(self, keys: I64, fabric: Fabric, rows: I32 | None) -> tuple[I64, NewRows]:
        """Do so in a part of the fabric, given which links of it there are; None for all, which are numbered so."""
        answer = route(fabric, i32(keys // fabric.n_hosts), i32(keys % fabric.n_hosts))
        if rows is not None:
            answer = attrs.evolve(answer, links=i32(rows[answer.links]))
        return rows_of(answer, keys, self._sums)

    def _append(self, *rows: NewRows) -> None:
        """Append rows of paths."""
        old, grown = self.paths, self._growing.append
        columns: dict[str, list[Any]] = {}
        columns |= {name: [part.sums[name] for part in rows] for name in ("delay", "per_byte", "slowest")}
        columns["cumulative_weight"] = [part.cumulative_weight for part in rows]
        columns["links"] = [part.links for part in rows]
        columns["pair"] = [part.pair for part in rows]
        for name, counts in (
            ("row_ptr", [part.paths_of_row for part in rows]),
            ("path_ptr", [part.links_of_path for part in rows]),
        ):
            columns[name] = [getattr(old, name)[-1] + np.cumsum(np.concatenate(counts))]
        new: dict[str, Any] = {name: grown(name, getattr(old, name), *more) for name, more in columns.items()}
        self.paths = old._replace(**new)

    def _sums(self, lengths: I64, links: I32) -> dict[str, F64]:
        """Delay, seconds per byte and smallest bandwidth of paths with these numbers of links."""
        sums = {name: np.empty(len(lengths)) for name in ("delay", "per_byte", "slowest")}
        sum_paths(i64(lengths), i32(links), self._latency, self.bandwidth, *sums.values())
        return {name: frozen(column) for name, column in sums.items()}

    # ── Rings ────────────────────────────────────────────────────────────────────────────────────────────

    def _ring_groups(self, taskgraph: TaskGraph, backward: bool) -> I32:
        """Ring group of each group of the task graph, making those not met before."""
        members = taskgraph.group_members
        list_key = (taskgraph.group_ptr.tobytes(), members.tobytes(), backward)
        if (recalled := self._group_lists.find(list_key)) is not None:
            return recalled
        ends, columns = taskgraph.group_ptr.tolist(), list_key[1]
        if not backward:
            size, known_groups = members.itemsize, self._groups
            recalled_groups = [known_groups.get(columns[size * a : size * b], -1) for a, b in itertools.pairwise(ends)]
            if -1 not in recalled_groups:
                result = np.array(recalled_groups, dtype=np.int32)
                return self._group_lists.put(list_key, result) if members.nbytes <= _LIST_BYTES else result
        listed = [members[a:b] for a, b in itertools.pairwise(ends)]
        if backward:
            listed = [self._backward(each) for each in listed]
        numbers: dict[bytes, int] = {}  # kept once all of them are known to work
        new: list[int] = []
        result = np.empty(taskgraph.n_groups, dtype=np.int32)
        for g, each in enumerate(listed):
            key = each.tobytes()
            number = self._groups.get(key, numbers.get(key, -1))
            if number < 0:
                number = numbers[key] = len(self._groups) + len(new)
                new.append(g)
            result[g] = number
        if new:
            groups = [listed[g] for g in new]
            pointers, devices = indptr([len(each) for each in groups]), i32(np.concatenate(groups))
            self._append_rings(self._ring_rows(taskgraph, i64(new), pointers, devices))
            self._groups.update(numbers)
        return self._group_lists.put(list_key, result) if members.nbytes <= _LIST_BYTES else result

    def _backward(self, members: I32) -> I32:
        """Return the members of a group the other way round; as they are where the fabric has rings or cycles."""
        key = members.tobytes()
        if (recalled := self._turned.get(key)) is not None:
            return recalled
        hosts = self._host[stops_of(i64([0, len(members)]), members, self._host)[1]]
        has_rings = bool(rings_of(self.fabric, hosts)) or len(cycles_of(self.fabric, hosts)) > 0
        self._turned[key] = turned = members if has_rings else np.concatenate([members[:1], members[:0:-1]])
        return turned

    def _isolate(self, rows: I32) -> None:
        """Tell apart all links that these rows of transfers can take."""
        paths = self.paths
        if len(self._moved) < len(paths.row_ptr) - 1:
            self._moved = np.append(self._moved, np.zeros(len(paths.row_ptr) - 1 - len(self._moved), dtype=bool))
        crossed = np.zeros(self.n_links, dtype=bool)
        cross(i32(rows), self._moved, paths.row_ptr, paths.path_ptr, paths.links, crossed)
        self._link_classes.isolate(np.flatnonzero(crossed))

    def _append_rings(self, new: NewRings) -> None:
        if self.lanes.most > 1:
            new, added = rings_on_lanes(new, self.paths, self.lanes)
            self._append(added)
        old = self.rings_in_full
        rows, lengths, counts, paths = new.rows, np.diff(new.row_ptr), new.parallel, self.paths
        load_ptr, links, load = ring_loads(
            rows,
            np.repeat(lengths // counts, counts),
            paths.row_ptr,
            paths.path_ptr,
            paths.links,
            paths.cumulative_weight,
            self.n_links,
        )
        ring = np.cumsum(counts) - counts
        in_hosts = np.flatnonzero(new.in_hosts)
        if len(in_hosts):
            number, rings = expand(ring[in_hosts], counts[in_hosts])
            owner, entry = select(load_ptr, rings)
            columns = number[owner], links[entry], load[entry], self._host, self.fabric.n_links
            load[entry] = inside_shares(new.chosen(in_hosts), *columns)
        self._link_classes.load(load_ptr, links, load)
        choice = self._choices(rows, lengths, counts)
        if choice.any():
            self._isolate(rows[np.repeat(choice != ONE_PATH, lengths)])
        self.rings_in_full = old._replace(
            first=append(old.first, len(old.rows) + new.row_ptr[:-1]),
            parallel=append(old.parallel, counts),
            members=append(old.members, lengths // counts),
            ranks=append(old.ranks, np.diff(new.device_ptr)),
            rows=append(old.rows, rows),
            ring=append(old.ring, len(old.load_ptr) - 1 + ring),
            load_ptr=append(old.load_ptr, old.load_ptr[-1] + load_ptr[1:]),
            load_links=append(old.load_links, links),
            load=append(old.load, load),
            choice=append(old.choice, choice),
        )

    def _choices(self, rows: I32, lengths: I64, rings: I64) -> I8:
        """Say of each group whether its flows draw their paths, given the rows of all groups, one after the other."""
        several = np.diff(self.paths.row_ptr)[rows] > 1
        draw = np.bincount(np.repeat(np.arange(len(lengths)), lengths), several, len(lengths)) > 0
        draw &= lengths // rings <= MOST_DRAWN
        if self._stripes is not None:
            draw &= ~self._stripes.load_all(rows, lengths, self.paths)
        return i8(np.where(draw, np.where(lengths <= _MOST_FEW, FEW, CHOICE), ONE_PATH))

    def _ring_rows(self, taskgraph: TaskGraph, group: I64, pointers: I64, devices: I32) -> NewRings:
        """Find the rings of new groups, and the rows of their flows, ring by ring.

        Args:
            taskgraph, group: in which they are, and their numbers there.
            pointers, devices: members of each, in the order of its ring, as compressed rows.
        """
        stop_ptr, stops = stops_of(pointers, devices, self._host)
        of_fabric: list[list[I32]] = [[]] * len(group)
        if self.fabric.rings or self.fabric.cycles or looks_along_links(self.fabric):
            of_fabric = self._walk_rows(links_of_groups(self.fabric, self._host[stops], stop_ptr))
        parallel = i64([max(1, len(rings)) for rings in of_fabric])
        lengths = np.diff(stop_ptr) * parallel
        new = NewRings(group, pointers, devices, stop_ptr, stops, parallel, indptr(lengths), i32(np.zeros(0)))
        own_rings = np.repeat(np.array([len(rings) > 0 for rings in of_fabric], dtype=bool), lengths)
        src, dst = (each[~own_rings] for each in new.hops())
        walked = self._rows(src, dst)
        if (lost := np.flatnonzero(walked < 0)).size:
            first = group[row_of_entry(new.row_ptr)[~own_rings][lost[0]]]
            task = int(np.flatnonzero((taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.group == first))[0])
            self._unreachable(taskgraph, task, int(src[lost[0]]), int(dst[lost[0]]))
        rows = np.empty(len(own_rings), dtype=np.int32)
        rows[~own_rings] = walked
        if own_rings.any():
            rows[own_rings] = np.concatenate([each for rings in of_fabric for each in rings])
        new = new._replace(rows=i32(rows))
        if self._stripes is not None and self._stripes.on_rails and (stripes := self.stripes_of(new.rows)):
            new = rings_on_rails(new, stripes[0], self.paths.pair[new.rows] >= 0)
        return self._through_hosts(new)

    def _through_hosts(self, new: NewRings) -> NewRings:
        """Give groups with several devices on some host rows that cross the links of these devices, too."""
        through = np.flatnonzero(new.in_hosts)
        if not len(through):
            return new
        first = len(self.paths.row_ptr) - 1
        groups = new.chosen(through)
        self._append(rows_through_hosts(groups, self.paths, self._host, self.cluster, self.fabric.n_links))
        rows = new.rows.copy()
        rows[np.repeat(new.in_hosts, np.diff(new.row_ptr))] = first + np.arange(len(groups.rows))
        return new._replace(rows=i32(rows))

    def _walk_rows(self, groups: list[list[I64]]) -> list[list[I32]]:
        """Append one explicit path for each member of each ring of each group, and return their rows."""
        walks = [links for rings in groups for links in rings]
        members = np.array([len(links) for links in walks], dtype=np.int64)
        first = len(self.paths.row_ptr) - 1
        if walks:
            total = int(members.sum())
            lengths = np.repeat([links.shape[1] for links in walks], members)
            links = np.concatenate([links.ravel() for links in walks])
            sums = self._sums(i64(lengths), i32(links))
            one_path = np.ones(total, np.int64)
            self._append(NewRows(one_path, lengths, i32(links), sums, np.ones(total), np.full(total, -1)))
        rows = iter(np.split(np.arange(first, first + members.sum(), dtype=np.int32), np.cumsum(members)))
        return [[next(rows) for _ in rings] for rings in groups]

"""One concrete network: directed links among hosts and switches, with routes and rings.

A topology plugin builds a `Fabric`; simulators ask `topoplan_engine.network.routing` for the paths of the pairs that
communicate; exporters write it down.  Hosts are nodes ``0 .. n_hosts-1``, switches follow.

A fabric that is rebuilt between the phases of an iteration has `Phases`: the fabric of each of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import ArrayLike

from topoplan.arrays import ARRAY_EQ, F64, I8, I32, I64, digest, f64, i8, i32, i64
from topoplan.errors import TopoplanError

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["FASTEST", "LONGEST_LATENCY", "MOST_NODES", "SLOWEST", "Fabric", "LinkKind", "Phases", "Routes"]

#: Nodes of the largest fabric; bytes/s of the slowest and the fastest link, and seconds of its latency.
MOST_NODES = 2**22
SLOWEST, FASTEST, LONGEST_LATENCY = 1.0, 1e18, 1e3


class LinkKind(IntEnum):
    """What a link is built of.

    A ``NETWORK`` link is a cable: at a host it ends in one of the host's interfaces.  A ``LANE`` is a share of an
    interface: several leave it on a breakout cable, and only their bandwidth is limited by what the host has.  An
    ``INSIDE`` link joins what stands in one chassis (NVLink, PCIe), for a topology whose hosts are single GPUs: it
    takes no interface and has a speed of its own.
    """

    NETWORK = 0
    LANE = 1
    INSIDE = 2


@attrs.frozen(kw_only=True)
class Routes:
    """Explicit paths, as compressed rows: pair -> paths -> links.

    Attributes:
        pairs: (k, 2) int32, ordered (source host, destination host), sorted and unique.
        pair_ptr: (k+1,) int64; the paths of pair ``i`` are ``pair_ptr[i] .. pair_ptr[i+1]``.  None means
            that the pair cannot be reached (or is a host and itself).
        path_ptr: (p+1,) int64; the links of path ``j`` are ``links[path_ptr[j] : path_ptr[j+1]]``.
        links: link indices of a fabric, in the order in which a message crosses them.
        weight: (p,) float64, share of the pair's traffic on each path; sums to 1 for each pair.
    """

    pairs: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    pair_ptr: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    path_ptr: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    links: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    weight: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)


@attrs.frozen(kw_only=True)
class Fabric:
    """Links, routes and rings.

    Attributes:
        name: which topology built it.
        n_hosts, n_switches: number of nodes of each kind.
        link_src, link_dst: (L,) int32 nodes; at most one row for an ordered pair: parallel links are one
            link of their summed bandwidth.
        link_count: (L,) int32, how many physical links a row stands for.
        link_bandwidth: (L,) bytes/s of a row, all its physical links together.
        link_latency: (L,) seconds.
        link_kind: (L,) int8 of `LinkKind`; all of the network unless given.
        routes: explicit paths that override shortest ones for the pairs they name; ``None`` where all
            traffic takes shortest paths.
        max_paths: equal-cost shortest paths kept for each pair without an explicit route.
        rings: group size -> the rings of an all-reduce over a group of that size, each a sequence of
            node offsets modulo ``n_hosts`` that one ring step walks (FlexNet's jumps).  A group whose
            size is absent runs one ring in listed order over the routes.
        cycles: rings that no jumps can say, as in a torus: hosts in the order in which data goes round, each over a
            direct link to the next one, and from the last to the first.  A group on exactly the hosts of some cycles
            runs all of these at a time, unless it has ``rings``.
        phases: the fabrics that take turns, where it is rebuilt during the iteration.  The links above are then
            those of all phases, each as fast as it ever is: a list for reports, and no network to route in.
    """

    name: str
    n_hosts: int
    n_switches: int = 0
    link_src: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    link_dst: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    link_count: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    link_bandwidth: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    link_latency: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    link_kind: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
    routes: Routes | None = None
    max_paths: int = 1
    rings: Mapping[int, tuple[tuple[int, ...], ...]] = attrs.field(factory=dict)
    cycles: tuple[tuple[int, ...], ...] = ()
    phases: Phases | None = None

    @link_kind.default
    def _all_of_the_network(self) -> I8:
        return i8(np.full(len(self.link_src), LinkKind.NETWORK))

    def __attrs_post_init__(self) -> None:
        count = len(self.link_src)
        for field in ("link_dst", "link_count", "link_bandwidth", "link_latency", "link_kind"):
            if len(getattr(self, field)) != count:
                raise TopoplanError(f"fabric {self.name!r}: {field} has {len(getattr(self, field))} rows, not {count}")
        if count and (
            min(self.link_src.min(), self.link_dst.min()) < 0
            or max(self.link_src.max(), self.link_dst.max()) >= self.n_nodes
            or (self.link_src == self.link_dst).any()
        ):
            raise TopoplanError(f"fabric {self.name!r}: a link joins a node to itself or to one that does not exist")
        if not (self.n_hosts >= 0 and self.n_switches >= 0 and self.n_nodes <= MOST_NODES):
            raise TopoplanError(
                f"fabric {self.name!r}: {self.n_hosts} hosts and {self.n_switches} switches "
                f"(at most {MOST_NODES} together)"
            )
        bad = np.flatnonzero(~((self.link_bandwidth > 0) & np.isfinite(self.link_bandwidth)))
        if len(bad):
            raise TopoplanError(
                f"fabric {self.name!r}: link {self.link_src[bad[0]]} -> {self.link_dst[bad[0]]} has bandwidth "
                f"{self.link_bandwidth[bad[0]]} bytes/s (must be positive and finite)"
            )
        bad = np.flatnonzero(~((self.link_bandwidth >= SLOWEST) & (self.link_bandwidth <= FASTEST)))
        if len(bad):
            raise TopoplanError(
                f"fabric {self.name!r}: link {self.link_src[bad[0]]} -> {self.link_dst[bad[0]]} has bandwidth "
                f"{self.link_bandwidth[bad[0]]:g} bytes/s (must be {SLOWEST:g} to {FASTEST:g})"
            )
        bad = np.flatnonzero(~((self.link_latency >= 0) & (self.link_latency <= LONGEST_LATENCY)))
        if len(bad):
            raise TopoplanError(
                f"fabric {self.name!r}: link {self.link_src[bad[0]]} -> {self.link_dst[bad[0]]} has latency "
                f"{self.link_latency[bad[0]]} s (must be 0 to {LONGEST_LATENCY:g})"
            )
        self._check_rings()
        for field, least, most in (("link_count", 1, 2**31 - 1), ("link_kind", min(LinkKind), max(LinkKind))):
            values = getattr(self, field)
            bad = np.flatnonzero((values < least) | (values > most))
            if len(bad):
                raise TopoplanError(
                    f"fabric {self.name!r}: link {self.link_src[bad[0]]} -> {self.link_dst[bad[0]]} has {field} "
                    f"{values[bad[0]]} (must be {least} to {most})"
                )
        key = self.link_src.astype(np.int64) * self.n_nodes + self.link_dst
        ordered = np.sort(key, kind="stable")
        if (ordered[1:] == ordered[:-1]).any():
            raise TopoplanError(
                f"fabric {self.name!r}: an ordered pair of nodes has two link rows (merge parallel links)"
            )
        if self.phases is not None and any(
            (part.n_hosts, part.n_switches) != (self.n_hosts, self.n_switches)
            or not np.isin(part.link_src.astype(np.int64) * self.n_nodes + part.link_dst, key).all()
            for part in self.phases.fabrics
        ):
            raise TopoplanError(f"fabric {self.name!r}: a phase has other nodes or links (make it with from_phases)")

    def _check_rings(self) -> None:
        """Raise where rings are of more members than there are hosts, or lead nowhere."""
        for size, rings in self.rings.items():
            if not 1 <= size <= self.n_hosts:
                raise TopoplanError(
                    f"fabric {self.name!r}: rings of {size} members, but there are {self.n_hosts} hosts"
                )
            if any(not jumps or any(abs(jump) >= 2**31 for jump in jumps) for jumps in rings):
                raise TopoplanError(f"fabric {self.name!r}: a ring of {size} members has no jumps, or one beyond 2^31")
        for cycle in self.cycles:
            if not 1 < len(set(cycle)) == len(cycle) or not 0 <= min(cycle) <= max(cycle) < self.n_hosts:
                raise TopoplanError(
                    f"fabric {self.name!r}: the cycle {cycle} must be two or more of {self.n_hosts} hosts, each once"
                )

    @classmethod
    def from_links(
        cls,
        *,
        name: str,
        n_hosts: int,
        n_switches: int = 0,
        links: ArrayLike,
        bandwidth: ArrayLike,
        latency: ArrayLike,
        kind: ArrayLike = LinkKind.NETWORK,
        routes: Routes | None = None,
        max_paths: int = 1,
        rings: Mapping[int, tuple[tuple[int, ...], ...]] | None = None,
        cycles: Sequence[Sequence[int]] = (),
    ) -> Fabric:
        """Make a fabric from physical links; rows for the same ordered pair are merged.

        Args:
            links: (k, 2) directed links ``(from node, to node)``, one row per physical link, any order.
            bandwidth: bytes/s of one physical link: a number, or one per row.
            latency: seconds: a number, or one per row.  Merged rows keep the largest.
            kind: a `LinkKind`, or one per row.

        The rows of the result are sorted by (from, to).

        Raises:
            TopoplanError: a link to a node that does not exist, or links of both kinds from one node to another.
        """
        rows = np.asarray(links, dtype=np.int64).reshape(-1, 2)
        speed = np.broadcast_to(np.asarray(bandwidth, dtype=np.float64), len(rows))
        delay = np.broadcast_to(np.asarray(latency, dtype=np.float64), len(rows))
        sort = np.broadcast_to(np.asarray(kind, dtype=np.int64), len(rows))
        nodes = n_hosts + n_switches
        if len(rows) and (rows.min() < 0 or rows.max() >= nodes):
            raise TopoplanError(f"fabric {name!r}: link to node {rows.max()} of {nodes}")
        keys, inverse, counts = np.unique(rows[:, 0] * nodes + rows[:, 1], return_inverse=True, return_counts=True)
        total = np.bincount(inverse, weights=speed, minlength=len(keys))
        slowest = np.zeros(len(keys))
        np.maximum.at(slowest, inverse, delay)
        kinds = np.zeros(len(keys), dtype=np.int64)
        kinds[inverse] = sort
        mixed = np.flatnonzero(kinds[inverse] != sort)
        if len(mixed):
            raise TopoplanError(
                f"fabric {name!r}: links of two kinds from node {rows[mixed[0], 0]} to node {rows[mixed[0], 1]} "
                "(lead one of them over a switch of its own)"
            )
        return cls(
            name=name,
            n_hosts=n_hosts,
            n_switches=n_switches,
            link_src=keys // nodes,
            link_dst=keys % nodes,
            link_count=counts,
            link_bandwidth=total,
            link_latency=slowest,
            link_kind=kinds,
            routes=routes,
            max_paths=max_paths,
            rings=dict(rings or {}),
            cycles=tuple(tuple(map(int, cycle)) for cycle in cycles),
        )

    @classmethod
    def from_phases(cls, phases: Phases) -> Fabric:
        """Make a fabric that is rebuilt between phases; its links are those of all phases."""
        parts, first = phases.fabrics, phases.forward
        ends = np.concatenate([np.stack([part.link_src, part.link_dst], axis=1) for part in parts])
        links, row = np.unique(ends, axis=0, return_inverse=True)

        def largest(column: str) -> F64:
            found = np.zeros(len(links))
            np.maximum.at(found, row.ravel(), np.concatenate([getattr(part, column) for part in parts]))
            return found

        return cls(
            name=first.name,
            n_hosts=first.n_hosts,
            n_switches=first.n_switches,
            link_src=links[:, 0],
            link_dst=links[:, 1],
            link_count=largest("link_count"),
            link_bandwidth=largest("link_bandwidth"),
            link_latency=largest("link_latency"),
            link_kind=largest("link_kind"),
            max_paths=first.max_paths,
            phases=phases,
        )

    @classmethod
    def from_networkx(cls, graph: nx.Graph, **given: Any) -> Fabric:
        """Make a fabric from a networkx graph; see `topoplan.model.fabric_networkx.from_networkx` for what it reads."""
        from topoplan.model.fabric_networkx import from_networkx

        return from_networkx(graph, **given)

    def to_networkx(self) -> nx.DiGraph:
        """Return the links as a networkx graph; see `topoplan.model.fabric_networkx.to_networkx` for its attributes."""
        from topoplan.model.fabric_networkx import to_networkx

        return to_networkx(self)

    @functools.cached_property
    def key(self) -> bytes:
        """Hashable identity of the value, for caches: fabrics of one key are equal (but for a chance of 2^-128)."""
        return digest([self])

    @property
    def n_nodes(self) -> int:
        """Hosts and switches together."""
        return self.n_hosts + self.n_switches

    @property
    def n_links(self) -> int:
        """Number of link rows (directed, parallel links merged)."""
        return len(self.link_src)

    @property
    def wirings(self) -> tuple[Fabric, ...]:
        """The networks that exist one after the other: those of the phases, or the fabric alone."""
        return (self,) if self.phases is None else self.phases.fabrics

    def rings_of(self, hosts: I32) -> list[tuple[int, ...]]:
        """Return the rings for a group on ``hosts``; none unless each visits every one of them and no other.

        That needs hosts at equal strides, and rings that keep to these.
        """
        n, size = self.n_hosts, len(hosts)
        rings = [jumps for jumps in self.rings.get(size, ()) if jumps]
        if size < 2 or not rings or n % size or not (np.diff(hosts) == n // size).all():
            return []
        stride = n // size
        visits = all(sum(jumps) % stride == 0 and math.gcd(sum(jumps) // stride, size) == 1 for jumps in rings)
        return rings if visits else []

    def cycles_of(self, hosts: I32) -> I64:
        """Return the cycles for a group on ``hosts``, as (cycles, members) places in it to which each member sends.

        None where no cycle is on exactly these hosts, and where the group has `rings_of` its own.
        """
        members = hosts.tolist()
        place = {host: number for number, host in enumerate(members)}
        found: list[list[int]] = []
        if self.cycles and 1 < len(place) == len(members) and not self.rings_of(hosts):
            for cycle in self.cycles:
                if len(cycle) == len(members) and place.keys() == set(cycle):
                    after = dict(zip(cycle, (*cycle[1:], cycle[0]), strict=True))
                    found.append([place[after[host]] for host in members])
        return i64(np.array(found, dtype=np.int64).reshape(len(found), len(members)))

    def same_wires(self, other: Fabric) -> bool:
        """Say whether nothing has to be rewired to get from one fabric to the other; routes and rings may differ."""
        return all(
            np.array_equal(getattr(self, column), getattr(other, column))
            for column in ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency")
        )


@attrs.frozen(kw_only=True)
class Phases:
    """The fabrics of one iteration, in the order of time, and what it takes to get from one to the next.

    Attributes:
        forward, backward: for the forward and the backward pass.
        reduce: for the all-reduces after them.
        delay: seconds that a rebuild takes; nothing runs meanwhile.  None is needed between phases of the
            same wires (`Fabric.same_wires`).
    """

    forward: Fabric
    backward: Fabric
    reduce: Fabric
    delay: float

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.delay < float("inf"):
            raise TopoplanError(f"phases: delay {self.delay} s must be finite and not negative")
        if any(part.phases is not None for part in self.fabrics):
            raise TopoplanError("phases: the fabric of a phase must not have phases itself")

    @property
    def fabrics(self) -> tuple[Fabric, Fabric, Fabric]:
        """Fabrics of the phases in the order of time."""
        return self.forward, self.backward, self.reduce

"""One concrete network: directed links among hosts and switches, with routes and rings.

A topology plugin builds a `Fabric`; simulators ask `topoplan_engine.network.routing` for the paths of the pairs that
communicate; exporters write it down.  Hosts are nodes ``0 .. n_hosts-1``, switches follow.

A fabric that is rebuilt between the phases of an iteration is a `topoplan.model.reconfigurable.ReconfigurableFabric`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs
import numpy as np
from numpy.typing import ArrayLike

from topoplan.arrays import ARRAY_EQ, F64, I8, I32, I64, OneLine, digest, f64, i8, i32, i64, texts
from topoplan.errors import FabricError, shown

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "FASTEST",
    "LONGEST_LATENCY",
    "LONGEST_NAME",
    "MOST_NODES",
    "SLOWEST",
    "Fabric",
    "LinkKind",
    "Routes",
    "Switching",
]

#: Nodes of the largest fabric; bytes/s of the slowest and the fastest link, and seconds of its latency.
MOST_NODES = 2**22
SLOWEST, FASTEST, LONGEST_LATENCY = 1.0, 1e18, 1e3
#: Characters of the longest name of a node.
LONGEST_NAME = 200
#: What links pass: nothing but cables and packet switches; at either end of a link between two hosts a port of a
#: patch panel or of an optical circuit switch; or switches that are not for sale.
Switching = Literal["packet", "patch-panel", "ocs", "ideal"]


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


@attrs.frozen(kw_only=True, repr=False)
class Routes(OneLine):
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


def _rows(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, row)) for row in rows)


@attrs.frozen(kw_only=True, repr=False)
class Fabric(OneLine):
    """Links, routes and rings.

    Attributes:
        name: which topology built it.
        n_hosts, n_switches: number of nodes of each kind.
        link_src, link_dst: (L,) int32 nodes; one row at most for an ordered pair, in which parallel links are summed.
        link_count: (L,) int32, how many physical links a row stands for.
        link_bandwidth: (L,) bytes/s of a row, all its physical links together.
        link_latency: (L,) seconds.
        link_kind: (L,) int8 of `LinkKind`; all of the network unless given.
        routes: explicit paths, in place of the shortest ones of the pairs they name; ``None`` for none.
        max_paths: equal-cost shortest paths kept for each pair without an explicit route.
        rings: group size -> the rings of an all-reduce over a group of that size, each a sequence of
            node offsets modulo ``n_hosts`` that one ring step walks (FlexNet's jumps).  A group whose
            size is absent runs one ring in listed order over the routes.
        cycles: rings that no jumps can say, as in a torus: hosts in the order in which data goes round, each over a
            direct link to the next one, and from the last to the first.  A group on exactly the hosts of some cycles
            runs all of these at a time, unless it has ``rings``.
        rings_along_links: where there are neither rings nor cycles, a group looks for rings along the direct links
            between its hosts (`topoplan_engine.network.ring_search`), and runs in listed order only if there are none.
            So do networks that users bring along (`from_networkx`).
        switching: what its links pass, for pricing them; None where the topology does not say.  No part of the fabric's
            identity: fabrics that differ in nothing else are equal.
        node_names: what its owner calls each node, hosts first; empty where nodes have numbers alone.  No part of the
            fabric's identity either.
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
    cycles: tuple[tuple[int, ...], ...] = attrs.field(default=(), converter=_rows)
    rings_along_links: bool = False
    switching: Switching | None = attrs.field(default=None, eq=False)
    node_names: tuple[str, ...] = attrs.field(default=(), converter=texts, eq=False)

    @link_kind.default
    def _all_of_the_network(self) -> I8:
        return i8(np.full(len(self.link_src), LinkKind.NETWORK))

    def __attrs_post_init__(self) -> None:
        count = len(self.link_src)
        for field in ("link_dst", "link_count", "link_bandwidth", "link_latency", "link_kind"):
            if len(getattr(self, field)) != count:
                raise FabricError(f"fabric {self.name!r}: {field} has {len(getattr(self, field))} rows, not {count}")
        if not (self.n_hosts >= 0 and self.n_switches >= 0 and self.n_nodes <= MOST_NODES):
            raise FabricError(
                f"fabric {self.name!r}: {self.n_hosts} hosts and {self.n_switches} switches "
                f"(at most {MOST_NODES} together)"
            )
        if self.switching not in (None, *get_args(Switching)):
            words = ", ".join(get_args(Switching))
            raise FabricError(f"fabric {self.name!r}: switching is {self.switching!r} (must be one of {words})")
        if count and (
            min(self.link_src.min(), self.link_dst.min()) < 0
            or max(self.link_src.max(), self.link_dst.max()) >= self.n_nodes
            or (self.link_src == self.link_dst).any()
        ):
            raise FabricError(f"fabric {self.name!r}: a link joins a node to itself or to one that does not exist")
        for field, low, high, unit in (
            ("bandwidth", SLOWEST, FASTEST, " bytes/s"),
            ("latency", 0, LONGEST_LATENCY, " s"),
            ("count", 1, 2**31 - 1, ""),
            ("kind", min(LinkKind), max(LinkKind), ""),
        ):
            values = getattr(self, f"link_{field}")
            bad = np.flatnonzero(~((values >= low) & (values <= high)))  # what is no number is bad, too
            if len(bad):
                raise FabricError(
                    f"fabric {self.name!r}: link {self.link_src[bad[0]]} -> {self.link_dst[bad[0]]} has {field} "
                    f"{values[bad[0]]}{unit} (must be {low:g} to {high:g})"
                )
        ordered = np.sort(self.link_src.astype(np.int64) * self.n_nodes + self.link_dst, kind="stable")
        if (ordered[1:] == ordered[:-1]).any():
            raise FabricError(
                f"fabric {self.name!r}: an ordered pair of nodes has two link rows (merge parallel links)"
            )
        self._check_rings()
        self._check_names()

    def _check_names(self) -> None:
        """Raise where names are not one text for each node, each of its own and fit to print."""
        names = self.node_names
        if names and len(names) != self.n_nodes:
            raise FabricError(f"fabric {self.name!r}: {len(names)} names of nodes, but {self.n_nodes} nodes")
        earlier: set[str] = set()
        for name in names:
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
                raise FabricError(
                    f"fabric {self.name!r}: a node is called {shown(name)} (expected a printable text of 1 to "
                    f"{LONGEST_NAME} characters)"
                )
            if name in earlier:
                raise FabricError(f"fabric {self.name!r}: two nodes are called {shown(name)}")
            earlier.add(name)

    def node_name(self, node: int) -> str:
        """Return what a node is called in reports and lists: its owner's name, else ``host 3`` or ``switch 0``.

        >>> pair = Fabric.from_links(name="pair", n_hosts=2, links=[(0, 1)], bandwidth=1e9, latency=0)
        >>> pair.node_name(1), attrs.evolve(pair, node_names=("left", "right")).node_name(1)
        ('host 1', 'right')
        """
        if self.node_names:
            return self.node_names[node]
        return f"host {node}" if node < self.n_hosts else f"switch {node - self.n_hosts}"

    def _check_rings(self) -> None:
        """Raise where rings are of more members than there are hosts, or lead nowhere."""
        for size, rings in self.rings.items():
            if not 1 <= size <= self.n_hosts:
                raise FabricError(f"fabric {self.name!r}: rings of {size} members, but there are {self.n_hosts} hosts")
            if any(not jumps or any(abs(jump) >= 2**31 for jump in jumps) for jumps in rings):
                raise FabricError(f"fabric {self.name!r}: a ring of {size} members has no jumps, or one beyond 2^31")
        for cycle in self.cycles:
            if not 1 < len(set(cycle)) == len(cycle) or not 0 <= min(cycle) <= max(cycle) < self.n_hosts:
                raise FabricError(
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
        rings_along_links: bool = False,
        switching: Switching | None = None,
    ) -> Fabric:
        """Make a fabric from physical links; rows for the same ordered pair are merged, and sorted by (from, to).

        Args:
            links: (k, 2) directed links ``(from node, to node)``, one row per physical link, any order.
            bandwidth: bytes/s of one physical link: a number, or one per row.
            latency: seconds: a number, or one per row.  Merged rows keep the largest.
            kind: a `LinkKind`, or one per row.

        Raises:
            TopoplanError: a link to a node that does not exist, or links of both kinds from one node to another.
        """
        rows = np.asarray(links, dtype=np.int64).reshape(-1, 2)
        nodes = n_hosts + n_switches
        if len(rows) and (rows.min() < 0 or rows.max() >= nodes):
            raise FabricError(f"fabric {name!r}: link to node {rows.max()} of {nodes}")
        keys, row, counts = np.unique(rows @ [nodes, 1], return_inverse=True, return_counts=True)
        total, slowest, kinds = np.zeros(len(keys)), np.zeros(len(keys)), np.zeros(len(keys), dtype=np.int64)
        np.add.at(total, row, bandwidth)
        np.maximum.at(slowest, row, latency)
        kinds[row] = kind
        mixed = np.flatnonzero(kinds[row] != kind)
        if len(mixed):
            raise FabricError(
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
            cycles=cycles,
            rings_along_links=rings_along_links,
            switching=switching,
        )

    @classmethod
    def from_networkx(cls, graph: nx.Graph, **options: Any) -> Fabric:
        """Make a fabric from any networkx graph, for example ``nx.hypercube_graph(4)``.

        Args:
            graph: directed or not; its attributes are those of `to_networkx`.
            options: ``name``, and ``bandwidth``, ``latency`` and ``max_paths`` where the graph lacks them
                (`topoplan_network_files.networkx_graphs.from_networkx`).
        """
        fabric: Fabric = _networkx_graphs().from_networkx(graph, **options)
        return fabric

    def to_networkx(self) -> nx.DiGraph:
        """Return the links as a directed graph (`topoplan_network_files.networkx_graphs.to_networkx`)."""
        return _networkx_graphs().to_networkx(self)

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
    def links(self) -> Fabric:
        """The fabric of all links that it ever has: itself."""
        return self

    @property
    def wirings(self) -> tuple[Fabric, ...]:
        """The fabrics that exist one after the other: itself alone."""
        return (self,)

    def link_rows(self, src: ArrayLike, dst: ArrayLike) -> I64:
        """Return the link row of each ordered pair of *nodes*, -1 where there is none.  Any equal shapes."""
        have = self.link_src.astype(np.int64) * self.n_nodes + self.link_dst
        want = np.asarray(src, dtype=np.int64) * self.n_nodes + np.asarray(dst, dtype=np.int64)
        if not len(have):
            return np.full(want.shape, -1, dtype=np.int64)
        order = np.argsort(have, kind="stable")
        row = order[np.minimum(np.searchsorted(have, want, sorter=order), len(have) - 1)]
        return np.where(have[row] == want, row, -1)

    def map_wirings(self, change: Callable[[Fabric], Fabric]) -> Fabric:
        """Return the fabric with each of its wirings changed: with itself changed."""
        return change(self)


def _networkx_graphs() -> Any:
    """Return the module that converts fabrics, of a distribution that ``topoplan-core[networkx]`` brings."""
    try:
        return importlib.import_module("topoplan_network_files.networkx_graphs")
    except ModuleNotFoundError as error:
        raise FabricError(f"graphs need {error.name} (pip install 'topoplan-core[networkx]')") from None

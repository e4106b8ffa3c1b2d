"""Stripes: how a host that is one endpoint with several interfaces sends, by all of them at a time.

A host without insides is one endpoint.  Where its interfaces lead to several switches, what it sends leaves by all of
them, as NCCL's channels do and as its whole rate does on one switch:

- On *rails* (any two hosts are on the same switches, or on none together) a message is a stripe for each interface, of
  an equal part of it, which arrives by the interface of the same number.  A group runs its ring once on each rail.
- Elsewhere (hosts that forward: BCube) a message is a stripe for each interface by which some of its paths leave, of
  these paths' weight.  A ring has one path from most hosts to the next, by one interface; the flows of one that has
  paths by several load all of them.

Each stripe draws one of its paths.  So rails that all hosts share, without spines, take what one switch takes.

Lanes to several planes (`topoplan_engine.network.lanes`) are one interface: a stripe takes one plane.  A fabric that
keeps one path of each pair has no stripes, nor has one with rings, cycles or routes of its own, or whose hosts are
devices that links inside of a real host join.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from topoplan.arrays import F64, I32, I64, i32, i64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan_engine.csr import indptr, row_of_entry, select
from topoplan_engine.host_models import shares_links
from topoplan_engine.network.doors import Doors, some_links
from topoplan_engine.network.lanes import Lanes, some_paths
from topoplan_engine.network.new_rows import NewRings, NewRows

if TYPE_CHECKING:
    from topoplan_engine.network.tables import PathColumns

__all__ = ["Interfaces", "Routed", "Stripes", "interfaces_of", "rings_on_rails"]

#: Returns numbers of paths of pairs of hosts in a part of a fabric, given which links it has, and rows of those that
#: have some.
Routed: TypeAlias = "Callable[[I64, Fabric, I32 | None], tuple[I64, NewRows]]"


class Interfaces(NamedTuple):
    """By how many interfaces the hosts of a fabric send at a time.

    Attributes:
        most: of one host; 1 where messages have no stripes.
        on_rails: whether all hosts have as many, on rails.
        number: (L,) of each link at a host, which interface of it that is.
    """

    most: int
    on_rails: bool
    number: I64


def interfaces_of(fabric: Fabric, cluster: Cluster, lanes: Lanes) -> Interfaces:
    """Return the interfaces by which hosts send stripes.

    >>> from topoplan_engine.network.lanes import Lanes
    >>> hosts = Cluster.uniform(n_hosts=2, interfaces=2)
    >>> links = [(h, s) for h in (0, 1) for s in (2, 3)]  # two hosts, each on both switches
    >>> both = links + [(b, a) for a, b in links]
    >>> two = Fabric.from_links(name="two", n_hosts=2, n_switches=2, links=both, bandwidth=1.0, latency=0)
    >>> interfaces_of(two, hosts, Lanes(np.full(8, -1), 1))[:2]
    (2, True)
    """
    hosts, nothing = fabric.n_hosts, Interfaces(1, False, np.zeros(0, np.int64))
    tails, heads = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
    has_own = fabric.rings or fabric.cycles or fabric.routes is not None
    if (
        shares_links(cluster.host)
        or has_own
        or fabric.n_links <= 2 * hosts
        or ((tails < hosts) & (heads < hosts)).any()
    ):
        return nothing
    if (fabric.link_kind[np.minimum(tails, heads) < hosts] == LinkKind.INSIDE).any():
        return nothing
    counts = [np.bincount(ends[ends < hosts], minlength=hosts) for ends in (tails, heads)]
    most = int(counts[0].max(initial=0))
    is_equal = all((count == most).all() for count in counts) and most % lanes.most == 0
    if most == 1 or (lanes.most > 1 and not is_equal):
        return nothing
    number = np.full(fabric.n_links, -1)
    for ends, far_ends, count in zip((tails, heads), (heads, tails), counts, strict=True):
        rows = np.flatnonzero(ends < hosts)
        rows = rows[np.lexsort((rows, far_ends[rows], ends[rows]))]
        number[rows] = (np.arange(len(rows)) - indptr(count)[:-1][ends[rows]]) // lanes.most
    on_rails = is_equal and Doors(fabric).has_doors
    return Interfaces(most // lanes.most, on_rails, i64(number))


class Stripes:
    """The stripes of the rows of a network, each of which is a row of its own."""

    @classmethod
    def of(cls, fabric: Fabric, interfaces: Interfaces) -> Stripes | None:
        """Return those of a fabric; None where messages have none."""
        return cls(fabric, interfaces) if interfaces.most > 1 and fabric.max_paths > 1 else None

    def __init__(self, fabric: Fabric, interfaces: Interfaces) -> None:
        self.on_rails, self._most, self._number = interfaces.on_rails, interfaces.most, interfaces.number
        self._fabric = fabric
        self._rails: list[tuple[Fabric, I32]] | None = None
        self._rows = np.full((0, self._most), -1)
        self._shares = np.zeros((0, self._most))

    @property
    def rails(self) -> list[tuple[Fabric, I32]]:
        """The fabric with the links of one interface of each host, and which of its links these are, for each."""
        if self._rails is None:
            of_rails = [i32(np.flatnonzero((self._number < 0) | (self._number == k))) for k in range(self._most)]
            self._rails = [(some_links(self._fabric, links.astype(np.int64)), links) for links in of_rails]
        return self._rails

    def new_rows(self, rows: I32, paths: PathColumns, routed: Routed) -> list[NewRows]:
        """Return what is to be appended to the rows of paths, so that the stripes of some rows are there.

        Args:
            rows: of paths.
            paths: of all rows.
            routed: asks for paths in a part of the fabric.
        """
        n_rows = len(paths.row_ptr) - 1
        if len(self._rows) < n_rows:
            more = n_rows - len(self._rows)
            self._rows = np.concatenate([self._rows, np.full((more, self._most), -1)])
            self._shares = np.concatenate([self._shares, np.zeros((more, self._most))])
        asked_rows = np.zeros(n_rows, dtype=bool)
        asked_rows[rows] = True
        new = np.flatnonzero(asked_rows & (self._shares.sum(axis=1)[:n_rows] == 0))
        inside = new[paths.pair[new] < 0]
        self._rows[inside, 0], self._shares[inside, 0] = inside, 1.0
        if not len(new := new[paths.pair[new] >= 0]):
            return []
        return self._on_rails(new, paths, routed) if self.on_rails else [self._by_first_link(new, paths)]

    def known(self, rows: I32) -> tuple[I64, F64]:
        """Return (n, most) stripes of rows, and shares."""
        return self._rows[rows], self._shares[rows]

    def load_all(self, rows: I32, lengths: I64, paths: PathColumns) -> np.ndarray:
        """(G,) whether rings load all of their paths: where those of a row begin at several interfaces, off rails.

        Args:
            rows, lengths: of the rings of each group, one after the other, and how many.
            paths: of all rows.
        """
        if self.on_rails:
            return np.zeros(len(lengths), dtype=bool)
        different, place = np.unique(rows, return_inverse=True)
        owner, path = select(paths.row_ptr, different)
        of_path, entry = select(paths.path_ptr, path)
        links = paths.links[entry]
        outside = np.flatnonzero(links < len(self._number))
        begins = outside[np.diff(of_path[outside], prepend=-1) != 0]
        interface, row = self._number[links[begins]], owner[of_path[begins]]
        fewest, most = np.full(len(different), self._most), np.full(len(different), -1)
        np.minimum.at(fewest, row, interface)
        np.maximum.at(most, row, interface)
        group = np.repeat(np.arange(len(lengths)), lengths)
        several: np.ndarray = np.bincount(group, (fewest < most)[place.ravel()], len(lengths)) > 0
        return several

    def _by_first_link(self, rows: I64, paths: PathColumns) -> NewRows:
        """Divide the paths of rows by the interface at which they begin."""
        owner, path = select(paths.row_ptr, rows)
        interface = self._number[paths.links[paths.path_ptr[path]]]
        distinct, place = np.unique(owner * self._most + interface, return_inverse=True)
        order = np.argsort(place.ravel(), kind="stable")
        before = np.concatenate([[0.0], paths.cumulative_weight[:-1]])
        before[paths.row_ptr[:-1]] = 0.0
        of_row, by = np.divmod(distinct, self._most)
        self._rows[rows[of_row], by] = len(paths.row_ptr) - 1 + np.arange(len(distinct))
        weight = (paths.cumulative_weight - before)[path]
        self._shares[rows[of_row], by] = np.bincount(place.ravel(), weight, len(distinct))
        return some_paths(place.ravel()[order], path[order], paths, rows[of_row])

    def _on_rails(self, rows: I64, paths: PathColumns, routed: Routed) -> list[NewRows]:
        """Ask for the paths of rows by each interface."""
        first, added = len(paths.row_ptr) - 1, []
        for number, rail in enumerate(self.rails):
            counts, new = routed(paths.pair[rows], *rail)
            rows_there = np.flatnonzero(counts > 0)
            self._rows[rows[rows_there], number] = first + np.arange(len(rows_there))
            first += len(rows_there)
            added.append(new)
        has_rail = self._rows[rows] >= 0
        self._shares[rows] = has_rail / has_rail.sum(axis=1, keepdims=True)
        return added


def rings_on_rails(new: NewRings, stripes: I64, leaves: np.ndarray) -> NewRings:
    """Run the ring of each new group once on every rail that all of its flows between hosts have.

    Args:
        new: groups of one ring each.
        stripes: (n, rails) of its rows.
        leaves: (n,) whether each row is between hosts.
    """
    group, most = row_of_entry(new.row_ptr), stripes.shape[1]
    has_rail = np.ones((len(new.group), most), dtype=bool)
    np.logical_and.at(has_rail, group[leaves], stripes[leaves] >= 0)
    has_left = np.bincount(group[leaves], minlength=len(has_rail)) > 0
    times = np.where(has_left, np.maximum(has_rail.sum(axis=1), 1), 1)
    rails = np.argsort(~has_rail, axis=1, kind="stable")
    lengths = np.diff(new.row_ptr) * times
    row_ptr = indptr(lengths)
    of_group = np.repeat(np.arange(len(times)), lengths)
    which, member = np.divmod(np.arange(row_ptr[-1]) - row_ptr[of_group], np.diff(new.row_ptr)[of_group])
    flow = new.row_ptr[of_group] + member
    on_rail = stripes[flow, rails[of_group, which]]
    goes = leaves[flow] & np.asarray(has_rail.any(axis=1))[of_group]
    rows = np.where(goes, on_rail, new.rows[flow])
    return new._replace(parallel=new.parallel * times, row_ptr=i64(row_ptr), rows=i32(rows))

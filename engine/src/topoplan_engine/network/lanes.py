"""Planes: which lane of its interface each link of a host is, and rings on each of several lanes.

A network of P planes is P networks side by side.  An interface has a lane to each, with a P-th of its rate.  Then

- a message takes one plane: that of the path which it draws;
- a group runs each of its rings once on every plane, so that it has the whole rate of the interfaces.

Nothing of a fabric says that it has planes: they are lanes (`LinkKind.LANE`) from a host to switches, whose rate is a
whole part of the interface's.  Data flow: `lanes_of` finds them, once for a fabric; `rings_on_lanes` writes rings anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, i32, i64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan_engine.csr import indptr, row_of_entry, select
from topoplan_engine.network.new_rows import NewRings, NewRows

if TYPE_CHECKING:
    from topoplan_engine.network.tables import PathColumns

__all__ = ["Lanes", "components", "connected", "lanes_of", "rings_on_lanes", "some_paths"]


class Lanes(NamedTuple):
    """The lanes of a fabric.

    Attributes:
        number: (L,) of each link between a host and a switch, which plane it leads to; -1 for all other links.
        most: of one interface.
    """

    number: I64
    most: int


def lanes_of(fabric: Fabric, cluster: Cluster) -> Lanes:
    """Find the lanes of all links at hosts.

    Planes are numbered by their first switches, in each set of planes that lie between the same rates (rail-only
    networks have such a set for each rail).
    """
    hosts = fabric.n_hosts
    nothing = np.full(fabric.n_links, -1, dtype=np.int64)
    ends = np.minimum(fabric.link_src, fabric.link_dst), np.maximum(fabric.link_src, fabric.link_dst)
    rows = np.flatnonzero((fabric.link_kind == LinkKind.LANE) & (ends[0] < hosts) & (ends[1] >= hosts))
    rate = cluster.interface_bandwidth[ends[0][rows]]
    parts = rate * fabric.link_count[rows] / fabric.link_bandwidth[rows]
    planes = np.rint(parts).astype(np.int64)
    is_part = (planes > 1) & (np.abs(parts - planes) < 1e-6 * parts)
    rows, planes = rows[is_part], planes[is_part]
    if not len(rows):
        return Lanes(nothing, 1)
    nothing[rows] = components(fabric)[ends[1][rows] - hosts] % planes
    return Lanes(nothing, int(planes.max()))


def components(fabric: Fabric) -> I64:
    """(S,) number of the connected part of the network without hosts that each switch is in, by first switches.

    >>> links = [(0, 1), (1, 0), (0, 2), (2, 0)]  # a host on two switches
    >>> two = Fabric.from_links(name="two", n_hosts=1, n_switches=2, links=links, bandwidth=1.0, latency=0)
    >>> components(two).tolist()
    [0, 1]
    """
    hosts = fabric.n_hosts
    between = (fabric.link_src >= hosts) & (fabric.link_dst >= hosts)
    tail, head = fabric.link_src[between] - hosts, fabric.link_dst[between] - hosts
    return connected(tail, head, fabric.n_switches)


def connected(tail: I32, head: I32, count: int) -> I64:
    """(count,) number of the connected part of a graph that each node is in, by first nodes.

    Args:
        tail, head: ends of links.
        count: nodes.

    >>> connected(np.array([0, 3]), np.array([2, 2]), 4).tolist()
    [0, 1, 0, 0]
    """
    first = np.arange(count)
    while True:
        lower = first.copy()
        np.minimum.at(lower, tail, first[head])
        np.minimum.at(lower, head, lower[tail])
        lower = lower[lower]
        if (lower == first).all():
            break
        first = lower
    _, number = np.unique(first, return_inverse=True)
    result: I64 = number.ravel().astype(np.int64)
    return result


def rings_on_lanes(new: NewRings, paths: PathColumns, lanes: Lanes) -> tuple[NewRings, NewRows]:
    """Run each ring of new groups on every lane that all of its flows between hosts have.

    Returns:
        The rings, and rows behind those of ``paths``: of a row with paths on several lanes one for each of these.
    """
    rows, inverse = np.unique(new.rows, return_inverse=True)
    owner, path = select(paths.row_ptr, rows)
    lane = _lane_of_paths(path, paths, lanes)
    key = owner * lanes.most + lane
    distinct = np.unique(key[lane >= 0])
    counts = np.bincount(distinct // lanes.most, minlength=len(rows))
    group = row_of_entry(new.row_ptr)
    fewest = np.full(len(new.group), lanes.most)
    leaves = counts[inverse.ravel()] > 0
    np.minimum.at(fewest, group[leaves], counts[inverse.ravel()[leaves]])
    has_left = np.bincount(group[leaves], minlength=len(fewest)) > 0
    times = np.where(has_left, fewest, 1)
    # Row ``first + n`` has the paths of the n-th pair of a row and one of its lanes.
    rank = np.searchsorted(distinct, key)
    order = np.argsort(np.where(lane >= 0, rank, len(distinct)), kind="stable")[: int((lane >= 0).sum())]
    added = some_paths(rank[order], path[order], paths, rows[distinct // lanes.most])
    number = np.arange(int((np.diff(new.row_ptr) * times).sum()))
    lengths = np.diff(new.row_ptr) * times
    of_group = np.repeat(np.arange(len(times)), lengths)
    number -= indptr(lengths)[of_group]
    members = (np.diff(new.row_ptr) // new.parallel)[of_group]
    ring, number = np.divmod(number, members * times[of_group])
    which, member = np.divmod(number, members)
    flow = new.row_ptr[of_group] + ring * members + member
    place = inverse.ravel()[flow]
    new_row = len(paths.row_ptr) - 1 + indptr(counts)[place] + which
    on_lane = (counts[place] > 0) & (times[of_group] > 1)
    moved = i32(np.where(on_lane, new_row, new.rows[flow]))
    return new._replace(parallel=new.parallel * times, row_ptr=i64(indptr(lengths)), rows=moved), added


def _lane_of_paths(path: I64, paths: PathColumns, lanes: Lanes) -> I64:
    """Return the plane that each path takes; -1 for one that leaves no host by a lane."""
    owner, entry = select(paths.path_ptr, path)
    links = paths.links[entry]
    of_fabric = links < len(lanes.number)
    lane = np.full(len(path), -1, dtype=np.int64)
    np.maximum.at(lane, owner[of_fabric], lanes.number[links[of_fabric]])
    return lane


def some_paths(row: I64, path: I64, paths: PathColumns, origin: I64) -> NewRows:
    """Return new rows with some paths of those that are there, whose weights again sum to 1.

    Args:
        row, path: (n,) number of a new row, ascending, and a path of it.
        paths: of all rows.
        origin: (r,) the row that each new one is made of; it draws as this one does.
    """
    before = np.concatenate([[0.0], paths.cumulative_weight[:-1]])
    before[paths.row_ptr[:-1]] = 0.0
    weight = paths.cumulative_weight[path] - before[path]
    counts = np.bincount(row, minlength=len(origin))
    ends = np.cumsum(counts)
    running = np.cumsum(weight / np.bincount(row, weight, len(origin))[row])
    cumulative = running - np.concatenate([[0.0], running])[ends - counts][row]
    cumulative[ends - 1] = 1.0  # rounding must not leave a draw without a path
    _, entry = select(paths.path_ptr, path)
    sums = {name: getattr(paths, name)[path] for name in ("delay", "per_byte", "slowest")}
    lengths = np.diff(paths.path_ptr)[path]
    return NewRows(counts, lengths, paths.links[entry], sums, cumulative, paths.pair[origin])

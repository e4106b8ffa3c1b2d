"""Fabric -> the connections, routes and rings of a file."""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, Routes, TaskGraph, TopoplanError
from topoplan.arrays import F64, I64
from topoplan_engine.csr import indptr
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_engine.network.routing import full_routes
from topoplan_exporter_flatbuffer.links import take
from topoplan_exporter_flatbuffer.schema import Rows

__all__ = ["MOST_COPIES", "connections", "copies", "one_link", "receivers", "rings", "routes", "shifts"]

#: A pair's paths of unequal shares are listed so often at most, which meets shares to 1/32.
MOST_COPIES = 16


def one_link(fabric: Fabric, cluster: Cluster) -> float:
    """Return the bytes/s of the links that a file counts: those of an interface, or of its slowest lane."""
    interface = float(cluster.interface_bandwidth.min())
    lanes = fabric.link_bandwidth[fabric.link_kind == LinkKind.LANE]
    speeds = (interface, *lanes[lanes == lanes.min(initial=np.inf)][:1].tolist())
    return next((speed for speed in speeds if not len(_fractions(fabric, speed)[1])), interface)


def connections(fabric: Fabric, link: float) -> Rows:
    """List each linked pair of nodes once, from the higher to the lower, with its number of parallel links.

    The number counts links of ``link`` bytes/s, for FlexNetPacket gives a pair this number times one link's speed.
    """
    a, b = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
    reverse = fabric.link_rows(b, a)
    one_way = np.flatnonzero((reverse < 0) | (fabric.link_bandwidth[reverse] != fabric.link_bandwidth))
    if len(one_way):
        raise TopoplanError(
            f"flatbuffer: link {a[one_way[0]]} -> {b[one_way[0]]} has no equal link back, but connections of this "
            "format go both ways"
        )
    count, bad = _fractions(fabric, link)
    if len(bad):
        raise TopoplanError(
            f"flatbuffer: link {a[bad[0]]} -> {b[bad[0]]} of {fabric.link_bandwidth[bad[0]] * 8e-9:g} Gbps is no whole "
            f"number of interfaces of {link * 8e-9:g} Gbps, as connections of this format must be"
        )
    lower = a > b
    columns = {
        "fromnode": a[lower].astype("<u4"),
        "tonode": b[lower].astype("<u4"),
        "nconn": count[lower].astype("<u4"),
    }
    return Rows(np.array([0, lower.sum()]), columns)


def _fractions(fabric: Fabric, link: float) -> tuple[F64, I64]:
    """Return how many links of this speed each one stands for, and those that are no whole number of them."""
    ratio = fabric.link_bandwidth / link
    count = np.rint(ratio)
    return count, np.flatnonzero((count < 1) | (count >= 2**31) | (np.abs(ratio - count) > 1e-6 * count))


def routes(fabric: Fabric) -> Rows:
    """List every ordered pair of hosts with all nodes of each path; none for a host and itself.

    FlexNetPacket draws any path of a pair as often as any other, whatever its chance, so paths of unequal shares are
    listed as often as these ask.
    """
    hosts = fabric.n_hosts
    routes_ = _repeat_paths(full_routes(fabric))
    # Pairs come sorted and without the diagonal: put an empty row where a host meets itself.
    count = np.zeros(hosts * hosts, dtype=np.int64)
    count[routes_.pairs[:, 0].astype(np.int64) * hosts + routes_.pairs[:, 1]] = np.diff(routes_.pair_ptr)
    links = np.diff(routes_.path_ptr)
    hop_ptr = indptr(links + 1)
    node = np.empty(hop_ptr[-1], dtype="<u4")
    begins = np.zeros(len(node), dtype=bool)
    begins[hop_ptr[:-1]] = True
    node[begins] = fabric.link_src[routes_.links[routes_.path_ptr[:-1]]]  # a pair may stand for other ends: `pins`
    node[~begins] = fabric.link_dst[routes_.links]
    pairs = np.arange(hosts * hosts)
    columns = {
        "fromnode": (pairs // hosts).astype("<u4"),
        "tonode": (pairs % hosts).astype("<u4"),
        "paths": Rows(
            indptr(count),
            {"hopnode": Rows(hop_ptr, node), "chance": routes_.weight.astype("<f4")},
        ),
    }
    return Rows(np.array([0, hosts * hosts]), columns)


def _repeat_paths(table: Routes) -> Routes:
    """List paths of unequal shares several times, so that each time has the same."""
    count = np.diff(table.pair_ptr)
    owner = np.repeat(np.arange(len(count)), count)
    unequal = np.unique(owner[np.abs(table.weight * count[owner] - 1.0) > 1e-9])
    if not len(unequal):
        return table
    times = np.ones(len(table.weight), dtype=np.int64)
    for pair in unequal.tolist():
        paths = slice(table.pair_ptr[pair], table.pair_ptr[pair + 1])
        times[paths] = copies(table.weight[paths])
    path = np.repeat(np.arange(len(times)), times)
    _, step = take(table.path_ptr, path)
    pair_ptr = indptr(np.bincount(owner, times, len(count)).astype(np.int64))
    return attrs.evolve(
        table,
        pair_ptr=pair_ptr,
        path_ptr=indptr(np.diff(table.path_ptr)[path]),
        links=table.links[step],
        weight=1.0 / np.repeat(np.diff(pair_ptr), np.diff(pair_ptr)),
    )


def copies(share: F64) -> I64:
    """Return how often to list each path of a pair, at most `MOST_COPIES` in all, to come nearest to the shares."""
    best, smallest = np.ones(len(share), dtype=np.int64), np.inf
    for total in range(1, max(MOST_COPIES, len(share)) + 1):
        times = np.floor(share * total).astype(np.int64)
        remaining = total - int(times.sum())
        times[np.argsort(times - share * total, kind="stable")[:remaining]] += 1
        error = float(np.abs(times / total - share).max())
        if error < smallest - 1e-9:
            best, smallest = times, error
    return best


def rings(fabric: Fabric) -> Rows:
    """List rings of a fabric without switches, by the size of the groups that they serve.

    FlexNetPacket takes the members of a group for the first hosts as soon as there are any, so only groups of all
    hosts run on them (`topoplan_exporter_flatbuffer.tables.tables_of`).  Jumps are written as 0 .. hosts-1.
    """
    hosts = fabric.n_hosts
    result: dict[int, tuple[tuple[int, ...], ...]] = {}
    for size, paths in fabric.rings.items() if fabric.n_switches == 0 else ():
        if not 1 <= size <= hosts:
            raise TopoplanError(f"flatbuffer: fabric {fabric.name!r} has rings of {size} of {hosts} hosts")
        result[size] = tuple(tuple(jump % hosts for jump in jumps) for jumps in paths)
    ring = [jumps for paths in result.values() for jumps in paths]
    columns = {
        "ringsz": np.array(list(result), dtype="<u8"),
        "ringpaths": Rows(
            indptr([len(paths) for paths in result.values()]),
            {"jumps": Rows(indptr([len(jumps) for jumps in ring]), np.array(sum(ring, ()), dtype="<i4"))},
        ),
    }
    return Rows(np.array([0, len(result)]), columns)


def shifts(fabric: Fabric, graph: TaskGraph) -> list[tuple[int, ...]]:
    """For every group, how many members ahead each one sends, on each of the rings that simulators run for it.

    Those are the fabric's if it has some for the group, else one ring in listed order.  For cycles, which `receivers`
    says, only their number counts.
    """
    return [
        tuple(sum(jumps) * len(members) // fabric.n_hosts % len(members) for jumps in rings_of(fabric, members))
        or (1,) * max(1, len(cycles_of(fabric, members)))
        for members in np.split(graph.group_members, graph.group_ptr[1:-1])
    ]


def receivers(fabric: Fabric, graph: TaskGraph) -> dict[int, I64]:
    """Return group -> (cycles, members) the member to which each one sends, of groups that run cycles of the fabric.

    Those that are found along its links count, too.
    """
    if not fabric.cycles and not fabric.rings_along_links:
        return {}
    groups = enumerate(np.split(graph.group_members, graph.group_ptr[1:-1])[: graph.n_groups])
    return {group: cycles for group, members in groups if len(cycles := cycles_of(fabric, members))}

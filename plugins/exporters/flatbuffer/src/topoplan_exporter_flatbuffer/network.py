"""Fabric -> the connections, routes and rings of a file."""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, Routes, TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import F64, I64
from topoplan_engine.csr import indptr
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_engine.network.routing import paths
from topoplan_exporter_flatbuffer.links import take
from topoplan_exporter_flatbuffer.schema import Rows

__all__ = [
    "ALL_PAIRS",
    "MOST_COPIES",
    "MOST_PATHS",
    "connections",
    "copies",
    "listed_pairs",
    "one_link",
    "receivers",
    "rings",
    "routes",
    "routes_of",
    "shifts",
]

#: A pair's paths of unequal shares are listed so often at most, which meets shares to 1/32.
MOST_COPIES = 16
#: Hosts up to which a file lists the routes of all pairs.
ALL_PAIRS = 256
#: Paths of the largest file: at some 500 bytes each while it is written.
MOST_PATHS = 1_000_000


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


def listed_pairs(fabric: Fabric, graph: TaskGraph) -> I64:
    """Return the ordered pairs of hosts whose routes a file lists, as ``source * hosts + destination``, ascending.

    They are all pairs, hosts with themselves among them, as FlexNet writes them.  Of more than `ALL_PAIRS` hosts they
    are those between which messages go, members of a group with their next one on each ring, and all these backwards:
    FlexNetPacket asks for no other one.

    Args:
        fabric: whose routes are listed.
        graph: as it is written.
    """
    hosts = fabric.n_hosts
    if hosts <= ALL_PAIRS:
        return np.arange(hosts * hosts)
    transfer = graph.kind == TaskKind.TRANSFER
    source, target = [graph.src[transfer].astype(np.int64)], [graph.dst[transfer].astype(np.int64)]
    for members, steps in zip(np.split(graph.group_members, graph.group_ptr[1:-1]), shifts(fabric, graph), strict=True):
        for step in {1, *steps}:
            source.append(members.astype(np.int64))
            target.append(np.roll(members, -step).astype(np.int64))
    ends = np.concatenate(source), np.concatenate(target)
    pairs: I64 = np.unique(np.concatenate([ends[0] * hosts + ends[1], ends[1] * hosts + ends[0]]))
    return np.asarray(pairs[pairs // hosts != pairs % hosts])


def routes_of(fabric: Fabric, pairs: I64) -> Routes:
    """Return the routes of ordered pairs of different hosts, unless there are too many to be written.

    Args:
        fabric: the network.
        pairs: (k,) ``source * hosts + destination``.

    Raises:
        TopoplanError: there are more than `MOST_PATHS` paths.
    """
    hosts = fabric.n_hosts
    source, target = pairs // hosts, pairs % hosts
    # So many pairs at a time that even with all of `max_paths` each they are few.
    step = max(1, MOST_PATHS // (4 * fabric.max_paths))
    parts, count = [], 0
    for first in range(0, max(len(pairs), 1), step):
        parts.append(paths(fabric, source[first : first + step], target[first : first + step]))
        count += len(parts[-1].weight)
        if count > MOST_PATHS:
            raise TopoplanError(
                f"flatbuffer: the routes of {len(pairs):,} pairs of hosts have more than {MOST_PATHS:,} paths, "
                f"{fabric.max_paths:,} for a pair at most, which takes more than 1 GB of memory to write (keep fewer "
                "paths, e.g. --topology NAME:paths=4, or plan with fewer servers)"
            )
    return Routes(
        pairs=np.stack([source, target], axis=1),
        pair_ptr=indptr(np.concatenate([np.diff(part.pair_ptr) for part in parts])),
        path_ptr=indptr(np.concatenate([np.diff(part.path_ptr) for part in parts])),
        links=np.concatenate([part.links for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
    )


def routes(fabric: Fabric, pairs: I64) -> Rows:
    """List ordered pairs of hosts with all nodes of each path; none for a host and itself.

    FlexNetPacket draws any path of a pair as often as any other, whatever its chance, so paths of unequal shares are
    listed as often as these ask.

    Args:
        fabric: the network.
        pairs: (k,) ``source * hosts + destination``, ascending (`listed_pairs`).
    """
    hosts = fabric.n_hosts
    apart = pairs // hosts != pairs % hosts
    routes_ = _repeat_paths(routes_of(fabric, pairs[apart]))
    count = np.zeros(len(pairs), dtype=np.int64)
    count[apart] = np.diff(routes_.pair_ptr)
    links = np.diff(routes_.path_ptr)
    hop_ptr = indptr(links + 1)
    node = np.empty(hop_ptr[-1], dtype="<u4")
    begins = np.zeros(len(node), dtype=bool)
    begins[hop_ptr[:-1]] = True
    node[begins] = fabric.link_src[routes_.links[routes_.path_ptr[:-1]]]  # a pair may stand for other ends: `pins`
    node[~begins] = fabric.link_dst[routes_.links]
    columns = {
        "fromnode": (pairs // hosts).astype("<u4"),
        "tonode": (pairs % hosts).astype("<u4"),
        "paths": Rows(
            indptr(count),
            {"hopnode": Rows(hop_ptr, node), "chance": routes_.weight.astype("<f4")},
        ),
    }
    return Rows(np.array([0, len(pairs)]), columns)


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
    for size, jumps_of_rings in fabric.rings.items() if fabric.n_switches == 0 else ():
        if not 1 <= size <= hosts:
            raise TopoplanError(f"flatbuffer: fabric {fabric.name!r} has rings of {size} of {hosts} hosts")
        result[size] = tuple(tuple(jump % hosts for jump in jumps) for jumps in jumps_of_rings)
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

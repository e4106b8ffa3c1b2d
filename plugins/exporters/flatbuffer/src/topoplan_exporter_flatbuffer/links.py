"""The network part of a file -> links, routes and rings of a fabric."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import Fabric, Routes, TopoplanError
from topoplan.arrays import F64, I64
from topoplan_engine.csr import indptr, row_of_entry, select
from topoplan_exporter_flatbuffer.schema import Columns, Rows

__all__ = ["fabric_of", "take"]


def fabric_of(columns: Columns, hosts: int, switches: int, bandwidth: float, latency: float, name: str) -> Fabric:
    """Make the fabric of a file.

    Args:
        columns: of the root table.
        hosts: number of hosts, the first nodes.
        switches: number of switches, the nodes after them.
        bandwidth: bytes/s of one physical link.
        latency: seconds of every link.
        name: for messages.
    """
    nodes = hosts + switches
    key, count = _links(columns["conn"].values, nodes, name)
    return Fabric(
        name="file",
        n_hosts=hosts,
        n_switches=switches,
        link_src=key // nodes,
        link_dst=key % nodes,
        link_count=count,
        link_bandwidth=count * bandwidth,
        link_latency=np.full(len(key), latency),
        routes=_routes(columns["routes"].values, key, hosts, nodes, name),
        rings=_rings(columns["rings"].values, hosts, name),
    )


def take(ptr: I64, rows: I64) -> tuple[I64, I64]:
    """Row pointer and item positions of a selection of rows."""
    return indptr(np.diff(ptr)[rows]), select(ptr, rows)[1]


def _links(conn: Columns, nodes: int, name: str) -> tuple[I64, I64]:
    """Keys ``source * nodes + destination``, sorted, and counts of the directed links.

    A connection is undirected; a later one for the same pair replaces the earlier.
    """
    a, b, count = (conn[field].astype(np.int64) for field in ("fromnode", "tonode", "nconn"))
    bad = np.flatnonzero((a >= nodes) | (b >= nodes) | (a == b))
    if len(bad):
        raise TopoplanError(
            f"{name}: conn[{bad[0]}]: joins node {a[bad[0]]} to {b[bad[0]]} (must be two of {nodes} nodes)"
        )
    bad = np.flatnonzero(count > 2**31 - 1)
    if len(bad):
        raise TopoplanError(f"{name}: conn[{bad[0]}].nconn: {count[bad[0]]} parallel links are too many")
    pair = np.minimum(a, b) * nodes + np.maximum(a, b)
    pair, last = np.unique(pair[::-1], return_index=True)
    count = count[::-1][last]
    pair, count = pair[count > 0], count[count > 0]
    key = np.concatenate([pair, pair % nodes * nodes + pair // nodes])
    order = np.argsort(key)
    return key[order], np.concatenate([count, count])[order]


def _routes(route: Columns, link_key: I64, hosts: int, nodes: int, name: str) -> Routes | None:
    """Explicit paths between hosts; None where they are what shortest paths give anyway.

    That is the case without any route, and where the only switch is in the middle of every path.
    """
    source, target = route["fromnode"].astype(np.int64), route["tonode"].astype(np.int64)
    bad = np.flatnonzero((source >= nodes) | (target >= nodes))
    if len(bad):
        raise TopoplanError(
            f"{name}: routes[{bad[0]}]: from node {source[bad[0]]} to {target[bad[0]]} of {nodes} nodes"
        )
    # A later entry for a pair replaces the earlier; messages of a host to itself need no route.
    key, last = np.unique((source * nodes + target)[::-1], return_index=True)
    between_hosts = (key // nodes < hosts) & (key % nodes < hosts) & (key // nodes != key % nodes)
    key, rows = key[between_hosts], (len(source) - 1 - last)[between_hosts]
    if not len(rows):
        return None
    pair_ptr, path = take(route["paths"].ptr, rows)
    paths = route["paths"].values
    hop_ptr, hop = take(paths["hopnode"].ptr, path)
    node = paths["hopnode"].values[hop].astype(np.int64)
    owner = row_of_entry(pair_ptr)
    _check_ends(hop_ptr, node, rows[owner], hosts, nodes, name)
    if (
        nodes == hosts + 1
        and (np.diff(pair_ptr) == 1).all()
        and len(node) == 3 * len(path)
        and (node[1::3] == hosts).all()
    ):
        return None

    first = np.ones(len(node), dtype=bool)
    first[hop_ptr[1:] - 1] = False  # every node but the last of a path begins a step
    step = np.flatnonzero(first)
    keys_of_hops = node[step] * nodes + node[step + 1]
    link = np.searchsorted(link_key, keys_of_hops)
    bad = np.flatnonzero(
        link_key[np.minimum(link, len(link_key) - 1)] != keys_of_hops if len(link_key) else keys_of_hops >= 0
    )
    if len(bad):
        step_owner = np.searchsorted(hop_ptr, step[bad[0]], side="right") - 1
        a, b = divmod(int(keys_of_hops[bad[0]]), nodes)
        raise TopoplanError(f"{name}: routes[{rows[owner[step_owner]]}].paths: no connection between nodes {a} and {b}")
    return _merge_equal_paths(
        Routes(
            pairs=np.stack([key // nodes, key % nodes], axis=1),
            pair_ptr=pair_ptr,
            path_ptr=hop_ptr - np.arange(len(hop_ptr)),
            links=link,
            weight=_weights(paths["chance"][path], owner, len(rows), name),
        )
    )


def _merge_equal_paths(routes: Routes) -> Routes:
    """List a path that a pair has several times once, with all its shares."""
    if not len(routes.links):
        return routes
    count, length = np.diff(routes.pair_ptr), np.diff(routes.path_ptr)
    owner = np.repeat(np.arange(len(count)), count)
    # Equal paths have equal sums; a place in a path has a factor of its own.
    factor = np.random.default_rng(0).integers(1, 2**63, int(length.max(initial=0)), dtype=np.uint64)
    place = np.arange(len(routes.links)) - np.repeat(routes.path_ptr[:-1], length)
    mixed = np.add.reduceat((routes.links + 1).astype(np.uint64) * factor[place], routes.path_ptr[:-1])
    _, first, classes = np.unique(
        np.stack([owner.astype(np.uint64), mixed]), axis=1, return_index=True, return_inverse=True
    )
    if len(first) == len(owner):
        return routes
    keep = np.sort(first)
    path_ptr, step = take(routes.path_ptr, keep)
    return attrs.evolve(
        routes,
        pair_ptr=indptr(np.bincount(owner[keep], minlength=len(count))),
        path_ptr=path_ptr,
        links=routes.links[step],
        weight=np.bincount(classes.ravel(), routes.weight)[np.argsort(first)],
    )


def _check_ends(hop_ptr: I64, node: I64, row: I64, hosts: int, nodes: int, name: str) -> None:
    """Raise unless every path leads from one host to another; like FlexNetPacket, do not ask whether to the route's."""
    short = np.flatnonzero(np.diff(hop_ptr) < 2)
    if len(short):
        raise TopoplanError(
            f"{name}: routes[{row[short[0]]}].paths: a path of {np.diff(hop_ptr)[short[0]]} nodes (at least 2)"
        )
    bad = np.flatnonzero(node >= nodes)
    if len(bad):
        path = np.searchsorted(hop_ptr, bad[0], side="right") - 1
        raise TopoplanError(f"{name}: routes[{row[path]}].paths: node {node[bad[0]]} of {nodes} nodes")
    first, last = node[hop_ptr[:-1]], node[hop_ptr[1:] - 1]
    bad = np.flatnonzero((first == last) | (first >= hosts) | (last >= hosts))
    if len(bad):
        raise TopoplanError(
            f"{name}: routes[{row[bad[0]]}].paths: a path from node {first[bad[0]]} to {last[bad[0]]} (must be two of "
            f"{hosts} hosts)"
        )


def _weights(stored: NDArray[np.float32], owner: I64, pairs: int, name: str) -> F64:
    """Shares of the paths of each pair, summing to 1; equal where no path has a chance."""
    if not np.isfinite(stored).all() or (stored < 0).any():
        raise TopoplanError(f"{name}: routes.paths.chance: must be finite and not negative")
    chance = stored.astype(np.float64)
    total = np.bincount(owner, weights=chance, minlength=pairs)[owner]
    equal = 1.0 / np.bincount(owner, minlength=pairs)[owner]
    return np.where(total > 0, chance / np.where(total > 0, total, 1.0), equal)


def _rings(table: Columns, hosts: int, name: str) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Rings by group size; an entry without rings says nothing."""
    rings: dict[int, tuple[tuple[int, ...], ...]] = {}
    path: Rows = table["ringpaths"]
    jumps: Rows = path.values["jumps"]
    for row, size in enumerate(table["ringsz"].tolist()):
        cycles = []
        for ring in range(path.ptr[row], path.ptr[row + 1]):
            cycles.append(tuple(jumps.values[jumps.ptr[ring] : jumps.ptr[ring + 1]].tolist()))
            if not cycles[-1]:
                raise TopoplanError(f"{name}: rings[{row}].ringpaths: a ring without jumps")
        if cycles and not 1 <= size <= hosts:
            raise TopoplanError(f"{name}: rings[{row}].ringsz: {size} members of {hosts} hosts")
        if cycles:
            rings[size] = tuple(cycles)
    return rings

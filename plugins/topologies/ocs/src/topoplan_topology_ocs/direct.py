"""Direct links for all interfaces, joined into one network by exchanging ends of links where they fall apart."""

from __future__ import annotations

import numpy as np

from topoplan import Cluster, Fabric
from topoplan.arrays import F64, I64
from topoplan_directconnect.matching import add_matchings, fill_free

__all__ = ["direct", "join_parts"]


def direct(cluster: Cluster, matrix: F64, paths: int, rng: np.random.Generator) -> list[Fabric]:
    """Wire all interfaces for (n, n) bytes between hosts: once by bytes, once by bytes times the hops saved.

    Every host needs two interfaces, or it may be impossible to join the network.
    """
    fabrics = []
    for detours in (False, True):
        count = np.zeros((cluster.n_hosts, cluster.n_hosts), dtype=np.int64)
        free = cluster.interfaces.astype(np.int64)
        add_matchings(count, free, matrix, rng, detours=detours)
        fill_free(count, free, np.zeros_like(count), matrix, rng)
        join_parts(count, matrix)
        src, dst = np.nonzero(count)
        speed = np.minimum(cluster.interface_bandwidth[src], cluster.interface_bandwidth[dst])
        parallel = count[src, dst]
        fabrics.append(
            Fabric.from_links(
                name="ocs",
                n_hosts=cluster.n_hosts,
                links=np.repeat(np.stack([src, dst], axis=1), parallel, axis=0),
                bandwidth=np.repeat(speed, parallel),
                latency=cluster.latency,
                max_paths=paths,
            )
        )
    return fabrics


def join_parts(count: I64, matrix: F64) -> None:
    """Join the parts of a network, changing no host's number of links.

    Links a-b of one part and c-d of another become a-c and b-d.  That joins both if one of the links is on a
    cycle, which exists where all hosts but one have two links; of these the one with the least traffic is taken.

    Args:
        count: (n, n) two-way links, symmetric, changed in place.
        matrix: (n, n) bytes between hosts.
    """
    traffic = matrix + matrix.T
    while (inside := _reached(count, 0)).sum() < len(count):
        component = _reached(count, int(np.flatnonzero(~inside)[0]))
        a, b = _spare_link(count, traffic, inside)
        c, d = _spare_link(count, traffic, component)
        for x, y, change in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
            count[x, y] += change
            count[y, x] += change


def _spare_link(count: I64, traffic: F64, part: np.ndarray) -> tuple[int, int]:
    """Return the link of a part with the least traffic that does not hold it together; if all do, the first."""
    tails, heads = np.nonzero(np.triu(count, 1) * part[:, None])
    order = np.argsort(traffic[tails, heads], kind="stable")
    for link in order.tolist():
        a, b = int(tails[link]), int(heads[link])
        if count[a, b] > 1:
            return a, b
        count[a, b] = count[b, a] = 0
        connected = _reached(count, a)[b]
        count[a, b] = count[b, a] = 1
        if connected:
            return a, b
    return int(tails[order[0]]), int(heads[order[0]])


def _reached(count: I64, host: int) -> np.ndarray:
    """(n,) whether a host can be reached from ``host``."""
    visited = np.zeros(len(count), dtype=bool)
    visited[host] = True
    while (wider := visited | (count[visited] > 0).any(axis=0)).sum() > visited.sum():
        visited = wider
    return visited

"""Direct links for all interfaces; if the network is not connected, links exchange their ends."""

from __future__ import annotations

import numpy as np

from topoplan import Cluster, Fabric
from topoplan.arrays import F64, I64
from topoplan_directconnect.matching import add_matchings, bridges, fill_free, hops

__all__ = ["direct", "join_parts"]


def direct(cluster: Cluster, matrix: F64, paths: int, rng: np.random.Generator) -> list[Fabric]:
    """Wire all interfaces for (n, n) bytes between hosts, in two variants: by bytes, and by bytes times saved hops.

    Every host needs two interfaces; otherwise a connected network may be impossible.
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
                switching="ocs",
            )
        )
    return fabrics


def join_parts(count: I64, matrix: F64) -> None:
    """Join the components of a network without changing the number of links of a host.

    Links a-b of one component and c-d of another become a-c and b-d.  This joins both if one of the links is on a
    cycle.  Such a link exists if all hosts but one have two links; of these the one with the least traffic is used.

    Args:
        count: (n, n) two-way links, symmetric, changed in place.
        matrix: (n, n) bytes between hosts.
    """
    traffic = matrix + matrix.T
    while not (inside := (distance := hops(count))[0] < len(count)).all():
        component = distance[int(inside.argmin())] < len(count)
        a, b = _spare_link(count, traffic, inside)
        c, d = _spare_link(count, traffic, component)
        for x, y, change in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
            count[x, y] += change
            count[y, x] += change


def _spare_link(count: I64, traffic: F64, part: np.ndarray) -> tuple[int, int]:
    """Return the link with the least traffic of a component that is no bridge; if all are bridges, the first."""
    tails, heads = np.nonzero(np.triu(count, 1) * part[:, None])
    order = np.argsort(traffic[tails, heads], kind="stable")
    links = list(zip(tails[order].tolist(), heads[order].tolist(), strict=True))
    held_by = bridges(count)
    return next((link for link in links if frozenset(link) not in held_by), links[0])

"""Copies of a network of switches that meet in its hosts.

Switch s of plane p is node ``n_hosts + s * planes + p``, so that a host's lanes to all planes follow each other.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Fabric, LinkKind
from topoplan.arrays import I32, I64
from topoplan.model.fabric import Routes

__all__ = ["side_by_side"]


def side_by_side(plane: Fabric, planes: int) -> Fabric:
    """Return a fabric of so many copies of a plane whose hosts join switches alone, by lanes.

    >>> star = Fabric.from_links(name="star", n_hosts=2, n_switches=1,
    ...     links=[(0, 2), (1, 2), (2, 0), (2, 1)], bandwidth=1e9, latency=0)
    >>> both = side_by_side(star, 2)
    >>> [both.node_name(node) for node in (0, 2, 3)], both.link_bandwidth[both.link_src == 0].tolist()
    (['host 0', 'switch 0 of plane 0', 'switch 0 of plane 1'], [1000000000.0, 1000000000.0])
    """
    if planes == 1:
        return plane
    hosts, count = plane.n_hosts, plane.n_links
    number = np.tile(np.arange(planes), count)

    def nodes(ends: I32) -> I64:
        node = np.repeat(ends.astype(np.int64), planes)
        return np.where(node < hosts, node, hosts + (node - hosts) * planes + number)

    src, dst = nodes(plane.link_src), nodes(plane.link_dst)
    order = np.lexsort((dst, src))
    copy = order // planes
    of_host = (src[order] < hosts) | (dst[order] < hosts)
    names = [plane.node_name(host) for host in range(hosts)]
    for switch in range(hosts, plane.n_nodes):
        names += [f"{plane.node_name(switch)} of plane {copied}" for copied in range(planes)]
    return Fabric(
        name=f"{plane.name} ({planes} planes)",
        n_hosts=hosts,
        n_switches=plane.n_switches * planes,
        link_src=src[order],
        link_dst=dst[order],
        link_count=plane.link_count[copy],
        link_bandwidth=plane.link_bandwidth[copy],
        link_latency=plane.link_latency[copy],
        link_kind=np.where(of_host, LinkKind.LANE, plane.link_kind[copy]),
        routes=None if plane.routes is None else _routes(plane.routes, planes, np.argsort(order)),
        max_paths=plane.max_paths * planes,
        switching=plane.switching,
        node_names=names,
    )


def _routes(routes: Routes, planes: int, row: I64) -> Routes:
    """Return the paths of all planes, of which each carries an equal share.

    Args:
        routes: of a plane.
        planes: how many.
        row: (L * planes,) of link ``l`` in plane ``p``, at ``l * planes + p``.
    """
    lengths = np.diff(routes.path_ptr)
    pair = np.repeat(np.arange(len(routes.pairs)), np.diff(routes.pair_ptr))
    copied, path = (each.ravel() for each in np.meshgrid(np.arange(planes), np.arange(len(lengths)), indexing="ij"))
    order = np.argsort(pair[path], kind="stable")
    copied, path = copied[order], path[order]
    ends = np.cumsum(lengths[path])
    entry = np.arange(ends[-1]) - np.repeat(ends - lengths[path] - routes.path_ptr[path], lengths[path])
    return attrs.evolve(
        routes,
        pair_ptr=routes.pair_ptr * planes,
        path_ptr=np.concatenate([[0], ends]),
        links=row[routes.links[entry].astype(np.int64) * planes + np.repeat(copied, lengths[path])],
        weight=routes.weight[path] / planes,
    )

"""Which links of a switched fabric its hosts can use at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topoplan.model.fabric import Fabric

__all__ = ["reached_links"]


def reached_links(fabric: Fabric) -> NDArray[np.bool_]:
    """(L,) whether a link ends at a host or lies on a shortest path between two hosts.

    A fabric that has links between hosts as well as switches, or explicit routes, may use any: all of its links are
    reached.

    One breadth-first search over the switches for each of those that have hosts, all links of a level at once; then
    back from the switches that have hosts over the links that lead away from the start.
    """
    src, dst, hosts = fabric.link_src, fabric.link_dst, fabric.n_hosts
    trunk = (src >= hosts) & (dst >= hosts)
    if not trunk.any() or fabric.routes is not None or ((src < hosts) & (dst < hosts)).any():
        return np.ones(fabric.n_links, dtype=bool)
    rows = np.flatnonzero(trunk)
    tail, head = src[rows] - hosts, dst[rows] - hosts
    starts = np.unique(dst[src < hosts]) - hosts
    ends = np.zeros(fabric.n_switches, dtype=bool)
    ends[src[dst < hosts] - hosts] = True
    used = np.zeros(len(rows), dtype=bool)
    for start in starts.tolist():
        distance = np.full(fabric.n_switches, -1)
        distance[start] = level = 0
        while True:
            beyond = head[(distance[tail] == level) & (distance[head] < 0)]
            if not len(beyond):
                break
            level += 1
            distance[beyond] = level
        leads = ends.copy()
        onward = distance[head] == distance[tail] + 1
        for back in range(level, 0, -1):
            steps = onward & (distance[head] == back) & leads[head]
            used |= steps
            leads[tail[steps]] = True
    usable = ~trunk
    usable[rows[used]] = True
    return usable

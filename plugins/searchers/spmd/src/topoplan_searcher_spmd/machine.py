"""Prices of collectives on a cluster and its fabric, if all groups of a mesh run them at the same time.

A ring sends in rounds, each over all its hops.  The rings that leave a host share its links to other hosts.  An
all-to-all uses these links for data to other hosts, and the links of the devices for data within a host.  The fluid
simulator gives the same times on a network without further bottlenecks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan import AnyFabric, Cluster
from topoplan.arrays import F64, I64
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.resharding import Local

__all__ = ["Links", "Machine"]


#: Links between two hosts on a switch.
_LINKS = 2


class Links(NamedTuple):
    """A group: members, bandwidth (bytes/s) and latency (seconds) of a ring hop, and seconds per byte of every pair."""

    members: int
    bandwidth: float
    hop: float
    pair: float


class Machine:
    """Prices collectives in groups of devices."""

    def __init__(self, cluster: Cluster, fabric: AnyFabric) -> None:
        self._cluster = cluster
        self._out = _outward(cluster, fabric)

    def seconds(self, collective: Collective | Local, nbytes: float, links: Links) -> float:
        """Return the seconds of a collective.

        Args:
            collective: its kind.
            nbytes: bytes of the tensor of each group.
            links: of the groups, which run at the same time.
        """
        if isinstance(collective, Local) or links.members == 1:
            return 0.0
        if collective is Collective.ALL_TO_ALL:
            return nbytes / links.members**2 * links.pair + links.hop
        rounds = (links.members - 1) * (2 if collective is Collective.ALL_REDUCE else 1)
        return float(rounds * (nbytes / links.members / links.bandwidth + links.hop))

    def links(self, groups: I64) -> Links:
        """Return what (groups, members) devices have of the network if all groups use it at the same time."""
        cluster, members = self._cluster, groups.shape[1]
        host = cluster.device_host[groups]
        successor = np.roll(host, -1, axis=1)
        egress = np.bincount(host[host != successor], minlength=cluster.n_hosts)
        bandwidth, hop = np.inf, 0.0
        if egress.any():
            senders = egress > 0
            bandwidth = float((self._out[senders] / egress[senders]).min())
            hop = _LINKS * cluster.latency
        if (host == successor).any():
            inside = float(cluster.inside_bandwidth[host[host == successor]].min())
            bandwidth = min(bandwidth, inside)
        cell = np.arange(len(groups))[:, None] * cluster.n_hosts + host
        occupancy = np.bincount(cell.ravel(), minlength=len(groups) * cluster.n_hosts).reshape(-1, cluster.n_hosts)
        sent_pairs = (occupancy * (members - occupancy)).sum(axis=0)
        pair = float((sent_pairs / self._out).max())
        neighbours = np.where(occupancy > 0, occupancy - 1, 0).max(axis=0)
        return Links(members, bandwidth, hop, max(pair, float((neighbours / cluster.inside_bandwidth).max())))


def _outward(cluster: Cluster, fabric: AnyFabric) -> F64:
    """(H,) bytes/s that each host can send to other hosts."""
    links = fabric.links
    leaves = (links.link_src < fabric.n_hosts) & (links.link_src != links.link_dst)
    out = np.bincount(links.link_src[leaves], links.link_bandwidth[leaves], cluster.n_hosts)
    return np.maximum(out[: cluster.n_hosts].astype(np.float64), 1.0)

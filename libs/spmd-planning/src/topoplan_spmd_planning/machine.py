"""Prices of collectives on a cluster and its fabric, if all groups of a mesh run them at the same time.

A ring passes all of a group's devices in a host before it leaves for the next (`topoplan_engine.network.tables`).
The rings that leave a host share its links to other hosts.  An all-to-all uses these links for data to other hosts, and
the links of the devices for data within a host.  The fluid simulator gives the same times on a network without further
bottlenecks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan import AnyFabric, Cluster
from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.resharding import Local

__all__ = ["Links", "Machine", "collective_seconds"]


#: Links between two hosts on a switch.
_LINKS = 2


class Links(NamedTuple):
    """What a group has of the network.

    Attributes:
        members: devices of the group.
        stops: hosts that its ring visits; the members where they are in one host.
        bandwidth: bytes/s of its ring.
        hop: seconds of latency from a host to the next.
        pair: seconds per byte of every pair.
    """

    members: int
    stops: int
    bandwidth: float
    hop: float
    pair: float


def collective_seconds(collective: int, nbytes: F64 | float, links: Links) -> F64 | float:
    """Return the seconds of a collective of several members; see `Machine.seconds`.

    >>> links = Links(members=4, stops=4, bandwidth=1e9, hop=1e-6, pair=1e-9)
    >>> round(collective_seconds(Collective.ALL_REDUCE, 8e6, links), 9)
    0.012006
    """
    if collective == Collective.ALL_TO_ALL:
        return nbytes / links.members**2 * links.pair + links.hop
    turns = 2 if collective == Collective.ALL_REDUCE else 1
    sent = (links.members - 1) * (nbytes / links.members)
    return turns * (sent / links.bandwidth + (links.stops - 1) * links.hop)


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
        return float(collective_seconds(collective, nbytes, links))

    def links(self, groups: I64) -> Links:
        """Return what (groups, members) devices have of the network if all groups use it at the same time."""
        cluster, members = self._cluster, groups.shape[1]
        cells = np.arange(len(groups), dtype=np.int64)[:, None] * cluster.n_hosts + cluster.device_host[groups]
        cell, occupancy = np.unique(cells, return_counts=True)  # of a group in a host
        group, host = np.divmod(cell, cluster.n_hosts)
        leaves = occupancy < members
        egress, hop = np.bincount(host[leaves], minlength=cluster.n_hosts), _LINKS * cluster.latency * leaves.any()
        # Of k devices of a ring that leaves their host, the link of each carries (k - 1) / k of what leaves.
        passed = _largest(host, np.where(leaves, (occupancy - 1) / occupancy, occupancy > 1), cluster.n_hosts)
        with np.errstate(divide="ignore"):
            bandwidth = float(np.minimum(self._out / egress, cluster.inside_bandwidth / passed).min())
        stops = int(np.bincount(group).max()) if leaves.any() else members
        sent_pairs = np.bincount(host, occupancy * (members - occupancy), cluster.n_hosts)
        pair = float((sent_pairs / self._out).max())
        neighbours = _largest(host, occupancy - 1, cluster.n_hosts)
        pair = max(pair, float((neighbours / cluster.inside_bandwidth).max()))
        return Links(members, stops, bandwidth, float(hop), pair)

    def pair_seconds(self, senders: I32, receivers: I32) -> float:
        """Return the seconds per byte of the slowest of (n,) devices that each send to another one at the same time."""
        cluster = self._cluster
        source, target = cluster.device_host[senders], cluster.device_host[receivers]
        away = np.bincount(source[source != target], minlength=cluster.n_hosts)
        inside = np.bincount(source[source == target], minlength=cluster.n_hosts) > 0
        return float(max((away / self._out).max(), (inside / cluster.inside_bandwidth).max()))


def _largest(host: I64, values: np.ndarray, n_hosts: int) -> F64:
    """(H,) the largest of the values of each host; 0 where it has none."""
    largest = np.zeros(n_hosts)
    np.maximum.at(largest, host, values)
    return largest


def _outward(cluster: Cluster, fabric: AnyFabric) -> F64:
    """(H,) bytes/s that each host can send to other hosts."""
    links = fabric.links
    leaves = (links.link_src < fabric.n_hosts) & (links.link_src != links.link_dst)
    out = np.bincount(links.link_src[leaves], links.link_bandwidth[leaves], cluster.n_hosts)
    return np.maximum(out[: cluster.n_hosts].astype(np.float64), 1.0)

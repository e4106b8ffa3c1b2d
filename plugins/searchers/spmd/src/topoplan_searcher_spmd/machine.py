"""What collectives take on a cluster and its fabric, in every group of a mesh at the same time.

A ring sends in rounds, each over all its hops; a host's links to others are shared by the rings that leave it.  An
all-to-all sends what leaves a host over these links, and what stays inside over those of its devices.  This is what
the fluid simulator makes of them on a network without bottlenecks of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from topoplan import Cluster, Fabric
from topoplan.arrays import F64, I64
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.resharding import Local
from topoplan_engine.simulation.messages import PACKET, collective_rounds, packets

__all__ = ["Machine"]


class _Links(NamedTuple):
    """What a group has: members, bytes/s and seconds of a hop of its ring, and seconds for each byte of every pair."""

    members: int
    bandwidth: float
    hop: float
    pair: float


class Machine:
    """Prices collectives in groups of devices."""

    def __init__(self, cluster: Cluster, fabric: Fabric) -> None:
        self._cluster = cluster
        self._out = _outward(cluster, fabric)
        self._known: dict[bytes, _Links] = {}

    def seconds(self, collective: Collective | Local, nbytes: float, groups: I64) -> float:
        """Return the seconds of a collective.

        Args:
            collective: which.
            nbytes: of the tensor, as each group has it.
            groups: (groups, members) devices that do it at the same time.
        """
        if isinstance(collective, Local) or groups.shape[1] == 1:
            return 0.0
        links = self._links(groups)
        if collective is Collective.ALL_TO_ALL:
            return _sent(nbytes / links.members**2) * links.pair + links.hop
        turns = 2 if collective is Collective.ALL_REDUCE else 1
        rounds, share = collective_rounds(math.ceil(nbytes * turns / 2), links.members, collective)
        return float(rounds * (_sent(share) / links.bandwidth + links.hop))

    def _links(self, groups: I64) -> _Links:
        key = groups.tobytes() + bytes([groups.shape[1] % 256])
        cached = self._known.get(key)
        if cached is None:
            cached = self._known[key] = self._measured(groups)
        return cached

    def _measured(self, groups: I64) -> _Links:
        cluster, members = self._cluster, groups.shape[1]
        host = cluster.device_host[groups]
        following = np.roll(host, -1, axis=1)
        leaving = np.bincount(host[host != following], minlength=cluster.n_hosts)
        bandwidth, hop = np.inf, 0.0
        if leaving.any():
            used = leaving > 0
            bandwidth = float((self._out[used] / leaving[used]).min())
            hop = 4 * cluster.latency + PACKET / float(self._out[used].min())
        if (host == following).any():
            inside = float(cluster.inside_bandwidth[host[host == following]].min())
            bandwidth, hop = min(bandwidth, inside), max(hop, PACKET / inside)
        cell = np.arange(len(groups))[:, None] * cluster.n_hosts + host
        together = np.bincount(cell.ravel(), minlength=len(groups) * cluster.n_hosts).reshape(-1, cluster.n_hosts)
        sent = (together * (members - together)).sum(axis=0)
        pair = float((sent / self._out).max())
        neighbours = np.where(together > 0, together - 1, 0).max(axis=0)
        return _Links(members, bandwidth, hop, max(pair, float((neighbours / cluster.inside_bandwidth).max())))


def _sent(nbytes: float) -> float:
    return float(packets(nbytes) * PACKET)


def _outward(cluster: Cluster, fabric: Fabric) -> F64:
    """(H,) bytes/s at which each host can send to others."""
    leaves = (fabric.link_src < fabric.n_hosts) & (fabric.link_src != fabric.link_dst)
    out = np.bincount(fabric.link_src[leaves], fabric.link_bandwidth[leaves], cluster.n_hosts)
    return np.maximum(out[: cluster.n_hosts].astype(np.float64), 1.0)

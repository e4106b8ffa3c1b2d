"""The networks of the fabrics that were used last, found again by value."""

from __future__ import annotations

from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan_engine.cache import LruCache
from topoplan_engine.network.machine import network_of, spreading_network
from topoplan_engine.network.tables import Network

__all__ = ["NetworkCache"]


class NetworkCache:
    """The networks of the fabrics used last, found again by value."""

    def __init__(self, size: int = 16) -> None:
        self._networks: LruCache[bytes, Network] = LruCache(size)

    def get(self, fabric: Fabric, cluster: Cluster) -> Network:
        """Return the network of ``fabric`` and ``cluster``, making it if it is not kept."""
        key = fabric.key + cluster.key
        return self._networks.find(key) or self._networks.put(key, network_of(fabric, cluster))

    def for_folds(self, fabric: Fabric, cluster: Cluster) -> Network:
        """Return the network for folded iterations: where hosts have equal paths among switches, none of these is kept.

        Its `topoplan_engine.network.tables.Network.spreading` is there then.
        """
        key = b"folds" + fabric.key + cluster.key
        network = self._networks.find(key)
        if network is None:
            network = spreading_network(fabric, cluster) or self.get(fabric, cluster)
            self._networks.put(key, network)
        return network

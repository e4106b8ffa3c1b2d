"""One ideal switch: an upper bound for switched networks.

Every host joins a single non-blocking switch with all of its interfaces, as parallel links, so that messages meet
only at a host's own up- and down-links.  FlexNet calls this ``fattree``, and uses one interface.
"""

from __future__ import annotations

import numpy as np

from topoplan import Fabric, Topology, TopologyContext, hookimpl

__all__ = ["BigSwitch", "topoplan_topologies"]


class BigSwitch(Topology):
    """One non-blocking switch, which every host joins with all interfaces (FlexNet's fattree)."""

    name = "bigswitch"
    switched = True

    def build(self, context: TopologyContext) -> Fabric:
        """Join every host to the switch, node ``n_hosts``, at the bandwidth of all of its interfaces."""
        cluster = context.cluster
        n = cluster.n_hosts
        hosts, switch = np.arange(n), np.full(n, n)
        return Fabric(
            name="bigswitch",
            n_hosts=n,
            n_switches=1,
            link_src=np.concatenate([hosts, switch]),
            link_dst=np.concatenate([switch, hosts]),
            link_count=np.tile(cluster.interfaces, 2),
            link_bandwidth=np.tile(cluster.interfaces * cluster.interface_bandwidth, 2),
            link_latency=np.full(2 * n, cluster.latency),
            switching="ideal",
        )


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return BigSwitch

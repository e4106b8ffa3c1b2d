"""A full mesh: a link between any two hosts.

A host divides the bandwidth of its interfaces evenly among the links to all other hosts.  If the number of interfaces
is a multiple of the number of other hosts, a link has whole interfaces, else lanes of them.  A link between hosts with
different shares has the smaller share.
"""

from __future__ import annotations

import numpy as np

from topoplan import Fabric, LinkKind, Topology, TopologyContext, hookimpl

__all__ = ["FullyConnected", "topoplan_topologies"]


class FullyConnected(Topology):
    """A link between any two hosts, which share the bandwidth of their interfaces."""

    name = "fully-connected"

    def build(self, context: TopologyContext) -> Fabric:
        """Join every host to every other one.

        Raises:
            TopoplanError: there are more than 1,448 hosts.
        """
        from topoplan_graph_fabrics import limit_links

        cluster = context.cluster
        n, interfaces = cluster.n_hosts, cluster.interfaces
        limit_links(self.name, n * (n - 1) // 2, f"{n} hosts")
        n_peers = max(n - 1, 1)
        has_own_interfaces = (interfaces == interfaces[0]).all() and interfaces[0] % n_peers == 0
        share = interfaces / n_peers * cluster.interface_bandwidth
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        return Fabric(
            name="fully-connected",
            n_hosts=n,
            link_src=src,
            link_dst=dst,
            link_count=np.full(len(src), interfaces[0] // n_peers if has_own_interfaces else 1),
            link_bandwidth=np.minimum(share[src], share[dst]),
            link_latency=np.full(len(src), cluster.latency),
            link_kind=np.full(len(src), LinkKind.NETWORK if has_own_interfaces else LinkKind.LANE),
            rings_along_links=True,
            switching="packet",
        )


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return FullyConnected

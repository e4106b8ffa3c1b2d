"""Links between any two hosts: what direct connections do without a hop.

A host shares the bandwidth of its interfaces evenly among the links to all others: whole interfaces, where their number
is a multiple of the other hosts', else lanes of them.  Between hosts of different shares the smaller one decides.
"""

from __future__ import annotations

import numpy as np

from topoplan import Fabric, LinkKind, Topology, TopologyContext, hookimpl

__all__ = ["FullyConnected", "topoplan_topologies"]


class FullyConnected(Topology):
    """A link between any two hosts, which share the bandwidth of their interfaces."""

    name = "fully-connected"

    def build(self, context: TopologyContext) -> Fabric:
        """Join every host to every other one."""
        cluster = context.cluster
        n, interfaces = cluster.n_hosts, cluster.interfaces
        others = max(n - 1, 1)
        whole = (interfaces == interfaces[0]).all() and interfaces[0] % others == 0
        share = interfaces / others * cluster.interface_bandwidth
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        return Fabric(
            name="fully-connected",
            n_hosts=n,
            link_src=src,
            link_dst=dst,
            link_count=np.full(len(src), interfaces[0] // others if whole else 1),
            link_bandwidth=np.minimum(share[src], share[dst]),
            link_latency=np.full(len(src), cluster.latency),
            link_kind=np.full(len(src), LinkKind.NETWORK if whole else LinkKind.LANE),
        )


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return FullyConnected

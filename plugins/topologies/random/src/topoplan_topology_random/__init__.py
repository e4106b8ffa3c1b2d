"""A random regular graph among the hosts: an expander without switches (Jellyfish, NSDI 2012).

Every interface is one end of a two-way link; all randomness comes from the context's generator.
"""

from __future__ import annotations

import attrs

from topoplan import Fabric, Topology, TopologyContext, hookimpl, option

__all__ = ["Random", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Random(Topology):
    """Connected random graph in which every interface is used (expander)."""

    name = "random"

    paths: int = option(4, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Wire all interfaces at random; a link has the bandwidth of the slower of its two interfaces.

        Raises:
            TopoplanError: the interfaces cannot connect the hosts.
        """
        from topoplan_topology_random.wiring import connected_graph

        cluster = context.cluster
        edges = connected_graph(cluster.interfaces.tolist(), context.rng)
        speed = cluster.interface_bandwidth.tolist()
        bandwidth = [min(speed[a], speed[b]) for a, b in edges]
        return Fabric.from_links(
            name="random",
            n_hosts=cluster.n_hosts,
            links=edges + [(b, a) for a, b in edges],
            bandwidth=bandwidth + bandwidth,
            latency=cluster.latency,
            max_paths=self.paths,
            switching="packet",
        )


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Random

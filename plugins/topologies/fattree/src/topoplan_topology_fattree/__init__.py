"""A three-level k-ary fat-tree (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008).

The tree has k pods of k/2 top-of-rack and k/2 aggregation switches, k^2/4 core switches, and room for k^3/4 hosts.
Hosts fill it from the left.  Each host joins its switch with all of its interfaces, as parallel links.  Links between
switches have the bandwidth of the host with the most bandwidth.  The order of nodes is hosts, top-of-rack switches,
aggregation switches, core switches, pod by pod.

Oversubscription o removes aggregation switches: a pod has u = ceil(k/2 / o) of them, each with k/2 links to core
switches, of which u * k/2 remain.  If o divides k/2, this is FlexNetPacket's network ``aggosft`` with ``-nup u``.
Otherwise the links between top-of-rack and aggregation switches are slower, so that the bandwidths of hosts and uplinks
of a rack have the ratio o : 1.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["FatTree", "topoplan_topologies"]


def _ports(k: int | None, hosts: int) -> int:
    """Return the ports of a switch: the option, or the smallest even number whose tree has room for the hosts."""
    if k is None:
        k = 2
        while k**3 // 4 < hosts:
            k += 2
        return k
    if k % 2:
        raise TopoplanError(f"topology fattree: k {k} is odd (must be even)")
    if k**3 // 4 < hosts:
        fitting = _ports(None, hosts)
        raise TopoplanError(f"topology fattree: k {k} has room for {k**3 // 4} hosts, not {hosts} (use k={fitting})")
    return k


@attrs.frozen(kw_only=True)
class FatTree(Topology):
    """three-level k-ary fat-tree with equal-cost paths, oversubscribed on request."""

    name = "fattree"
    switched = True

    k: int | None = option(
        None, help="ports of a switch, even; the smallest that fits when absent", minimum=2, maximum=128
    )
    oversubscription: float = option(1.0, help="host bandwidth over uplink bandwidth of a rack", minimum=1, maximum=1e6)
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Build the tree; links between switches have the bandwidth of the host with the most of it.

        Raises:
            TopoplanError: ``k`` is odd or too small for the cluster.
        """
        cluster = context.cluster
        k = _ports(self.k, cluster.n_hosts)
        half = k // 2
        uplinks = max(1, math.ceil(half / self.oversubscription - 1e-9))  # 5 / (5 / 3) is 3
        host_bandwidth = cluster.interfaces * cluster.interface_bandwidth
        widest = int(host_bandwidth.argmax())
        trunk = float(host_bandwidth[widest])
        slowed = trunk * half / self.oversubscription / uplinks
        rack0 = cluster.n_hosts
        aggregation0 = rack0 + k * half
        core0 = aggregation0 + k * uplinks

        host, pod = np.arange(cluster.n_hosts), np.arange(k)[:, None, None]
        uplink, port = np.arange(uplinks)[None, :, None], np.arange(half)[None, None, :]
        rack, aggregation, core = (
            rack0 + pod * half + port,
            aggregation0 + pod * uplinks + uplink,
            core0 + uplink * half + port,
        )
        pairs = ((host, rack0 + host // half), (rack, aggregation), (aggregation, core))
        ends = [np.stack(np.broadcast_arrays(*pair), axis=-1).reshape(-1, 2) for pair in pairs]
        links = np.concatenate(ends)
        bandwidth = np.concatenate([host_bandwidth, np.full(len(ends[1]), slowed), np.full(len(ends[2]), trunk)])
        tree = Fabric.from_links(
            name="fattree",
            n_hosts=cluster.n_hosts,
            n_switches=k * half + k * uplinks + uplinks * half,
            links=np.concatenate([links, links[:, ::-1]]),
            bandwidth=np.concatenate([bandwidth, bandwidth]),
            latency=cluster.latency,
            max_paths=self.paths,
            switching="packet",
        )
        lower = np.minimum(tree.link_src, tree.link_dst)
        parallel = np.append(cluster.interfaces, cluster.interfaces[widest])[np.minimum(lower, cluster.n_hosts)]
        return attrs.evolve(tree, link_count=parallel)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return FatTree

"""Folded Clos networks: a three-level k-ary fat-tree (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008), or leaves and spines.

*Three levels.*  The tree has k pods of k/2 top-of-rack and k/2 aggregation switches, k^2/4 core switches, and room for
k^3/4 hosts.  Hosts fill it from the left.  Each host joins its switch with all of its interfaces, as parallel links;
such a bundle takes one of the k ports of a switch.  Links between switches have the bandwidth of the host with the most
bandwidth.  The order of nodes is hosts, top-of-rack switches, aggregation switches, core switches, pod by pod.
Oversubscription o removes aggregation switches: a pod has u = ceil(k/2 / o) of them, each with k/2 links to core
switches, of which u * k/2 remain.  If o divides k/2, this is FlexNetPacket's network ``aggosft`` with ``-nup u``.
Otherwise the links between top-of-rack and aggregation switches are slower, so that the bandwidths of hosts and uplinks
of a rack have the ratio o : 1.

*Two levels* (`leafspine`) are counted port by port: a switch has ``radix`` ports of the speed of one interface.

``radix`` says real ports in either case: of three levels, k is the number of bundles that they make.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Cluster, Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option
from topoplan_topology_fattree.leafspine import leaf_spine

__all__ = ["FatTree", "topoplan_topologies"]

#: Ports of a switch of two levels, unless the user says: one chip of 51.2 Tb/s has 64 of 800 Gbps, one of 25.6 of 400.
_RADIX = 64


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


def _bundles(radix: int, cluster: Cluster) -> int:
    """Return k: how many bundles of a host's interfaces the ports of a switch make.

    Raises:
        TopoplanError: a tree of such switches has no room for the hosts.
    """
    interfaces = int(cluster.interfaces.max())
    k = radix // interfaces // 2 * 2
    if k < 2 or k**3 // 4 < cluster.n_hosts:
        room = f"room for {k**3 // 4 if k >= 2 else 0} hosts of {interfaces} interfaces, not {cluster.n_hosts}"
        fitting = _ports(None, cluster.n_hosts) * interfaces
        raise TopoplanError(f"topology fattree: radix {radix} has {room} (use radix={fitting})")
    return k


@attrs.frozen(kw_only=True)
class FatTree(Topology):
    """fat-tree of two or three levels with equal-cost paths, oversubscribed on request."""

    name = "fattree"
    switched = True

    levels: int = option(
        3, help="levels of switches: 2 (leaves and spines), or 3 (k-ary fat-tree)", minimum=2, maximum=3
    )
    k: int | None = option(
        None,
        help="of three levels: hosts and uplinks of a switch, even; the smallest that fits when absent",
        minimum=2,
        maximum=128,
    )
    radix: int | None = option(
        None, help="ports of a switch, of one interface each; 64 of two levels when absent", minimum=2, maximum=4096
    )
    oversubscription: float = option(1.0, help="host bandwidth over uplink bandwidth of a rack", minimum=1, maximum=1e6)
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    @property
    def bundles_interfaces(self) -> bool:
        """Not where ports are counted: there is no switch with as many ports of a whole host's bandwidth."""
        return self.levels == 3 and self.radix is None

    def build(self, context: TopologyContext) -> Fabric:
        """Build the tree; links between switches have the bandwidth of the host with the most of it.

        Raises:
            TopoplanError: the options do not go together, or switches are too small for the cluster.
        """
        cluster = context.cluster
        if self.k is not None and (self.levels == 2 or self.radix is not None):
            pair = "levels=2" if self.levels == 2 else f"radix={self.radix}"
            raise TopoplanError(f"topology fattree: k {self.k} with {pair} (of these radix says the ports of a switch)")
        if self.levels == 2:
            return leaf_spine(cluster, self.radix or _RADIX, self.oversubscription, self.paths)
        k = _ports(self.k, cluster.n_hosts) if self.radix is None else _bundles(self.radix, cluster)
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

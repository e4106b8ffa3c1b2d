"""What a host has and what a fabric takes of it: network interfaces, their bandwidth, and rings that exist.

A topology builds a fabric for a `Cluster` whose hosts have so many interfaces of so many bytes/s.  `check_fabric`
refuses one whose links need more interfaces or bandwidth than a host has, in either direction, and rings over links
that are not there; `topoplan_engine.network.building` says how much of a host a fabric uses.  Links inside a host
(`LinkKind.INSIDE`) take no interface.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.reconfigurable import AnyFabric

__all__ = ["ROUNDING", "check_fabric", "check_interfaces", "check_rings", "ends_at_hosts"]

#: Bandwidths are sums of products: what differs by less than this share is equal.
ROUNDING = 1e-9


def check_fabric(fabric: AnyFabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a fabric has other hosts, needs more than they have, or has rings without links."""
    if fabric.n_hosts != cluster.n_hosts:
        raise TopoplanError(f"fabric {fabric.name!r}: has {fabric.n_hosts} hosts, the cluster {cluster.n_hosts}")
    check_interfaces(fabric, cluster)
    for wiring in fabric.wirings:
        check_rings(wiring)


def check_interfaces(fabric: AnyFabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a host lacks interfaces or bandwidth for its links, out or in, in some phase.

    The message names the host, what its links need together, and what it has.
    """
    allowed = cluster.interfaces * cluster.interface_bandwidth
    for wiring in fabric.wirings:
        for way, end in (("from", wiring.link_src), ("to", wiring.link_dst)):
            count, speed, _ = ends_at_hosts(wiring, end)
            over = np.flatnonzero((count > cluster.interfaces) | (speed > allowed * (1 + ROUNDING)))
            if len(over):
                host = int(over[0])
                enough = max(int(count[host]), math.ceil(speed[host] / cluster.interface_bandwidth[host] - ROUNDING))
                raise TopoplanError(
                    f"fabric {fabric.name!r}: {count[host]} links of {_gbps(speed[host])} together lead {way} host "
                    f"{host}, which has {cluster.interfaces[host]} interfaces of "
                    f"{_gbps(cluster.interface_bandwidth[host])}, {_gbps(allowed[host])} together "
                    f"(degree {enough} would do; links inside a host are declared as LinkKind.INSIDE)"
                )


def check_rings(fabric: Fabric) -> None:
    """Raise `TopoplanError` for a ring that some host cannot walk, or that does not visit its whole group.

    Cycles (`Fabric.cycles`) need a link from each host to the next one, too.
    """
    n = fabric.n_hosts
    for cycle in fabric.cycles:
        lost = np.flatnonzero(fabric.link_rows(cycle, np.roll(cycle, -1)) < 0)
        if len(lost):
            raise TopoplanError(
                f"fabric {fabric.name!r}: the cycle {cycle} needs a link from host {cycle[lost[0]]} to host "
                f"{cycle[(lost[0] + 1) % len(cycle)]} (add it, or leave the cycle out)"
            )
    hosts = np.arange(n)
    walked: set[int] = set()
    for size, rings in fabric.rings.items():
        for jumps in filter(None, rings):
            if size < 2 or n % size:
                raise TopoplanError(
                    f"fabric {fabric.name!r}: rings of groups of {size}, which do not part {n} hosts evenly "
                    f"(sizes are divisors of {n}, at least 2)"
                )
            stride, total = n // size, sum(jumps)
            if total % stride or math.gcd(total // stride, size) != 1:
                raise TopoplanError(
                    f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} does not visit all of them "
                    f"(its jumps must sum to {stride} times a number that shares no divisor with {size})"
                )
            for jump in {jump % n for jump in jumps} - walked:
                lost = np.flatnonzero(fabric.link_rows(hosts, (hosts + jump) % n) < 0)
                if len(lost):
                    raise TopoplanError(
                        f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} needs a link from host "
                        f"{lost[0]} to host {(lost[0] + jump) % n} (add it, or leave the ring out)"
                    )
                walked.add(jump)


def ends_at_hosts(fabric: Fabric, end: I32) -> tuple[I64, F64, F64]:
    """Count what ends at hosts, given the node (L,) at one end of each link.

    Returns:
        (H,) cables, bytes/s of all links of the network, and bytes/s of those of them that are lanes.
    """
    node = np.where(fabric.link_kind == LinkKind.INSIDE, fabric.n_nodes, end)
    lane = fabric.link_kind == LinkKind.LANE

    def total(weights: np.ndarray) -> F64:
        return np.bincount(node, weights, minlength=fabric.n_hosts)[: fabric.n_hosts].astype(np.float64)

    cables = total(np.where(lane, 0, fabric.link_count)).astype(np.int64)
    return cables, total(fabric.link_bandwidth), total(np.where(lane, fabric.link_bandwidth, 0.0))


def _gbps(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8e-9:.6g} Gbps"

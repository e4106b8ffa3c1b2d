"""What a host has and what a fabric takes of it: network interfaces, their bandwidth, and rings that exist.

A topology builds a `Fabric` for a `Cluster` whose hosts have so many interfaces of so many bytes/s.  `built` is how
every command gets a topology's fabric: it refuses one whose links need more interfaces or bandwidth than a host has, in
either direction, and rings over links that are not there.  `used_interfaces` and `host_links` say how much of a host
a fabric uses.  Links inside a host (`LinkKind.INSIDE`) take no interface.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.routes import link_index
from topoplan.plugin.components import Topology, TopologyContext

__all__ = ["built", "check_fabric", "check_interfaces", "check_rings", "host_links", "used_interfaces"]

#: Bandwidths are sums of products: what differs by less than this share is equal.
_ROUNDING = 1e-9
_GBPS = 8e-9


def built(topology: Topology, context: TopologyContext) -> Fabric:
    """Build the fabric of a topology and check it.

    Raises:
        TopoplanError: the topology refuses, or its fabric is one that the cluster's hosts cannot have.
    """
    fabric = topology.build(context)
    check_fabric(fabric, context.cluster)
    return fabric


def check_fabric(fabric: Fabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a fabric has other hosts, needs more than they have, or has rings without links."""
    if fabric.n_hosts != cluster.n_hosts:
        raise TopoplanError(f"fabric {fabric.name!r}: has {fabric.n_hosts} hosts, the cluster {cluster.n_hosts}")
    check_interfaces(fabric, cluster)
    for wiring in fabric.wirings:
        check_rings(wiring)


def check_interfaces(fabric: Fabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a host lacks interfaces or bandwidth for its links, out or in, in some phase.

    The message names the host, what its links need together, and what it has.
    """
    allowed = cluster.interfaces * cluster.interface_bandwidth
    for wiring in fabric.wirings:
        for way, end in (("from", wiring.link_src), ("to", wiring.link_dst)):
            count, speed, _ = _taken(wiring, end)
            over = np.flatnonzero((count > cluster.interfaces) | (speed > allowed * (1 + _ROUNDING)))
            if len(over):
                host = int(over[0])
                enough = max(int(count[host]), math.ceil(speed[host] / cluster.interface_bandwidth[host] - _ROUNDING))
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
        lost = np.flatnonzero(link_index(fabric, cycle, np.roll(cycle, -1)) < 0)
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
                lost = np.flatnonzero(link_index(fabric, hosts, (hosts + jump) % n) < 0)
                if len(lost):
                    raise TopoplanError(
                        f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} needs a link from host "
                        f"{lost[0]} to host {(lost[0] + jump) % n} (add it, or leave the ring out)"
                    )
                walked.add(jump)


def used_interfaces(fabric: Fabric, cluster: Cluster) -> I64:
    """Return the (H,) interfaces that each host needs: the larger of what goes out and comes in, over all phases."""
    sides = []
    for wiring in fabric.wirings:
        for end in (wiring.link_src, wiring.link_dst):
            count, _, lanes = _taken(wiring, end)
            sides.append(count + np.ceil(lanes / cluster.interface_bandwidth * (1 - _ROUNDING)).astype(np.int64))
    most: I64 = np.max(sides, axis=0)
    return most


def host_links(fabric: Fabric, cluster: Cluster) -> str:
    """Say what a host has and the fabric uses of it: ``8 x 400 Gbps``, or ``1 of 8 x 400 Gbps``.

    Of hosts that differ it is the least and the most: ``2..4 x 25 Gbps``.  A fabric that was read and needs more than
    the hosts have says so: ``4 of 2 x 25 Gbps``.
    """
    used, have = used_interfaces(fabric, cluster), cluster.interfaces
    speed = _range(cluster.interface_bandwidth * _GBPS, ".6g")
    # An odd number of interfaces leaves one that no link can take.
    idle = int((have - used).max()) > (1 if int(have.sum()) % 2 else 0)
    taken = f"{_range(used, 'd')} of " if idle or (used > have).any() else ""
    return f"{taken}{_range(have, 'd')} x {speed} Gbps"


def _taken(fabric: Fabric, end: np.ndarray) -> tuple[I64, F64, F64]:
    """(H,) cables at one end, bytes/s of all links of the network there, and of those of them that are lanes."""
    at = np.where(fabric.link_kind == LinkKind.INSIDE, fabric.n_nodes, end)
    lane = fabric.link_kind == LinkKind.LANE

    def total(weights: np.ndarray) -> F64:
        return np.bincount(at, weights, minlength=fabric.n_hosts)[: fabric.n_hosts].astype(np.float64)

    cables = total(np.where(lane, 0, fabric.link_count)).astype(np.int64)
    return cables, total(fabric.link_bandwidth), total(np.where(lane, fabric.link_bandwidth, 0.0))


def _range(values: np.ndarray, form: str) -> str:
    low, high = (format(value, form) for value in (values.min(), values.max()))
    return low if low == high else f"{low}..{high}"


def _gbps(bytes_per_second: float) -> str:
    return f"{bytes_per_second * _GBPS:.6g} Gbps"

"""What a host has and what a fabric takes of it: network interfaces, their bandwidth, and rings that exist.

A topology builds a fabric for a `Cluster` whose hosts have so many interfaces of so many bytes/s.  `check_fabric`
refuses one whose links need more interfaces or bandwidth than a host has, in either direction, and rings and routes
over links that are not there; `topoplan_engine.network.building` says how much of a host a fabric uses.  Links inside a
host (`LinkKind.INSIDE`) take no interface.  `check_rewired` refuses a fabric that is not made of the same hardware as
another one, which a searcher may wire anew.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import FabricError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.reconfigurable import AnyFabric, ReconfigurableFabric

__all__ = [
    "ROUNDING",
    "check_fabric",
    "check_interfaces",
    "check_rewired",
    "check_rings",
    "check_routes",
    "ends_at_hosts",
]

#: Bandwidths are sums of products: what differs by less than this share is equal.
ROUNDING = 1e-9


def check_fabric(fabric: AnyFabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a fabric has other hosts, needs more than they have, or has paths without links."""
    if fabric.n_hosts != cluster.n_hosts:
        raise FabricError(f"fabric {fabric.name!r}: has {fabric.n_hosts} hosts, the cluster {cluster.n_hosts}")
    check_interfaces(fabric, cluster)
    for wiring in fabric.wirings:
        check_rings(wiring)
        check_routes(wiring)


def check_rewired(fabric: AnyFabric, own_fabric: AnyFabric, cluster: Cluster) -> None:
    """Raise `TopoplanError` where a fabric is not the hardware of a topology, wired anew.

    Hosts keep within their interfaces (`check_fabric`).  What is no interface stays as it is in the topology's own
    fabric: the packet switches and the bandwidth of each, the links inside hosts, the latency of a link, and the delay
    of a rebuild.

    Args:
        fabric: what a searcher proposes.
        own_fabric: a fabric that the topology built.
        cluster: its hosts.
    """
    check_fabric(fabric, cluster)
    name = f"fabric {fabric.name!r}"
    if fabric.n_switches != own_fabric.n_switches:
        raise FabricError(
            f"{name}: has {fabric.n_switches} packet switches, the topology's own {own_fabric.n_switches}"
        )
    if isinstance(fabric, ReconfigurableFabric):
        if not isinstance(own_fabric, ReconfigurableFabric):
            raise FabricError(f"{name}: is rebuilt during the iteration, which the topology's own is not")
        if fabric.delay < own_fabric.delay * (1 - ROUNDING):
            raise FabricError(f"{name}: is rebuilt in {fabric.delay:g} s, the topology's own in {own_fabric.delay:g} s")
    most = np.max([_beside_interfaces(wiring) for wiring in own_fabric.wirings], axis=0)
    least_latency = min(
        (float(wiring.link_latency.min()) for wiring in own_fabric.wirings if wiring.n_links), default=0.0
    )
    for wiring in fabric.wirings:
        over = np.argwhere(_beside_interfaces(wiring) > most * (1 + ROUNDING))
        if len(over):
            way, node = over[0].tolist()
            what = f"inside host {node}" if node < fabric.n_hosts else f"at switch {node - fabric.n_hosts}"
            raise FabricError(
                f"{name}: links of {_gbps(_beside_interfaces(wiring)[way, node])} together {what}, "
                f"where the topology's own has {_gbps(most[way, node])}"
            )
        fast = np.flatnonzero(wiring.link_latency < least_latency * (1 - ROUNDING))
        if len(fast):
            raise FabricError(
                f"{name}: link {wiring.link_src[fast[0]]} -> {wiring.link_dst[fast[0]]} has a latency of "
                f"{wiring.link_latency[fast[0]]:g} s, the topology's own links {least_latency:g} s or more"
            )


def _beside_interfaces(fabric: Fabric) -> F64:
    """(2, N) bytes/s of links that leave and reach each node, of those inside of hosts and those of switches."""
    inside = fabric.link_kind == LinkKind.INSIDE
    sides = []
    for end in (fabric.link_src, fabric.link_dst):
        counted = np.where(inside | (end >= fabric.n_hosts), fabric.link_bandwidth, 0.0)
        sides.append(np.bincount(end, counted, minlength=fabric.n_nodes))
    return np.stack(sides).astype(np.float64)


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
                raise FabricError(
                    f"fabric {fabric.name!r}: {count[host]} links of {_gbps(speed[host])} together lead {way} host "
                    f"{host}, which has {cluster.interfaces[host]} interfaces of "
                    f"{_gbps(cluster.interface_bandwidth[host])}, {_gbps(allowed[host])} together "
                    f"(degree {enough} would do; links inside a host are declared as LinkKind.INSIDE, in a file as "
                    '"link": "inside")'
                )


def check_rings(fabric: Fabric) -> None:
    """Raise `TopoplanError` for a ring that some host cannot walk, or that does not visit its whole group.

    Cycles (`Fabric.cycles`) need a link from each host to the next one, too.
    """
    n = fabric.n_hosts
    for cycle in fabric.cycles:
        lost = np.flatnonzero(fabric.link_rows(cycle, np.roll(cycle, -1)) < 0)
        if len(lost):
            raise FabricError(
                f"fabric {fabric.name!r}: the cycle {cycle} needs a link from host {cycle[lost[0]]} to host "
                f"{cycle[(lost[0] + 1) % len(cycle)]} (add it, or leave the cycle out)"
            )
    hosts = np.arange(n)
    walked: set[int] = set()
    for size, rings in fabric.rings.items():
        for jumps in filter(None, rings):
            if size < 2 or n % size:
                raise FabricError(
                    f"fabric {fabric.name!r}: rings of groups of {size}, which do not part {n} hosts evenly "
                    f"(sizes are divisors of {n}, at least 2)"
                )
            stride, total = n // size, sum(jumps)
            if total % stride or math.gcd(total // stride, size) != 1:
                raise FabricError(
                    f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} does not visit all of them "
                    f"(its jumps must sum to {stride} times a number that shares no divisor with {size})"
                )
            for jump in {jump % n for jump in jumps} - walked:
                lost = np.flatnonzero(fabric.link_rows(hosts, (hosts + jump) % n) < 0)
                if len(lost):
                    raise FabricError(
                        f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} needs a link from host "
                        f"{lost[0]} to host {(lost[0] + jump) % n} (add it, or leave the ring out)"
                    )
                walked.add(jump)


def check_routes(fabric: Fabric) -> None:
    """Raise `TopoplanError` where an explicit path does not lead from link to link, from its pair's source to its end.

    Shares of a pair's traffic are positive and sum to 1.
    """
    routes = fabric.routes
    if routes is None or not len(routes.pairs):
        return
    name, n_paths = f"fabric {fabric.name!r}: routes", len(routes.weight)
    for field, ptr, rows, end in (
        ("pair_ptr", routes.pair_ptr, len(routes.pairs), n_paths),
        ("path_ptr", routes.path_ptr, n_paths, len(routes.links)),
    ):
        if len(ptr) != rows + 1 or ptr[0] != 0 or ptr[-1] != end or (np.diff(ptr) < 0).any():
            raise FabricError(f"{name}: {field} must rise from 0 to {end} in {rows + 1} numbers")
    lengths = np.diff(routes.path_ptr)
    if n_paths and (not lengths.all() or not 0 <= routes.links.min() <= routes.links.max() < fabric.n_links):
        raise FabricError(f"{name}: a path has no links, or one that is none of the {fabric.n_links} of the fabric")
    pair_of = np.repeat(np.arange(len(routes.pairs)), np.diff(routes.pair_ptr))
    first, last = routes.path_ptr[:-1], routes.path_ptr[1:] - 1
    inner = np.ones(len(routes.links), dtype=bool)
    inner[last] = False
    positions = np.flatnonzero(inner)
    broken = np.zeros(n_paths, dtype=bool)
    apart = fabric.link_dst[routes.links[positions]] != fabric.link_src[routes.links[positions + 1]]
    broken[np.repeat(np.arange(n_paths), lengths)[positions[apart]]] = True
    broken |= fabric.link_src[routes.links[first]] != routes.pairs[pair_of, 0]
    broken |= fabric.link_dst[routes.links[last]] != routes.pairs[pair_of, 1]
    if broken.any():
        source, target = routes.pairs[pair_of[np.flatnonzero(broken)[0]]]
        raise FabricError(f"{name}: a path from host {source} to host {target} does not lead there link by link")
    shares = np.bincount(pair_of, routes.weight, minlength=len(routes.pairs))
    wrong = (np.diff(routes.pair_ptr) > 0) & ~(np.abs(shares - 1) < 1e-6)
    if wrong.any() or not (routes.weight >= 0).all():
        source, target = routes.pairs[np.flatnonzero(wrong)[0] if wrong.any() else 0]
        raise FabricError(f"{name}: shares of the paths from host {source} to host {target} must sum to 1")


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

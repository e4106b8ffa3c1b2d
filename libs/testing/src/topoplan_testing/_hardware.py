"""What a fabric takes of its hosts, counted link by link in plain words.

`topoplan_engine.interfaces` checks the same in columns, for every run; this is for the checks of the kit, which
need no engine, and does not ask it.
"""

from __future__ import annotations

import math
from collections import defaultdict

from topoplan import AnyFabric, Cluster, Fabric, LinkKind, ReconfigurableFabric

__all__ = ["interfaces_fault", "rewiring_fault", "rings_fault"]

#: Bandwidths are sums of products: what differs by less than this share is equal.
_ROUNDING = 1e-9


def interfaces_fault(fabric: AnyFabric, cluster: Cluster) -> str:
    """Say which host sends or receives over more links or bandwidth than its interfaces have; empty if none does."""
    for wiring in fabric.wirings:
        for way, ends in (("from", wiring.link_src), ("to", wiring.link_dst)):
            links, speeds = defaultdict[int, int](int), defaultdict[int, float](float)
            for link, node in enumerate(ends.tolist()):
                if wiring.link_kind[link] != LinkKind.INSIDE:
                    links[node] += int(wiring.link_count[link]) * int(wiring.link_kind[link] != LinkKind.LANE)
                    speeds[node] += wiring.link_bandwidth[link]
            for host in range(cluster.n_hosts):
                each, count = float(cluster.interface_bandwidth[host]), int(cluster.interfaces[host])
                if links[host] > count or speeds[host] > each * count * (1 + _ROUNDING):
                    return (
                        f"fabric {fabric.name!r}: {links[host]} links of {speeds[host] * 8e-9:.6g} Gbps together lead "
                        f"{way} host {host}, which has {count} interfaces of {each * 8e-9:.6g} Gbps (links inside a "
                        "host are declared as LinkKind.INSIDE)"
                    )
    return ""


def rings_fault(fabric: Fabric) -> str:
    """Say which ring or cycle leads over a link that is not there, or misses hosts of its group; empty if none does."""
    n = fabric.n_hosts
    links = set(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))
    for cycle in fabric.cycles:
        for host, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            if (host, following) not in links:
                return f"fabric {fabric.name!r}: the cycle {cycle} needs a link from host {host} to host {following}"
    for size, rings in fabric.rings.items():
        for jumps in rings:
            if size < 2 or n % size:
                return f"fabric {fabric.name!r}: rings of groups of {size}, which do not part {n} hosts evenly"
            for jump in jumps:
                for host in range(n):
                    if (host, (host + jump) % n) not in links:
                        return (
                            f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} needs a link from host "
                            f"{host} to host {(host + jump) % n}"
                        )
            visited = {sum(jumps) * turn % n for turn in range(size)}
            if visited != set(range(0, n, n // size)):
                return f"fabric {fabric.name!r}: the ring {jumps} of groups of {size} does not visit all of them"
    return ""


def rewiring_fault(fabric: AnyFabric, built: AnyFabric, cluster: Cluster) -> str:
    """Say why a fabric is not the hardware of another one, wired anew; empty if it is."""
    if (fabric.n_hosts, fabric.n_switches) != (built.n_hosts, built.n_switches):
        return (
            f"fabric {fabric.name!r}: has {fabric.n_hosts} hosts and {fabric.n_switches} switches, the topology's own "
            f"{built.n_hosts} and {built.n_switches}"
        )
    least_delay = built.delay if isinstance(built, ReconfigurableFabric) else math.inf
    if isinstance(fabric, ReconfigurableFabric) and fabric.delay < least_delay:
        return f"fabric {fabric.name!r}: is rebuilt in {fabric.delay:g} s, the topology's own in {least_delay:g} s"
    most = {node: max(_beside_interfaces(wiring)[node] for wiring in built.wirings) for node in range(built.n_nodes)}
    least_latency = min((float(wiring.link_latency.min()) for wiring in built.wirings if wiring.n_links), default=0.0)
    for wiring in fabric.wirings:
        for node, speed in _beside_interfaces(wiring).items():
            if speed > most[node] * (1 + _ROUNDING):
                return f"fabric {fabric.name!r}: links of {speed:g} bytes/s at node {node}, which has {most[node]:g}"
        if wiring.n_links and wiring.link_latency.min() < least_latency * (1 - _ROUNDING):
            return f"fabric {fabric.name!r}: a latency of {wiring.link_latency.min():g} s, less than {least_latency:g}"
        if fault := rings_fault(wiring):
            return fault
    return interfaces_fault(fabric, cluster)


def _beside_interfaces(fabric: Fabric) -> defaultdict[int, float]:
    """Bytes/s that leave each node over links inside of hosts, and over all links of switches."""
    speeds = defaultdict[int, float](float)
    for node, kind, speed in zip(
        fabric.link_src.tolist(), fabric.link_kind.tolist(), fabric.link_bandwidth.tolist(), strict=True
    ):
        if kind == LinkKind.INSIDE or node >= fabric.n_hosts:
            speeds[node] += speed if math.isfinite(speed) else 0.0
    return speeds

"""What any wiring must take: a lower bound on the network time of a demand over all direct-connect fabrics.

Two arguments, and the larger one holds.  A host cannot send or receive faster than its interfaces together.
And bytes that travel several hops load several links: a host of ``d`` interfaces reaches at most ``d`` others in one
hop, ``d * d`` more in two, and so on (the counting behind Moore's bound; Hoffman, Singleton, IBM J. Res. Dev. 4, 1960),
so its demands, the largest nearest, take at least so many link-bytes of all that the fabric carries.

Data flow: a `Demand` and a `Cluster` go in, seconds come out; results set them beside what a search reached.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand

__all__ = ["any_wiring_bound", "fabric_lower_bound", "least_hops"]


def any_wiring_bound(plan: Plan, demand: Demand) -> float:
    """Return seconds that a simulated plan's strategy takes at least on any wiring of the hosts' interfaces.

    That is the compute of its busiest device, or the network time of its ``demand``, whichever is longer.
    """
    assert plan.timeline is not None
    return max(plan.timeline.bounds.device, fabric_lower_bound(demand, plan.cluster))


def fabric_lower_bound(demand: Demand, cluster: Cluster) -> float:
    """Return seconds that every fabric without switches, wired on the interfaces of ``cluster``, needs for ``demand``.

    An all-reduce of S bytes over H hosts moves 2 (H-1) S bytes between them at least (Patarasuk, Yuan, J. Parallel
    Distrib. Comput. 69, 2009), all of which leave its members' interfaces.

    Args:
        demand: of one iteration.
        cluster: whose hosts' interfaces and bandwidths count; the latency does not.
    """
    speed = cluster.interfaces * cluster.interface_bandwidth
    sizes = np.diff(demand.group_ptr)
    reduced = 2.0 * (sizes - 1) * demand.group_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        host_seconds = np.maximum(demand.matrix.sum(axis=1), demand.matrix.sum(axis=0)) / speed
    bounds = [float(np.nan_to_num(host_seconds, nan=0.0).max(initial=0.0))]
    for group, moved in enumerate(reduced.tolist()):
        bounds.append(moved / float(speed[demand.members(group)].sum()) if moved else 0.0)
    hops = least_hops(demand.matrix, cluster.interfaces.astype(np.int64))
    linked = float((demand.matrix * hops).sum()) + float(reduced.sum())
    if linked:
        bounds.append(linked / float(speed.sum()))
    return max(bounds)


def least_hops(matrix: F64, interfaces: I64) -> I64:
    """Return the (H, H) hops of a fabric that serves every source's demands at best, the largest nearest.

    No fabric has fewer link-bytes for row ``i`` than ``matrix[i] @ hops[i]``; no one fabric need serve all rows so
    well.

    Args:
        matrix: (H, H) bytes from row host to column host.
        interfaces: (H,) of each host; a host that is reached forwards over at most as many as the largest host has.
    """
    hosts = len(matrix)
    widest = int(interfaces.max(initial=1))
    hops = np.zeros((hosts, hosts), dtype=np.int64)
    for source in range(hosts):
        order = np.argsort(-matrix[source], kind="stable")
        order = order[order != source]
        first, reach, distance = 0, int(interfaces[source]), 1
        while first < len(order):
            if reach == 0 or distance == hosts:
                hops[source, order[first:]] = distance
                break
            hops[source, order[first : first + reach]] = distance
            first, reach, distance = first + reach, reach * widest, distance + 1
    return hops

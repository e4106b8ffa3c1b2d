"""Lower bounds on the makespan: busiest device, busiest link, longest chain, and what collectives must move.

Data flow: a simulator says how long each task takes alone and what crossed each link; `bounds` turns this into
a `Bounds`.  The first three hold for the simulator whose figures they are made of: no order of events beats
them.  The last one, `collective_bound`, looks at the task graph and the network alone and holds for all.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Bounds
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.messages import collective_rounds

__all__ = ["bounds", "collective_bound", "longest_chain"]


def bounds(tasks: TaskColumns, alone: F64, device_busy: F64, link_busy: F64, collective: float = 0.0) -> Bounds:
    """Make the bounds of one iteration.

    Args:
        tasks: the task graph, without cycles.
        alone: (T,) seconds that each task takes at least, from its last dependency on.
        device_busy: (D,) seconds of compute on each device.
        link_busy: (E,) seconds that each link needs for what crosses it, at full speed.
        collective: `collective_bound` of the task graph on its network.
    """
    return Bounds(
        device=float(device_busy.max(initial=0.0)),
        link=float(link_busy.max(initial=0.0)),
        chain=float(longest_chain(tasks, alone)),
        collective=collective,
    )


def collective_bound(taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> float:
    """Return the alpha-beta lower bound of the all-reduces of a task graph, in seconds.

    However it is done, an all-reduce of S bytes over H hosts moves 2 (H-1) S bytes between them, unless switches
    add (Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009).  All of these leave a member and enter one, and
    the last one does so a latency after the first.  With B, the bandwidth of the interfaces of all members
    together, that takes alpha + 2 (H-1) S / B: with equal hosts the known alpha + 2 (H-1)/H S/b.  All-reduces
    over the same hosts add up, and so do all of them over the interfaces of all their hosts.  Between devices of
    one host the links inside it take the place of interfaces.  An all-gather or a reduce-scatter moves half as much.

    Members send whole bytes in every round, and small all-reduces take one round with fewer bytes
    (`topoplan_engine.simulation.messages.collective_rounds`); the bound is lowered accordingly, and by what float32 may
    take from a latency.  The time inside hosts that precedes an all-reduce (`TaskGraph.seconds`) is left out.
    """
    groups: dict[int, tuple[bytes, int, int]] = {}
    met: dict[bytes, _Interfaces] = {}  # by members: in data parallelism every weight has the same
    interfaces: dict[bytes, _Interfaces] = {}
    moved: dict[bytes, int | float] = {}  # bytes that the members of each set must send
    for task in np.flatnonzero((taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0)).tolist():
        group = int(taskgraph.group[task])
        if group not in groups:
            listed = taskgraph.members(task).tobytes()
            if listed not in met:
                met[listed] = _interfaces(np.unique(taskgraph.members(task)), fabric, cluster)
            found = met[listed]
            groups[group] = (found.of.tobytes(), len(found.of), len(taskgraph.members(task)))
            interfaces[groups[group][0]] = found
        key, ends, members = groups[group]
        if ends > 1:
            kind = int(taskgraph.collective[task])
            rounds, share = collective_rounds(int(taskgraph.size[task]), members, kind)
            turns = 2 if kind == Collective.ALL_REDUCE else 1
            moved[key] = moved.get(key, 0) + share * (ends if rounds == 1 else turns * (ends - 1) * members)
    if not moved:
        return 0.0
    best = max(interfaces[key].latency + size / interfaces[key].bandwidth for key, size in moved.items())
    between = [key for key in moved if interfaces[key].between]
    if not between:
        return best
    hosts = np.unique(np.concatenate([interfaces[key].of for key in between]))
    latency = min(interfaces[key].latency for key in between)
    return max(best, latency + sum(moved[key] for key in between) / _bandwidth(hosts, fabric))


class _Interfaces(NamedTuple):
    """What the members of a group send through.

    Attributes:
        of: their hosts; where all are in one host, -1 less their devices.
        between: whether they are in several hosts.
        bandwidth: bytes/s of all of them together.
        latency: least seconds from one of them to another.
    """

    of: I64
    between: bool
    bandwidth: float
    latency: float


def _interfaces(devices: I32, fabric: Fabric, cluster: Cluster) -> _Interfaces:
    hosts = np.unique(cluster.device_host[devices]).astype(np.int64)
    if len(hosts) == 1:
        return _Interfaces(
            -1 - devices.astype(np.int64), False, float(len(devices) * cluster.inside_bandwidth[hosts[0]]), 0.0
        )
    leaves, enters = np.isin(fabric.link_src, hosts), np.isin(fabric.link_dst, hosts)
    latency = fabric.link_latency[leaves].min(initial=np.inf)
    if not (leaves & (fabric.link_dst < fabric.n_hosts)).any():  # by way of a switch
        latency += fabric.link_latency[enters].min(initial=np.inf)
    return _Interfaces(hosts, True, _bandwidth(hosts, fabric), float(latency) * (1 - 2.0**-23))


def _bandwidth(hosts: I64, fabric: Fabric) -> float:
    """Bytes/s that these hosts can send, or receive if that is less."""
    leaving = fabric.link_bandwidth[np.isin(fabric.link_src, hosts)].sum()
    entering = fabric.link_bandwidth[np.isin(fabric.link_dst, hosts)].sum()
    return float(min(leaving, entering))


@numba.njit(cache=True)
def longest_chain(tasks: TaskColumns, alone: F64) -> float:
    """Length of the longest path through the task graph, each task as long as ``alone`` says."""
    n_tasks = len(tasks.kind)
    waits = tasks.preds.copy()
    begin = np.zeros(n_tasks)
    order = np.empty(n_tasks, np.int32)
    known = 0
    for t in range(n_tasks):
        if waits[t] == 0:
            order[known] = t
            known += 1
    longest = 0.0
    at = 0
    while at < known:
        t = order[at]
        at += 1
        end = begin[t] + alone[t]
        longest = max(longest, end)
        for i in range(tasks.succ_ptr[t], tasks.succ_ptr[t + 1]):
            n = tasks.succ[i]
            begin[n] = max(begin[n], end)
            waits[n] -= 1
            if waits[n] == 0:
                order[known] = n
                known += 1
    return longest

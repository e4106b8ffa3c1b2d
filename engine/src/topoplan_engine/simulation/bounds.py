"""Lower bounds on the makespan: busiest device, busiest link, longest chain, and what collectives must move.

Data flow: a simulator gives the processing time of each task and the bytes that crossed each link; `bounds` turns them
into a `Bounds`.  The first three hold for that simulator: no order of events beats them.  The last one,
`collective_bound`, depends on the task graph, the network and the transport of messages only: it holds for all
simulators of that transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Bounds
from topoplan_engine.distinct import distinct_values
from topoplan_engine.kernels.jit import njit
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.messages import Transport, collective_rounds
from topoplan_engine.simulation.topological import sort_tasks

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration

__all__ = ["bounds", "collective_bound", "longest_chain"]


def bounds(
    tasks: TaskColumns, processing_time: F64, device_busy: F64, link_busy: F64, collective: float = 0.0
) -> Bounds:
    """Make the bounds of one iteration.

    Args:
        tasks: the task graph, without cycles.
        processing_time: (T,) lower bound on the seconds of each task, from its last dependency on.
        device_busy: (D,) seconds of compute on each device.
        link_busy: (E,) seconds that each link needs for the bytes that cross it, at full speed.
        collective: `collective_bound` of the task graph on its network.
    """
    return Bounds(
        device=float(device_busy.max(initial=0.0)),
        link=float(link_busy.max(initial=0.0)),
        chain=float(longest_chain(tasks, processing_time)),
        collective=collective,
    )


def collective_bound(
    taskgraph: TaskGraph,
    fabric: Fabric,
    cluster: Cluster,
    transport: Transport = Transport.WIRE,
    folded: FoldedIteration | None = None,
) -> float:
    """Return the alpha-beta lower bound of the all-reduces of a task graph, in seconds.

    Whatever its algorithm, an all-reduce of S bytes over H hosts moves 2 (H-1) S bytes between them, unless switches
    add (Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009).  All of these leave a member and enter one, and
    the last one does so a latency after the first.  With B, the bandwidth of the interfaces of all members
    together, that takes alpha + 2 (H-1) S / B: with equal hosts the known alpha + 2 (H-1)/H S/b.  All-reduces
    over the same hosts add up, and so do all of them over the interfaces of all their hosts.  Between devices of
    one host the links inside it take the place of interfaces.  An all-gather or a reduce-scatter moves half as much.

    With FlexNetPacket's transport, members send whole bytes in every round, and small all-reduces take one round with
    fewer bytes (`topoplan_engine.simulation.messages.collective_rounds`); the bound is lowered accordingly.  It is
    lowered by what float32 may take from a latency, too.  The time inside hosts that precedes an all-reduce
    (`TaskGraph.seconds`) is left out.

    Args:
        taskgraph, fabric, cluster: the iteration.
        transport: how messages are sent.
        folded: the iteration whose task graph that is, if each task stands for several.
    """
    groups: dict[int, _Interfaces] = {}
    interfaces: dict[bytes, _Interfaces] = {}  # by endpoints
    sent_bytes: dict[bytes, int | float] = {}  # by endpoints, what they must send together
    every: int | float = 0  # what all must send between hosts
    reducing = taskgraph.collective <= Collective.REDUCE_SCATTER  # all-to-alls and broadcasts need not move as much
    tasks = np.flatnonzero((taskgraph.kind == TaskKind.COLLECTIVE) & reducing & (taskgraph.size > 0))
    columns = np.stack([taskgraph.group[tasks], taskgraph.size[tasks], taskgraph.collective[tasks]])
    rows, first, counts = np.unique(columns, axis=1, return_index=True, return_counts=True)
    for number, task, count in zip(rows[0].tolist(), tasks[first].tolist(), counts.tolist(), strict=True):
        members = taskgraph.members(task)
        if number not in groups:
            groups[number] = _interfaces(distinct_values(members), fabric, cluster)
        group = groups[number]
        if len(group.endpoints) == 1:
            continue
        key, sent = (
            group.endpoints.tobytes(),
            _sent_bytes(taskgraph, task, len(group.endpoints), len(members), transport),
        )
        same, copies = (1, 1) if folded is None else folded.groups_like(task)
        if not group.between_hosts:  # other groups of this host send from other devices
            same = 1
        interfaces[key], sent_bytes[key] = group, sent_bytes.get(key, 0) + count * same * sent
        every += count * copies * sent if group.between_hosts else 0
    if not sent_bytes:
        return 0.0
    largest = max(interfaces[key].latency + size / interfaces[key].bandwidth for key, size in sent_bytes.items())
    remote = [group for group in interfaces.values() if group.between_hosts]
    if not remote:
        return largest
    hosts = distinct_values(np.concatenate([group.endpoints for group in remote])) if folded is None else folded.hosts
    return max(largest, min(group.latency for group in remote) + every / _bandwidth(hosts, fabric))


def _sent_bytes(taskgraph: TaskGraph, task: int, endpoints: int, members: int, transport: Transport) -> int | float:
    """Return the bytes that the members of a collective on so many endpoints must send together."""
    kind = int(taskgraph.collective[task])
    if transport == Transport.WIRE:
        return 2 * (endpoints - 1) * int(taskgraph.size[task])  # of half a tensor, where its kind moves half as much
    rounds, share = collective_rounds(int(taskgraph.size[task]), members, kind)
    turns = 2 if kind == Collective.ALL_REDUCE else 1
    sent: int | float = share * (endpoints if rounds == 1 else turns * (endpoints - 1) * members)
    return sent


class _Interfaces(NamedTuple):
    """The interfaces through which the members of a group send.

    Attributes:
        endpoints: hosts of the members; if all are in one host, -1 less their devices.
        between_hosts: whether they are in several hosts.
        bandwidth: bytes/s of all of them together.
        latency: least seconds from one of them to another.
    """

    endpoints: I64
    between_hosts: bool
    bandwidth: float
    latency: float


def _interfaces(devices: I32, fabric: Fabric, cluster: Cluster) -> _Interfaces:
    hosts = distinct_values(cluster.device_host[devices]).astype(np.int64)
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


@njit()
def longest_chain(tasks: TaskColumns, processing_time: F64) -> float:
    """Length of the longest path through the task graph, in seconds, given the (T,) seconds of each task."""
    n_tasks = len(tasks.kind)
    head, order = np.zeros(n_tasks), np.empty(n_tasks, np.int32)
    pred_ptr, pred = np.zeros(n_tasks + 1, np.int64), np.empty(len(tasks.succ), np.int32)
    n_sorted = sort_tasks(tasks, tasks.preds.copy(), pred_ptr, pred, order)
    longest = 0.0
    for t in order[:n_sorted]:
        for i in range(pred_ptr[t], pred_ptr[t + 1]):
            head[t] = max(head[t], head[pred[i]] + processing_time[pred[i]])
        longest = max(longest, head[t] + processing_time[t])
    return longest

"""Seconds that collectives inside one host take beside their bytes: the latencies of NCCL, where a machine has it.

Data flow: `with_inside_waits` finds the collectives whose members are in one host, and lets each wait before its first
byte as long as `topoplan_engine.network.protocols` says: a base and one latency for each step of a ring, or the one
latency of switches that sum and copy, with the protocol that makes the collective end first.  Protocols of little
latency send more bytes, so that the wait grows with the tensor, up to that of protocol Simple.

Launches are not in it: trainers queue collectives behind computation.  Machines whose devices are not known to have
NCCL on NVSwitches, and those that say latencies of their links, are taken at their word.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from topoplan.arrays import I64, f64
from topoplan.model.cluster import Cluster
from topoplan.model.machine import HostNode
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.network.exchanged import is_unequal
from topoplan_engine.simulation.columns import TaskColumns

if TYPE_CHECKING:
    from topoplan_engine.network.protocols import Tuning

__all__ = ["with_inside_waits"]


def with_inside_waits(tasks: TaskColumns, taskgraph: TaskGraph, cluster: Cluster) -> TaskColumns:
    """Return the columns of a task graph in which collectives inside hosts wait; as they are where none does.

    Args:
        tasks: columns of the task graph.
        taskgraph: has the groups of collectives.
        cluster: its devices, and the machine that its hosts are.
    """
    tuning = _tuning(cluster)
    if tuning is None:
        return tasks
    inside = _inside(taskgraph, cluster)
    if not len(inside):
        return tasks
    members = np.diff(taskgraph.group_ptr)[taskgraph.group[inside]]
    keys = taskgraph.collective[inside], members, taskgraph.size[inside]
    first, place = distinct_columns(*keys)
    rate = float(cluster.inside_bandwidth[0])
    different = zip(*(key[first].tolist() for key in keys), strict=True)
    waits = [_wait(tuning, Collective(kind), count, size, rate) for kind, count, size in different]
    seconds = tasks.seconds.copy()
    seconds[inside] += np.array(waits)[place]
    return tasks._replace(seconds=f64(seconds))  # read only, as it was: kernels are compiled anew for others


def _tuning(cluster: Cluster) -> Tuning | None:
    """Return the constants of the library inside hosts; None where none is known."""
    model = cluster.host
    if model is None or any(link.latency for link in model.links):
        return None
    switched = {HostNode.DEVICE, HostNode.SWITCH}
    if not any({model.nodes[link.first], model.nodes[link.second]} == switched for link in model.links):
        return None
    from topoplan_engine.network.protocols import queued_tuning_of

    return queued_tuning_of(cluster.device_preset[0])


def _inside(taskgraph: TaskGraph, cluster: Cluster) -> I64:
    """(n,) collectives with bytes among several devices of one host; of all-to-alls equal ones, as in foldings."""
    is_sent = (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0) & ~is_unequal(taskgraph)
    tasks = np.flatnonzero(is_sent & (taskgraph.collective != Collective.JOIN))
    hosts, sizes = cluster.device_host[taskgraph.group_members], np.diff(taskgraph.group_ptr)
    group = np.repeat(np.arange(len(sizes)), sizes)
    first = np.append(hosts, -1)[taskgraph.group_ptr[:-1]]
    elsewhere = np.bincount(group[hosts != first[group]], minlength=len(sizes))
    inside: I64 = tasks[((sizes > 1) & (elsewhere == 0))[taskgraph.group[tasks]]]
    return inside


@functools.lru_cache(maxsize=1 << 14)
def _wait(tuning: Tuning, collective: Collective, members: int, size: int, rate: float) -> float:
    """Return the seconds that a collective waits, given its size as `TaskGraph.size` counts it."""
    if collective is Collective.ALL_TO_ALL:
        return tuning.least_wait(("ring",), 1, size * (members - 1) / members, rate)
    turns = 2 if collective is Collective.ALL_REDUCE else 1
    # An all-gather of a tensor has half its bytes as size, so that a member sends the same multiple of it.
    return tuning.least_wait(("ring", "nvls"), turns * (members - 1), 2 * size * (members - 1) / members, rate)

"""What a task graph asks of the network, host by host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.problem import Demand
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.network.exchanged import factors_of, scales_of

__all__ = ["taskgraph_demand"]


def taskgraph_demand(taskgraph: TaskGraph, cluster: Cluster, forward: NDArray[np.bool_] | None = None) -> Demand:
    """Return groups with the bytes of their collectives (`TaskGraph.size`), and the bytes between hosts.

    An all-to-all is the messages between its members, as if they were transfers.

    Args:
        taskgraph: in range (`TaskGraph.check`).
        cluster: the hosts of its devices.
        forward: (T,) whether a task is of the forward pass; None where that is not known (`Demand.forward`).
    """
    host, n_hosts = cluster.device_host.astype(np.int64), cluster.n_hosts
    sums: dict[bytes, float] = {}
    in_groups = (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0)
    all_to_alls = in_groups & (taskgraph.collective == Collective.ALL_TO_ALL)
    collectives = np.flatnonzero(in_groups & ~all_to_alls)
    groups, sizes = taskgraph.group[collectives], taskgraph.size[collectives]
    group_bytes = np.bincount(groups, sizes, max(taskgraph.n_groups, 1))
    for group in np.unique(groups).tolist():
        members = taskgraph.group_members[taskgraph.group_ptr[group] : taskgraph.group_ptr[group + 1]]
        hosts = np.unique(host[members])
        if len(hosts) > 1:
            key = hosts.astype(np.int32).tobytes()
            sums[key] = sums.get(key, 0.0) + float(group_bytes[group])
    members_by_group = [np.frombuffer(key, dtype=np.int32) for key in sums]
    between = (taskgraph.kind == TaskKind.TRANSFER) | all_to_alls
    return Demand(
        group_ptr=np.concatenate(([0], np.cumsum([len(members) for members in members_by_group]))),
        group_members=np.concatenate(members_by_group) if members_by_group else [],
        group_bytes=list(sums.values()),
        matrix=_between(taskgraph, host, between, n_hosts),
        forward=None if forward is None else _between(taskgraph, host, between & forward, n_hosts),
    )


def _between(taskgraph: TaskGraph, host: I64, chosen: NDArray[np.bool_], n_hosts: int) -> F64:
    """(H, H) bytes of chosen transfers and all-to-alls between different hosts."""
    tasks = np.flatnonzero(chosen & (taskgraph.kind == TaskKind.TRANSFER))
    source, target = host[taskgraph.src[tasks]], host[taskgraph.dst[tasks]]
    apart = source != target
    cell, size = (source * n_hosts + target)[apart], taskgraph.size[tasks][apart].astype(np.float64)
    matrix: F64 = np.bincount(cell, size, n_hosts * n_hosts).astype(np.float64).reshape(n_hosts, n_hosts)
    tasks = np.flatnonzero(chosen & (taskgraph.kind == TaskKind.COLLECTIVE))
    groups, of_group = np.unique(taskgraph.group[tasks], return_inverse=True)
    for group, nbytes in zip(groups.tolist(), np.bincount(of_group, taskgraph.size[tasks]).tolist(), strict=True):
        members = taskgraph.group_members[taskgraph.group_ptr[group] : taskgraph.group_ptr[group + 1]]
        hosts, place, counts = np.unique(host[members], return_inverse=True, return_counts=True)
        sent = np.outer(counts, counts).astype(np.float64)
        if factors := factors_of(taskgraph, group):
            among = np.eye(len(hosts))[place.ravel()]  # (members, hosts)
            sent = among.T @ scales_of(factors, len(members)) @ among
        sent *= nbytes / len(members)
        np.fill_diagonal(sent, 0.0)
        matrix[np.ix_(hosts, hosts)] += sent
    return matrix

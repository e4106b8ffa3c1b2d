"""What a task graph asks of the network, host by host: for strategies whose messages no pieces tell."""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.problem import Demand
from topoplan.model.taskgraph import TaskGraph, TaskKind

__all__ = ["taskgraph_demand"]


def taskgraph_demand(taskgraph: TaskGraph, cluster: Cluster) -> Demand:
    """Return groups with what they sum, half of that for what goes round once, and the bytes between hosts."""
    host, n_hosts = cluster.device_host.astype(np.int64), cluster.n_hosts
    sums: dict[bytes, float] = {}
    rings = np.flatnonzero((taskgraph.kind == TaskKind.ALLREDUCE) & (taskgraph.size > 0))
    bytes_of = np.bincount(taskgraph.group[rings], taskgraph.size[rings], max(taskgraph.n_groups, 1))
    for group in np.unique(taskgraph.group[rings]).tolist():
        members = taskgraph.group_members[taskgraph.group_ptr[group] : taskgraph.group_ptr[group + 1]]
        hosts = np.unique(host[members])
        if len(hosts) > 1:
            key = hosts.astype(np.int32).tobytes()
            sums[key] = sums.get(key, 0.0) + float(bytes_of[group])
    groups = [np.frombuffer(key, dtype=np.int32) for key in sums]
    sent = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
    return Demand(
        group_ptr=np.concatenate(([0], np.cumsum([len(g) for g in groups]))),
        group_members=np.concatenate(groups) if groups else [],
        group_bytes=list(sums.values()),
        matrix=_between(taskgraph, host, sent, n_hosts),
    )


def _between(taskgraph: TaskGraph, host: I64, tasks: I64, n_hosts: int) -> F64:
    """(H, H) bytes of transfers between different hosts."""
    source, target = host[taskgraph.src[tasks]], host[taskgraph.dst[tasks]]
    apart = source != target
    cell, size = (source * n_hosts + target)[apart], taskgraph.size[tasks][apart].astype(np.float64)
    return np.bincount(cell, size, n_hosts * n_hosts).astype(np.float64).reshape(n_hosts, n_hosts)

"""The traffic matrix: bytes from host to host, by operator.

A transfer goes from the host of one device to that of another.  A collective goes round its rings: those that the
fabric has for its group, each with an equal share, or one in the order of its members; every member sends
``2 (n - 1) / n`` times the collective's ``size`` to the next one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.fabric import Fabric
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_html_report.columns import packed
from topoplan_html_report.limits import Limits

__all__ = ["traffic_matrix"]

#: Most cells of a side; of more hosts several share one.
_SIDE = 128


def traffic_matrix(plan: Plan, limits: Limits, number: I64) -> dict[str, Any]:
    """Return the non-zero cells of the matrix, by operator where there are not too many; operator -1 stands for all.

    Args:
        plan: with a task graph.
        limits: of cells.
        number: (operators,) the number by which the page knows each operator, or -1.
    """
    n_hosts = plan.cluster.n_hosts
    block = -(-n_hosts // min(_SIDE, math.isqrt(limits.cells)))
    side = -(-n_hosts // block)
    operator, source, target, nbytes = _messages(plan)
    operator = np.append(number, -1)[operator]
    apart = (source != target) & (nbytes > 0)
    keys = ((operator + 1) * side + source // block) * side + target // block
    cell, row = np.unique(keys[apart], return_inverse=True)
    total = np.bincount(row.ravel(), nbytes[apart], len(cell))
    by_operator = len(cell) <= limits.cells
    if not by_operator:
        cell, row = np.unique(cell % (side * side), return_inverse=True)
        total = np.bincount(row.ravel(), total, len(cell))
    return {
        "side": side,
        "hostsPerCell": block,
        "hosts": n_hosts,
        "byOperator": by_operator,
        "operator": packed(cell // (side * side) - 1, "int32"),
        "from": packed(cell // side % side, "int16"),
        "to": packed(cell % side, "int16"),
        "bytes": packed(total, "float64"),
    }


def _messages(plan: Plan) -> tuple[I64, I64, I64, F64]:
    """Return operator, source host, target host and bytes of all that devices send."""
    tasks, host = plan.taskgraph, plan.cluster.device_host.astype(np.int64)
    sent = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
    parts = [(tasks.op[sent].astype(np.int64), host[tasks.src[sent]], host[tasks.dst[sent]], tasks.size[sent] * 1.0)]
    ring = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.size > 0))
    keys = (tasks.op[ring].astype(np.int64) + 1) * tasks.n_groups + tasks.group[ring]
    kinds, row = np.unique(keys, return_inverse=True)
    total = np.bincount(row.ravel(), tasks.size[ring], len(kinds))
    fabric = plan.fabric.wirings[-1]  # of one that is rebuilt, that of the phase in which gradients are summed
    hops: dict[int, tuple[I64, I64, float]] = {}
    for key, size in zip(kinds.tolist(), total.tolist(), strict=True):
        operator, group = divmod(key, tasks.n_groups)
        if group not in hops:
            hops[group] = _hops(fabric, host[_members(tasks, group)])
        source, target, share = hops[group]
        parts.append((np.full(len(source), operator - 1), source, target, np.full(len(source), size * share)))
    operator_column, source, target, nbytes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return operator_column, source, target, nbytes


def _members(tasks: TaskGraph, group: int) -> I32:
    return tasks.group_members[tasks.group_ptr[group] : tasks.group_ptr[group + 1]]


def _hops(fabric: Fabric, hosts: I64) -> tuple[I64, I64, float]:
    """Return from where to where the members of a group on these hosts send, and the share of its size on each hop.

    Where some host has several of the members, a ring passes all of them before it leaves for the next host.
    """
    size = len(hosts)
    stops = hosts[np.sort(np.unique(hosts, return_index=True)[1])]
    listed = stops.astype(np.int32)
    rings = rings_of(fabric, listed)
    targets = [(stops + sum(jumps)) % fabric.n_hosts for jumps in rings]
    if not targets and len(cycles := cycles_of(fabric, listed)):
        targets = [stops[places] for places in cycles]
    targets = targets or [np.roll(stops, -1)]
    share = 2 * (size - 1) / size / len(targets)
    return np.tile(stops, len(targets)), np.concatenate(targets), share

"""How gradients meet: rewrites of a task graph before it is simulated.

`with_barriers` makes synchronisation wait for the end of the backward pass; `with_parameter_server` replaces
rings by a server, and `with_serial_sums` adds them at the end, one after the other.  All keep the rows of the given
tasks where they are and append new ones, so that row ``t`` stays task ``t``; `server_origin` says which task the
appended rows of the second one belong to.  `as_simulated` does what the options of the simulator that made a plan's
timeline say, for exporters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import expand, indptr, select

__all__ = [
    "as_simulated",
    "extended",
    "origin_of_rows",
    "recorded_components",
    "server_origin",
    "with_barriers",
    "with_parameter_server",
    "with_serial_sums",
]

_DEFAULTS = {"kind": 0, "seconds": 0.0, "size": 0}
_DEFAULTS |= dict.fromkeys(("device", "src", "dst", "group", "op", "collective"), -1)


def recorded_components(plan: Plan) -> list[Mapping[str, Any]]:
    """Return the components that made a plan, as its provenance has them; none where it does not say."""
    record = plan.provenance.get("components")
    return [part for part in record if isinstance(part, Mapping)] if isinstance(record, list | tuple) else []


def as_simulated(plan: Plan) -> tuple[TaskGraph, I64]:
    """Return the task graph that was simulated for a plan's timeline, and the task that each of its rows belongs to.

    Its rows are those of the plan, then the appended ones; barriers belong to no task (-1).
    """
    simulators = [part.get("options") for part in recorded_components(plan) if part.get("kind") == "simulator"]
    options = simulators[0] if simulators and isinstance(simulators[0], Mapping) else {}
    simulated = with_barriers(plan.taskgraph) if options.get("gradient_sync") == "barrier" else plan.taskgraph
    if options.get("collective") == "nccl-serial":
        simulated = with_serial_sums(simulated, plan.cluster)
    server = options.get("collective") == "parameter-server"
    simulated = with_parameter_server(simulated) if server else simulated
    return simulated, origin_of_rows(plan.taskgraph, simulated, server=server)


def with_barriers(taskgraph: TaskGraph) -> TaskGraph:
    """Let every all-reduce of gradients wait until its members' devices have ended all their backward tasks.

    Every device with a backward task gets a barrier without duration behind all of them; all-reduces wait for
    the barriers of their members instead of for the backward tasks.  Only all-reduces that follow a backward
    task and that no compute, transfer or other all-reduce waits for are moved: the others are steps of the
    computation.
    """
    src, dst = taskgraph.edges()
    backward = taskgraph.kind == TaskKind.BACKWARD
    reduces = taskgraph.kind == TaskKind.COLLECTIVE
    follows = np.zeros(taskgraph.n_tasks, dtype=bool)
    follows[dst[backward[src]]] = True
    moved = reduces & follows & ~_awaited(taskgraph)
    if not moved.any():
        return taskgraph

    devices = np.unique(taskgraph.device[backward])
    barrier = np.full(taskgraph.n_devices, -1, dtype=np.int64)
    barrier[devices] = taskgraph.n_tasks + np.arange(len(devices))
    unchanged = ~(backward[src] & moved[dst])
    runs = np.flatnonzero(backward)
    owner, member = _members(taskgraph, np.flatnonzero(moved))
    has_barrier = barrier[member] >= 0
    return extended(
        taskgraph,
        np.concatenate([src[unchanged], runs, barrier[member[has_barrier]]]),
        np.concatenate([dst[unchanged], barrier[taskgraph.device[runs]], owner[has_barrier]]),
        kind=np.full(len(devices), int(TaskKind.BARRIER)),
        device=devices,
    )


def with_parameter_server(taskgraph: TaskGraph) -> TaskGraph:
    """Replace every all-reduce of several members by transfers to its first member, an update, and transfers back.

    The row of the all-reduce becomes the update, without duration, on the first member's device.  Appended are,
    all-reduce by all-reduce, the transfers to it, and then in the same order those back.  A task on a member's
    device that the all-reduce waited for holds back that member's transfer only, one on another device or on
    none holds back all; likewise what waited for the all-reduce waits for the transfer to its own device, or for
    all.  The time that an all-reduce spends inside hosts is not counted.
    """
    replaced = _replaced(taskgraph)
    if not len(replaced):
        return taskgraph
    owner, member = _members(taskgraph, replaced)
    server = taskgraph.group_members[taskgraph.group_ptr[taskgraph.group[replaced]]]
    server_of = np.full(taskgraph.n_tasks, -1, dtype=np.int32)
    server_of[replaced] = server
    clients = np.ones(len(owner), dtype=bool)
    clients[np.flatnonzero(np.diff(owner, prepend=-1))] = False  # the first of each group is the server
    owner, member = owner[clients], member[clients]
    up = taskgraph.n_tasks + np.arange(len(owner))
    down = up + len(owner)

    src, dst = taskgraph.edges()
    out_task, out_edge = _matched(src, taskgraph.device[dst], server_of, owner, member, down)
    src, dst = out_task, dst[out_edge]
    device = np.concatenate([taskgraph.device, np.full(2 * len(owner), -1, dtype=np.int32)])
    in_task, in_edge = _matched(dst, device[src], server_of, owner, member, up)
    src, dst = src[in_edge], in_task

    seconds = taskgraph.seconds.copy()
    seconds[replaced] = 0.0
    sender = _updated(taskgraph, server_of, seconds)[owner]
    return extended(
        _with_updates(taskgraph, replaced, server, seconds),
        np.concatenate([src, up, sender]),
        np.concatenate([dst, owner, down]),
        kind=np.full(2 * len(owner), int(TaskKind.TRANSFER)),
        size=np.tile(taskgraph.size[owner], 2),
        src=np.concatenate([member, server_of[owner]]),
        dst=np.concatenate([server_of[owner], member]),
        op=np.tile(taskgraph.op[owner], 2),
    )


def _with_updates(taskgraph: TaskGraph, replaced: I64, device: I32, seconds: F64) -> TaskGraph:
    """Return the task graph with updates on (n,) devices in the rows of (n,) all-reduces, and other seconds."""
    values = {"kind": int(TaskKind.UPDATE), "device": device, "size": 0, "group": -1, "collective": -1}
    columns: dict[str, Any] = {name: getattr(taskgraph, name).copy() for name in values}
    for name, value in values.items():
        columns[name][replaced] = value
    return attrs.evolve(taskgraph, **columns, seconds=seconds)


def _updated(taskgraph: TaskGraph, server_of: I32, seconds: F64) -> I64:
    """(T,) the task after which the server sends what it summed: its optimizer step, or the sum where none has a price.

    The steps of clients take no time: ``seconds`` of these become 0.
    """
    sender = np.arange(taskgraph.n_tasks)
    src, dst = taskgraph.edges()
    steps = (server_of[src] >= 0) & (taskgraph.kind[dst] == TaskKind.UPDATE) & (seconds[dst] > 0)
    at_server = steps & (taskgraph.device[dst] == server_of[src])
    sender[src[at_server]] = dst[at_server]
    seconds[dst[steps & ~at_server]] = 0.0
    return sender


def with_serial_sums(taskgraph: TaskGraph, cluster: Cluster) -> TaskGraph:
    """Sum gradients when all else has ended, one after the other, without use of the network.

    That is what FlexFlow's simulator adds to its simulated timeline where it is built with NCCL (step 5.5; simulator.cc
    at commit b152683 of TopoOpt's version): operator by operator and weight by weight, the bytes of the slice over the
    slowest bandwidth between the first member and another one, which is that of the GPUs inside a host, or that of all
    interfaces of a host.  The row of such an all-reduce becomes an update of this duration on its first member's
    device; a barrier is appended, behind which they stand.  All-reduces that other tasks wait for stay as they are:
    FlexFlow has none.
    """
    replaced = _replaced(taskgraph)
    replaced = replaced[~_awaited(taskgraph)[replaced]]
    if not len(replaced):
        return taskgraph
    serial = np.zeros(taskgraph.n_tasks, dtype=bool)
    serial[replaced] = True
    src, dst = taskgraph.edges()
    before = np.ones(taskgraph.n_tasks, dtype=bool)  # that the barrier waits for: all but sums, and what follows them
    before[replaced], before[dst[serial[src]]] = False, False
    owner, member = _members(taskgraph, replaced)
    first = taskgraph.group_members[taskgraph.group_ptr[taskgraph.group[replaced]]]
    seconds = taskgraph.seconds.copy()
    seconds[replaced] = 0.0
    partners = np.flatnonzero(np.diff(owner, prepend=-1) == 0)
    bandwidth = _between(cluster, first[np.searchsorted(replaced, owner[partners])], member[partners])
    np.maximum.at(seconds, owner[partners], taskgraph.size[owner[partners]] / bandwidth)
    barrier, kept_edges, waits = taskgraph.n_tasks, ~serial[dst], np.flatnonzero(before)
    return extended(
        _with_updates(taskgraph, replaced, first, seconds),
        np.concatenate([src[kept_edges], waits, [barrier], replaced[:-1]]),
        np.concatenate([dst[kept_edges], np.full(len(waits), barrier), replaced]),
        kind=np.full(1, int(TaskKind.BARRIER)),
        device=first[:1],
    )


def _between(cluster: Cluster, server: I32, client: I64) -> F64:
    """(n,) bytes/s between devices: inside their host, or through all interfaces of the slower one of two hosts."""
    first, second = cluster.device_host[server], cluster.device_host[client]
    outside = cluster.interfaces * cluster.interface_bandwidth
    slower: F64 = np.minimum(outside[first], outside[second])
    return np.where(first == second, cluster.inside_bandwidth[first], slower)


def _awaited(taskgraph: TaskGraph) -> NDArray[np.bool_]:
    """(T,) whether something that is no end of the iteration waits for a task."""
    src, dst = taskgraph.edges()
    ends = (taskgraph.kind == TaskKind.UPDATE) | (taskgraph.kind == TaskKind.BARRIER)
    awaited = np.zeros(taskgraph.n_tasks, dtype=bool)
    awaited[src[~ends[dst]]] = True
    return awaited


def server_origin(taskgraph: TaskGraph) -> I64:
    """For every row of ``with_parameter_server(taskgraph)``, the task of ``taskgraph`` that it belongs to."""
    replaced = _replaced(taskgraph)
    group = taskgraph.group[replaced]
    clients = np.repeat(replaced, np.diff(taskgraph.group_ptr)[group] - 1)
    return np.concatenate([np.arange(taskgraph.n_tasks), clients, clients])


def origin_of_rows(original: TaskGraph, rewritten: TaskGraph, *, server: bool) -> I64:
    """Return the task of ``original`` that each row of a rewritten task graph belongs to; -1 for barriers.

    Barriers stand behind the rows of the original, and behind them what a parameter ``server`` sends.
    """
    clients = server_origin(original)[original.n_tasks :] if server else np.zeros(0, dtype=np.int64)
    barriers = rewritten.n_tasks - original.n_tasks - len(clients)
    return np.concatenate([np.arange(original.n_tasks), np.full(barriers, -1), clients])


def _replaced(taskgraph: TaskGraph) -> I64:
    """All-reduces of more than one member; all-gathers and reduce-scatters have nothing to do with a server."""
    reduces = np.flatnonzero(taskgraph.collective == Collective.ALL_REDUCE)
    return reduces[np.diff(taskgraph.group_ptr)[taskgraph.group[reduces]] > 1]


def _members(taskgraph: TaskGraph, reduces: I64) -> tuple[I64, I64]:
    """Task and device of every member of these all-reduces."""
    owner, member = select(taskgraph.group_ptr, taskgraph.group[reduces])
    return reduces[owner], taskgraph.group_members[member].astype(np.int64)


def _matched(task: I64, device: I32, server_of: I32, owner: I64, member: I64, transfer: I64) -> tuple[I64, I64]:
    """Move one end of edges from all-reduces to their transfers.

    Args:
        task: (e,) the end that may be an all-reduce.
        device: (e,) device of the other end, -1 for none.
        server_of: (T,) server of each replaced all-reduce, -1 for other tasks (and those appended).
        owner, member, transfer: (g,) all-reduce, member's device and row of each transfer.

    Returns:
        The new end of every edge, and the edge that it belongs to: an edge of no member becomes one to each.
    """
    n_devices = int(max(device.max(initial=0), member.max(initial=0))) + 1
    server = np.where(task < len(server_of), server_of[np.minimum(task, len(server_of) - 1)], -1)
    keys = owner * n_devices + member
    order = np.argsort(keys, kind="stable")
    edge_keys = task * n_devices + np.maximum(device, 0)
    place = np.minimum(np.searchsorted(keys, edge_keys, sorter=order), max(len(keys) - 1, 0))
    matched = np.zeros(len(task), dtype=bool)
    result = task.copy()
    if len(keys):
        matched = (server >= 0) & (device >= 0) & (keys[order[place]] == edge_keys)
        result[matched] = transfer[order[place[matched]]]
    to_all = (server >= 0) & ~matched & (device != server)
    first = np.searchsorted(owner, task[to_all])
    sizes = np.searchsorted(owner, task[to_all], side="right") - first
    _, entry = expand(first, sizes)
    edge = np.concatenate([np.flatnonzero(~to_all), np.repeat(np.flatnonzero(to_all), sizes)])
    order = np.argsort(edge, kind="stable")
    return np.concatenate([result[~to_all], transfer[entry]])[order], edge[order]


def extended(taskgraph: TaskGraph, tails: I64, heads: I64, **new: NDArray[Any]) -> TaskGraph:
    """Append tasks, given by their columns that differ from the default, and take these edges instead."""
    count = len(new["kind"])
    total = taskgraph.n_tasks + count
    order = np.argsort(tails, kind="stable")
    pointer = indptr(np.bincount(tails, minlength=total))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(taskgraph, name), new.get(name, np.full(count, default))])
        for name, default in _DEFAULTS.items()
    }
    columns |= {"micro_batch": None, "foreign": {}}
    return attrs.evolve(taskgraph, succ_ptr=pointer, succ=heads[order], **columns)

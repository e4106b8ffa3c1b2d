"""Plan -> file columns: the task graph with identifiers, units and tables as FlexNetPacket expects them.

A plan that was read from a file and not changed gives the columns of that file, identifiers included.
Any other plan gets identifiers that count from 1, and the tasks that were simulated: barriers and parameter servers
(`topoplan_engine.simulation.gradients.as_simulated`) are written as such.  Collectives that the format does not know
are written
out as transfers (`topoplan_exporter_flatbuffer.unroll`).  What else the format cannot say is an error, never a guess.
The network part is in `topoplan_exporter_flatbuffer.network`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import Collective, Fabric, Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import F64, I64
from topoplan_engine.csr import indptr
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_engine.simulation.gradients import as_simulated
from topoplan_exporter_flatbuffer.importer import FOREIGN, RESOURCES, plan_of
from topoplan_exporter_flatbuffer.network import connections, listed_pairs, one_link, receivers, rings, routes, shifts
from topoplan_exporter_flatbuffer.pins import pin_rings
from topoplan_exporter_flatbuffer.schema import (
    ALLREDUCE,
    BACKWARD,
    BARRIER,
    CPU,
    FORWARD,
    GPU,
    NOMINAL_COMM,
    NW_NOMINAL,
    OPERATOR_TYPES,
    UPDATE,
    Columns,
    Rows,
    unflatten,
)
from topoplan_exporter_flatbuffer.unroll import Unrolled, unroll

__all__ = ["MOST_TASKS", "check_size", "tables_of", "unsayable_collectives"]

#: TaskKind -> SimTaskType.
_TYPE = np.zeros(len(TaskKind), dtype="<i2")
_TYPE[[TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE]] = FORWARD, BACKWARD, UPDATE
_TYPE[[TaskKind.BARRIER, TaskKind.TRANSFER, TaskKind.COLLECTIVE]] = BARRIER, NOMINAL_COMM, ALLREDUCE
#: Kind of a device that is no GPU -> DeviceType.
_RESOURCE = {name: number for number, name in RESOURCES.items()}
#: Tasks of the largest file: at some 1,200 bytes each while it is written.
MOST_TASKS = 500_000
#: Constants of FlexNet, bytes/ms; no reader uses them.
_INTERGPUBW, _DRAMBW = 20 * 1024 * 1024, 32 * 1024 * 1024


def tables_of(plan: Plan) -> Columns:
    """Return the columns of the file's root table.

    Raises:
        TopoplanError: the format cannot hold the plan: several devices in a host, one-way links, links
            that are no whole number of interfaces, a fabric that is rebuilt during the iteration.
    """
    if not isinstance(plan.fabric, Fabric):
        raise TopoplanError(
            f"flatbuffer: fabric {plan.fabric.name!r} is rebuilt between the phases of an iteration, which the format "
            "cannot say (plan on a fabric that stays, e.g. --topology topoopt)"
        )
    plan.taskgraph.check("flatbuffer")
    graph, origin = as_simulated(plan)
    columns = _as_read(plan, plan.fabric) if graph is plan.taskgraph else None
    if columns is not None:
        return columns
    cluster, fabric = plan.cluster, plan.fabric
    extra = [_RESOURCE.get(preset, -1) for preset in cluster.device_preset[fabric.n_hosts :]]
    gpus = cluster.device_host[: fabric.n_hosts]
    if -1 in extra or not np.array_equal(gpus, np.arange(fabric.n_hosts)) or graph.n_devices > cluster.n_devices:
        raise TopoplanError(
            f"flatbuffer: devices_per_host is {cluster.n_devices / cluster.n_hosts:g}, but FlexNetPacket knows one GPU "
            "per host (plan with --gpus-per-server 1, and --gpus-per-device for the GPUs that share a host)"
        )
    transfer = graph.kind == TaskKind.TRANSFER
    ends = max(int(hosts.max(initial=0)) for hosts in (graph.src[transfer], graph.dst[transfer], graph.group_members))
    if ends >= fabric.n_hosts:
        raise TopoplanError(f"flatbuffer: device {ends} is no GPU, but FlexNetPacket sends messages between GPUs only")
    unsayable, steps = unsayable_collectives(graph, fabric), shifts(fabric, graph)
    check_size(graph, unsayable, steps)
    expanded = unroll(graph, unsayable, steps, cluster.n_devices, receivers(fabric, graph))
    fabric, pinned_graph = pin_rings(fabric, graph, expanded)
    extra += [CPU] * expanded.joins
    interface = one_link(fabric, cluster)
    return {
        "ngpupernode": np.array([1], dtype="<u4"),
        "nnode": np.array([fabric.n_hosts], dtype="<u4"),
        "nswitch": np.array([fabric.n_switches], dtype="<u4"),
        "intergpubw": np.array([_INTERGPUBW], dtype="<f4"),
        "drambw": np.array([_DRAMBW], dtype="<f4"),
        "netbw": np.array([interface / 1000.0], dtype="<f4"),
        "conn": connections(fabric, interface),
        "ops": _operators(plan),
        "tasks": _tasks(
            _stagger_sends(plan, expanded.taskgraph, pinned_graph), fabric, _seconds(plan, origin, expanded)
        ),
        "devices": _devices(pinned_graph, fabric, extra),
        "routes": routes(fabric, listed_pairs(fabric, pinned_graph)),
        "rings": rings(fabric),
    }


def check_size(graph: TaskGraph, unsayable: NDArray[np.bool_], steps: Sequence[tuple[int, ...]]) -> None:
    """Raise if a file has too many tasks to be written: those of the graph, with its collectives written out."""
    members = np.append(np.diff(graph.group_ptr), 0)[graph.group[unsayable]].astype(np.int64)
    rings_of_group = np.array([len(several) for several in steps] + [0])[graph.group[unsayable]]
    sends = 2 * members * members * np.maximum(rings_of_group, 1)
    count = int(graph.n_tasks + sends.sum())
    if count > MOST_TASKS:
        raise TopoplanError(
            f"flatbuffer: {len(members):,} collectives, the largest of {int(members.max(initial=0)):,} devices, "
            f"have to be written out as up to {count - graph.n_tasks:,} messages, for FlexNetPacket cannot run them "
            f"here; a file of more than {MOST_TASKS:,} tasks takes more than 1 GB of memory to write (plan with fewer "
            "servers, or smaller groups)"
            if len(members)
            else f"flatbuffer: {count:,} tasks take more than 1 GB of memory to write, which {MOST_TASKS:,} do not "
            "(plan with fewer servers or micro-batches)"
        )


def _as_read(plan: Plan, fabric: Fabric) -> Columns | None:
    """Return the columns of the file that the plan was read from, if the plan is unchanged."""
    foreign = plan.taskgraph.foreign
    if f"{FOREIGN}nnode" not in foreign:
        return None
    try:
        columns = unflatten(foreign, FOREIGN)
        read = plan_of(columns, "flatbuffer", 2**62)
    except (TopoplanError, LookupError, TypeError, ValueError, AttributeError):
        return None  # the columns were edited, for example in a JSON file, and are no valid file
    if not isinstance(read.fabric, Fabric) or read.fabric.n_links != fabric.n_links:
        return None
    # The file holds no latency, so another one is no change to it.
    fabric_read = attrs.evolve(fabric, name=read.fabric.name, link_latency=read.fabric.link_latency)
    same_cluster = np.array_equal(plan.cluster.interface_bandwidth, read.cluster.interface_bandwidth)
    if read.taskgraph != plan.taskgraph or read.fabric != fabric_read or not same_cluster:
        return None
    if plan.timeline is None:
        return columns
    tasks = columns["tasks"].values
    durations = _milliseconds(plan.timeline.finish - plan.timeline.start)
    runtime = np.where(plan.taskgraph.kind == TaskKind.TRANSFER, durations, tasks["runtime"])
    return {**columns, "tasks": Rows(columns["tasks"].ptr, {**tasks, "runtime": runtime})}


def unsayable_collectives(graph: TaskGraph, fabric: Fabric) -> NDArray[np.bool_]:
    """(T,) collectives that the format lacks: all-gathers, reduce-scatters, and all-reduces with successors.

    FlexNetPacket runs an all-reduce as a ring over the routes, in the order of its members.  If a file has a table of
    rings (`topoplan_exporter_flatbuffer.network.rings`), it uses this table, from hosts 0, 1, ... on, whoever the
    members are.  All-reduces that simulators run differently are also marked, and so are cycles.
    """
    ring = graph.kind == TaskKind.COLLECTIVE
    half_rounds = np.isin(graph.collective, (Collective.ALL_GATHER, Collective.REDUCE_SCATTER))
    table = bool(fabric.rings) and fabric.n_switches == 0
    same_meaning = np.zeros(graph.n_groups + 1, dtype=bool)
    for group, members in enumerate(np.split(graph.group_members, graph.group_ptr[1:-1])[: graph.n_groups]):
        all_hosts = np.array_equal(members, np.arange(fabric.n_hosts))
        rings, cycles = rings_of(fabric, members), len(cycles_of(fabric, members))
        same_meaning[group] = len(members) < 2 or (bool(rings) and all_hosts if table else not rings and not cycles)
    unsayable: NDArray[np.bool_] = ring & (half_rounds | (np.diff(graph.succ_ptr) > 0) | ~same_meaning[graph.group])
    return unsayable


def _stagger_sends(plan: Plan, graph: TaskGraph, pinned_graph: TaskGraph) -> TaskGraph:
    """Sort the messages that follow the same task by (destination - source) mod hosts.

    FlexNetPacket starts them in the order of the file, with 100 packets each.  If all hosts started with the same
    receiver, they would flood one receiver after the other.  Other edges keep their places.  Nothing is sorted in
    FlexNet's dialect and in plans that were read from a file.  ``graph`` has the ends of messages; ``pinned_graph`` may
    have other pairs.
    """
    if plan.graph is None or plan.graph.tags.get("dialect") == "flexnet":
        return pinned_graph
    positions = np.flatnonzero((graph.kind == TaskKind.TRANSFER)[graph.succ])
    owner, task = (ends[positions] for ends in graph.edges())
    distance = (graph.dst[task].astype(np.int64) - graph.src[task]) % plan.fabric.n_hosts
    succ = graph.succ.copy()
    succ[positions] = task[np.lexsort((distance, owner))]
    return attrs.evolve(pinned_graph, succ=succ)


def _seconds(plan: Plan, origin: I64, expanded: Unrolled) -> F64:
    """(T,) run times of the tasks in the file: of a transfer its own, or its part of the time of its collective.

    ``origin`` is the plan's task of each task before the expansion.
    """
    graph, timeline = plan.taskgraph, plan.timeline
    if timeline is None:
        return expanded.taskgraph.seconds
    reduces = graph.kind == TaskKind.COLLECTIVE
    durations = np.maximum(timeline.finish - timeline.start - np.where(reduces, graph.seconds, 0.0), 0.0)
    task = origin[expanded.origin]
    round_trip = reduces[task] & (expanded.ring < 0)  # to a parameter server
    part = np.where(round_trip, 0.5, expanded.part) * durations[task]
    return np.where(expanded.taskgraph.kind == TaskKind.TRANSFER, part, expanded.taskgraph.seconds)


def _tasks(graph: TaskGraph, fabric: Fabric, seconds: F64) -> Rows:
    count = graph.n_tasks
    transfer, ring = graph.kind == TaskKind.TRANSFER, graph.kind == TaskKind.COLLECTIVE
    bad = np.flatnonzero(transfer & (graph.src == graph.dst))
    if len(bad):
        raise TopoplanError(f"flatbuffer: {graph.label(bad[0])} stays on one host, which FlexNetPacket cannot route")

    device = np.where(ring, 0, _identifiers(graph.device.astype(np.int64), fabric))
    device[transfer] = fabric.n_hosts + 1 + _pairs(graph, transfer, fabric.n_nodes)
    # An all-reduce has no successors; its members stand in their place.
    length = np.where(ring, np.diff(graph.group_ptr)[graph.group] if graph.n_groups else 0, np.diff(graph.succ_ptr))
    ptr = indptr(length)
    values = np.empty(ptr[-1], dtype="<u8")
    of_ring = np.repeat(ring, length)
    values[~of_ring] = graph.succ + 1
    if ring.any():
        values[of_ring] = np.concatenate([graph.members(task) for task in np.flatnonzero(ring).tolist()])
    columns = {
        "type": _TYPE[graph.kind],
        "taskid": np.arange(1, count + 1, dtype="<u8"),
        "deviceid": device.astype("<u8"),
        "runtime": _milliseconds(seconds),
        "xfersize": graph.size.astype("<u8"),
        "nexttasks": Rows(ptr, values),
    }
    return _rows(columns, count)


def _devices(graph: TaskGraph, fabric: Fabric, extra: Sequence[int]) -> Rows:
    """One GPU per host, a device for every ordered pair of hosts that a transfer joins, then those of other types."""
    hosts = fabric.n_hosts
    pair = np.unique(_pairs(graph, graph.kind == TaskKind.TRANSFER, fabric.n_nodes))
    gpu, extra_ids = np.arange(hosts), np.arange(len(extra))
    count = hosts + len(pair) + len(extra)
    columns = {
        "type": np.concatenate([np.repeat([GPU, NW_NOMINAL], [hosts, len(pair)]), extra]).astype("<i2"),
        "deviceid": np.concatenate([gpu + 1, hosts + 1 + pair, _identifiers(hosts + extra_ids, fabric)]).astype("<u8"),
        "nodeid": np.concatenate([gpu, np.full(len(pair), -1), np.full(len(extra), hosts - 1)]).astype("<u8"),
        "deviceproperty": np.concatenate([gpu, pair, extra_ids]).astype("<u8"),
        "bandwidth": np.zeros(count, dtype="<u8"),
    }
    return _rows(columns, count)


def _identifiers(device: I64, fabric: Fabric) -> I64:
    """Identifiers of devices that compute: GPUs from 1 on, others behind all pairs of nodes."""
    return np.where(device < fabric.n_hosts, device + 1, device + 1 + fabric.n_nodes**2)


def _pairs(graph: TaskGraph, transfer: NDArray[np.bool_], nodes: int) -> I64:
    """Return the numbers by which the format names the pairs of hosts that transfers join."""
    pairs: I64 = graph.src[transfer].astype(np.int64) * nodes + graph.dst[transfer]
    return pairs


def _operators(plan: Plan) -> Rows:
    if plan.graph is not None:
        names = tuple(op.name for op in plan.graph.operators)
        types = [OPERATOR_TYPES.get(op.kind, 0) for op in plan.graph.operators]
    else:
        names = plan.taskgraph.op_names
        types = [0] * len(names)
    columns = {"opid": np.arange(1, len(names) + 1, dtype="<u8"), "type": np.array(types, dtype="<u8"), "name": names}
    return _rows(columns, len(names))


def _milliseconds(seconds: F64) -> NDArray[np.float32]:
    longest = float(seconds.max(initial=0.0))
    if not longest * 1000.0 < np.finfo(np.float32).max:
        raise TopoplanError(f"flatbuffer: a task takes {longest:g} s, more than the format holds")
    return (seconds * 1000.0).astype("<f4")


def _rows(columns: Columns, count: int) -> Rows:
    """Make the one vector of tables that a field of the root table holds."""
    return Rows(np.array([0, count]), columns)

"""File columns -> plan: cluster, fabric and task graph of a file of another program.

This module converts milliseconds, bytes/ms and identifiers.  The columns are stored in the task graph (``foreign``), so
that an unchanged plan is written back as it was read.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import Cluster, Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import I64, U64
from topoplan.model.fabric import MOST_NODES
from topoplan_exporter_flatbuffer.links import fabric_of
from topoplan_exporter_flatbuffer.schema import (
    ALLREDUCE,
    BACKWARD,
    BARRIER,
    CPU,
    FORWARD,
    GPU,
    NOMINAL_COMM,
    NW_COMM,
    NW_NOMINAL,
    UPDATE,
    Columns,
    flatten,
)

__all__ = ["FOREIGN", "LATENCY", "RESOURCES", "plan_of"]

#: Keys of `TaskGraph.foreign` that are ours begin with this.
FOREIGN = "flatbuffer."
#: Seconds per link: the file has none; this is FlexNet's default.
LATENCY = 1e-6
#: FlexNet's constant, bytes/ms, for files that leave ``intergpubw`` out.
_INTERGPUBW = 20 * 1024 * 1024
#: DeviceType -> name, of the resources besides GPUs that run one task at a time.
RESOURCES = {CPU: "CPU", 10: "PCI_TO_HOST", 11: "PCI_TO_DEV", 12: "NVLINK"}
#: SimTaskType -> TaskKind, NOMINAL_COMM as on a device that is no network; -1: not accepted.
_KIND = np.full(7, -1, dtype=np.int64)
_KIND[[FORWARD, BACKWARD, UPDATE, BARRIER]] = TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE, TaskKind.BARRIER
_KIND[[NOMINAL_COMM, ALLREDUCE]] = TaskKind.FORWARD, TaskKind.COLLECTIVE


def plan_of(columns: Columns, name: str, size: int) -> Plan:
    """Make a plan of a decoded file.

    Args:
        columns: what `topoplan_exporter_flatbuffer.wire.decode` returns.
        name: for messages.
        size: bytes of the file; it cannot describe more hosts and devices than that.

    Raises:
        TopoplanError: the file says something impossible; the message names the field.
    """
    hosts, per_host, switches = (int(columns[field][0]) for field in ("nnode", "ngpupernode", "nswitch"))
    if hosts < 1 or per_host < 1:
        raise TopoplanError(f"{name}: nnode {hosts}, ngpupernode {per_host} (both must be at least 1)")
    if hosts * per_host > size or hosts + switches > MOST_NODES:  # switches need no links, hosts have devices
        raise TopoplanError(
            f"{name}: nnode {hosts} x ngpupernode {per_host}, nswitch {switches}: too many for {size} bytes (nodes: at "
            f"most {MOST_NODES})"
        )
    bandwidth = _bytes_per_second(columns, "netbw", name)
    fabric = fabric_of(columns, hosts, switches, bandwidth, LATENCY, name)
    devices = _devices(columns["devices"].values, hosts, per_host, hosts + switches, name)
    taskgraph = _taskgraph(columns, devices, hosts * per_host, per_host, name)

    links_out = np.bincount(fabric.link_src, weights=fabric.link_count, minlength=hosts)[:hosts]
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=per_host,
        inside_bandwidth=_bytes_per_second(columns, "intergpubw", name, absent=_INTERGPUBW),
        interface_bandwidth=bandwidth,
        latency=LATENCY,
    )
    cluster = attrs.evolve(cluster, interfaces=np.clip(links_out, 1, 2**31 - 1))
    return Plan(cluster=_with_resources(cluster, devices.extra), fabric=fabric, taskgraph=taskgraph)


def _bytes_per_second(columns: Columns, field: str, name: str, absent: float = 0.0) -> float:
    value = float(columns[field][0]) or absent
    if not 0 < value < float("inf"):
        raise TopoplanError(f"{name}: {field}: {value} bytes/ms (must be positive and finite)")
    return value * 1000.0


@attrs.frozen(eq=False)
class _Devices:
    """Rows of the device table, resolved.

    Attributes:
        deviceid: (k,) key of each row.
        number: (k,) device of a row that computes, -1 for a network device.
        src, dst: (k,) hosts of a network device, -1 otherwise.
        extra: kinds of the devices that are no GPU; they are numbered after all GPUs.
    """

    deviceid: U64
    number: I64
    src: I64
    dst: I64
    extra: tuple[str, ...]


def _devices(table: Columns, hosts: int, per_host: int, nodes: int, name: str) -> _Devices:
    kind, key, memory = table["type"], table["deviceid"], table["deviceproperty"]
    _unique(key, "devices", "deviceid", name)
    network = (kind == NW_COMM) | (kind == NW_NOMINAL)
    resource = np.isin(kind, list(RESOURCES))
    gpu = kind == GPU
    _refuse(
        ~(network | resource | gpu),
        "devices",
        "type",
        kind,
        "GPU 0, CPU 1, PCI 10 and 11, NVLINK 12, network 13 and 14",
        name,
    )
    gpus = hosts * per_host
    _refuse(gpu & (memory >= gpus), "devices", "deviceproperty", memory, f"a GPU below {gpus}", name)
    if len(np.unique(memory[gpu])) < gpu.sum():
        raise TopoplanError(f"{name}: devices.deviceproperty: a GPU number occurs twice")
    outside = (memory // np.uint64(nodes) >= hosts) | (memory % np.uint64(nodes) >= hosts)
    _refuse(network & outside, "devices", "deviceproperty", memory, f"source host * {nodes} + destination host", name)
    number = np.full(len(kind), -1, dtype=np.int64)
    number[gpu] = memory[gpu].astype(np.int64)
    number[resource] = gpus + np.arange(resource.sum())
    src, dst = np.full((2, len(kind)), -1, dtype=np.int64)
    src[network], dst[network] = np.divmod(memory[network].astype(np.int64), nodes)
    return _Devices(key, number, src, dst, tuple(RESOURCES[k] for k in kind[resource].tolist()))


def _with_resources(cluster: Cluster, extra: tuple[str, ...]) -> Cluster:
    """Append devices that are no GPUs.  They only compute, so any host will do: the last one."""
    more = len(extra)
    return attrs.evolve(
        cluster,
        device_host=np.append(cluster.device_host, np.full(more, cluster.n_hosts - 1)),
        device_preset=cluster.device_preset + extra,
        device_speed=np.append(cluster.device_speed, np.ones(more)),
        device_memory=np.append(cluster.device_memory, np.full(more, cluster.device_memory[-1])),
    )


def _taskgraph(columns: Columns, devices: _Devices, gpus: int, per_host: int, name: str) -> TaskGraph:
    table = columns["tasks"].values
    kind, key, runtime, size = table["type"], table["taskid"], table["runtime"], table["xfersize"]
    _unique(key, "tasks", "taskid", name)
    is_known = (kind >= 0) & (kind < len(_KIND))
    task_kind = _KIND[np.where(is_known, kind, 2)]
    _refuse(task_kind < 0, "tasks", "type", kind, "0, 1, 3, 4, 5 or 6", name)
    _refuse(~np.isfinite(runtime) | (runtime < 0), "tasks", "runtime", runtime, "ms, finite and not negative", name)
    _refuse(size > np.uint64(2**63 - 1), "tasks", "xfersize", size, "bytes below 2^63", name)

    ring = kind == ALLREDUCE
    row = np.full(len(kind), -1, dtype=np.int64)
    row[~ring] = _resolve(devices.deviceid, table["deviceid"], ~ring, "deviceid", "devices", name)
    on_network = (row >= 0) & (devices.src[row] >= 0) if len(devices.src) else row >= 0
    transfer = on_network & (kind == NOMINAL_COMM)
    _refuse(on_network & ~transfer, "tasks", "type", kind, "5 on a network device", name)
    task_kind = np.where(transfer, TaskKind.TRANSFER, task_kind)

    successors = table["nexttasks"]
    length = np.diff(successors.ptr)
    of_ring = np.repeat(ring, length)
    member = successors.values[of_ring]
    if len(member) and member.max() >= gpus:
        raise TopoplanError(
            f"{name}: tasks.nexttasks: an all-reduce names member {member.max()} (must be below {gpus})"
        )
    compute = ~(ring | transfer)
    taskgraph = TaskGraph(
        kind=task_kind,
        device=np.where(compute, devices.number[row], -1) if len(devices.number) else row,
        seconds=np.where(transfer, 0.0, runtime.astype(np.float64) / 1000.0),
        size=np.where(compute, 0, size.astype(np.int64)),
        # A file names hosts; messages leave from the first device of a host.
        src=np.where(transfer, devices.src[row] * per_host, -1) if len(devices.src) else row,
        dst=np.where(transfer, devices.dst[row] * per_host, -1) if len(devices.dst) else row,
        group=np.where(ring, np.cumsum(ring) - 1, -1),
        group_ptr=np.concatenate([[0], np.cumsum(length[ring])]),
        group_members=member.astype(np.int64),
        succ_ptr=np.concatenate([[0], np.cumsum(np.where(ring, 0, length))]),
        succ=_resolve(key, successors.values, ~of_ring, "nexttasks", "tasks", name),
        op=np.full(len(kind), -1),
        op_names=columns["ops"].values["name"],
        n_devices=gpus + len(devices.extra),
        foreign=flatten(columns, FOREIGN),
    )
    taskgraph.check(name)
    return taskgraph


def _resolve(keys: U64, references: U64, mask: NDArray[np.bool_], field: str, table: str, name: str) -> I64:
    """Rows of ``keys`` that hold the masked elements of ``references``."""
    targets = references[mask]
    if not len(targets):
        return np.empty(0, dtype=np.int64)
    order = np.argsort(keys)
    place = np.minimum(np.searchsorted(keys, targets, sorter=order), len(keys) - 1)
    bad = np.arange(len(targets)) if not len(keys) else np.flatnonzero(keys[order[place]] != targets)
    if len(bad):
        raise TopoplanError(f"{name}: tasks.{field}: {targets[bad[0]]} is in no row of {table}")
    return order[place]


def _unique(key: U64, table: str, field: str, name: str) -> None:
    order = np.argsort(key, kind="stable")
    twice = np.flatnonzero(key[order][1:] == key[order][:-1])
    if len(twice):
        duplicate = order[twice[0] + 1]
        raise TopoplanError(f"{name}: {table}[{duplicate}].{field}: {key[duplicate]} occurs twice (must be unique)")


def _refuse(bad: NDArray[np.bool_], table: str, field: str, values: NDArray[np.generic], right: str, name: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        raise TopoplanError(f"{name}: {table}[{rows[0]}].{field}: {values[rows[0]]} (must be {right})")

"""Machines: kinds of device, and what is inside a host that holds them.

A `topoplan.plugin.components.Machine` describes one; a `Cluster` has the devices of all machines that are known, so
that estimators look their figures up there.  Units are seconds, bytes, bytes/s and FLOP/s.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Literal

import attrs

from topoplan.arrays import FrozenMapping
from topoplan.errors import TopoplanError, nearest, shown

__all__ = ["Device", "HostLink", "HostModel", "HostNode", "nearest_device"]


def nearest_device(name: str, names: Iterable[str]) -> str:
    """Return a hint for a kind of device that is not known: a name like it, unless it is that of another device.

    Which devices there are is known to `topoplan_engine.device_names`, where that is installed.
    """
    try:
        hint: str = import_module("topoplan_engine.device_names").nearest_device(name, names)
    except ModuleNotFoundError:
        return nearest(name, names)
    return hint


@attrs.frozen(kw_only=True)
class Device:
    """One kind of accelerator.  Its arithmetic peaks are dense: without structured sparsity.

    Attributes:
        name: as plans and messages write it, e.g. ``A100-40``.
        peak_flops: precision (``fp32``, ``tf32``, ``bf16``, ``fp16``, ``fp8``) -> FLOP/s; one that is missing is not
            supported.
        memory_bandwidth: bytes/s of the device memory.
        memory: bytes of the device memory (a GB of a data sheet is 1e9 bytes).
        kernel_overhead: seconds that the smallest kernel takes.
        matmul_efficiency: precision -> share of that peak that the best matrix product reaches which was measured; a
            precision that is missing was not measured.
        sources: where the figures come from.
    """

    name: str
    peak_flops: Mapping[str, float] = attrs.field(converter=FrozenMapping)
    memory_bandwidth: float
    memory: float
    kernel_overhead: float
    matmul_efficiency: Mapping[str, float] = attrs.field(factory=dict, converter=FrozenMapping)
    sources: tuple[str, ...] = ()


class HostNode(StrEnum):
    """What links inside a host join: a switch is one of devices (NVSwitch), and all that work side by side are one."""

    DEVICE = "device"
    SWITCH = "switch"
    PCIE = "pcie"
    CPU = "cpu"
    NIC = "nic"


@attrs.frozen
class HostLink:
    """A link inside a host, which carries ``bandwidth`` bytes/s each way, ``latency`` seconds after they were sent."""

    first: int
    second: int
    bandwidth: float
    latency: float = 0.0


def _nodes(names: Iterable[str]) -> tuple[HostNode, ...]:
    kinds = {node.value: node for node in HostNode}
    for name in names:
        if name not in kinds:
            raise TopoplanError(f"machine: {shown(name)} is no node of a host (expected {', '.join(kinds)})")
    return tuple(kinds[name] for name in names)


@attrs.frozen(kw_only=True)
class HostModel:
    """A kind of host: equal devices, network interfaces (NICs), and what joins them.

    Attributes:
        device: what its devices are; None where that is for the cluster to say.
        nodes: what is inside: devices, switches, CPUs, NICs; empty where only the device is known.
        links: between two of the nodes, each of which they name by its position.
        nic_bandwidth: bytes/s of each NIC, each way.
        nic_owners: of each NIC, the devices that it belongs to, as places among the devices; none of a NIC that is the
            host's, and of all NICs unless given.
        cross_rail: how messages reach a GPU whose NIC is on another rail: over NVLink to the GPU of their own host
            whose NIC is nearer, as NCCL's PXN does it, or by the switches of the fabric alone.
        servers: how many of them there are, where a description says it.
        sources: where the figures come from.
    """

    device: Device | None
    nodes: tuple[HostNode, ...] = attrs.field(default=(), converter=_nodes)
    links: tuple[HostLink, ...] = ()
    nic_bandwidth: float = 0.0
    nic_owners: tuple[tuple[int, ...], ...] = ()
    cross_rail: Literal["nvlink", "fabric"] = "nvlink"
    servers: int | None = None
    sources: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        name = f"machine {self.device.name!r}" if self.device else "machine"
        for link in self.links:
            if not (0 <= link.first < len(self.nodes) and 0 <= link.second < len(self.nodes) and link.bandwidth > 0):
                raise TopoplanError(f"{name}: {shown(link)} joins no two of its nodes")
        if self.nic_owners and len(self.nic_owners) != self.n_nics:
            raise TopoplanError(f"{name}: owners of {len(self.nic_owners)} NICs, but {self.n_nics} NICs")
        for owner in itertools.chain(*self.nic_owners):
            if not 0 <= owner < self.n_devices:
                raise TopoplanError(f"{name}: a NIC belongs to device {owner} of {self.n_devices}")
        if self.n_nics and not self.nic_bandwidth > 0:
            raise TopoplanError(f"{name}: nic_bandwidth is {self.nic_bandwidth} bytes/s (NICs have one above 0)")

    @property
    def n_devices(self) -> int:
        """Devices that are nodes."""
        return self.nodes.count(HostNode.DEVICE)

    @property
    def n_nics(self) -> int:
        """NICs that are nodes."""
        return self.nodes.count(HostNode.NIC)

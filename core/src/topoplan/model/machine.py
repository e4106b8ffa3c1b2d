"""Machines: kinds of device, and what is inside a host that holds them.

A `topoplan.plugin.components.Machine` describes one; a `Cluster` has the devices of all machines that are known, so
that estimators look their figures up there.  Units are seconds, bytes, bytes/s and FLOP/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import attrs

from topoplan.arrays import FrozenMapping
from topoplan.errors import TopoplanError, shown

__all__ = ["Device", "HostLink", "HostModel", "HostNode"]


@attrs.frozen(kw_only=True)
class Device:
    """One kind of accelerator.  Its arithmetic peaks are dense: without structured sparsity.

    Attributes:
        name: as plans and messages write it, e.g. ``A100-40``.
        peak_flops: precision (``fp32``, ``tf32``, ``bf16``, ``fp16``) -> FLOP/s; a precision that is missing is not
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
    """What links inside a host join."""

    DEVICE = "device"
    SWITCH = "switch"
    NIC = "nic"


@attrs.frozen
class HostLink:
    """A link inside a host, which carries ``bandwidth`` bytes/s each way, ``latency`` seconds after they were sent."""

    first: int
    second: int
    bandwidth: float
    latency: float = 0.0


@attrs.frozen(kw_only=True)
class HostModel:
    """A kind of host: equal devices, and what joins them.

    Attributes:
        device: what its devices are.
        nodes: what is inside: devices, switches, network interfaces; empty where only the device is known.
        links: between two of the nodes, each of which they name by its position.
    """

    device: Device
    nodes: tuple[HostNode, ...] = ()
    links: tuple[HostLink, ...] = ()

    def __attrs_post_init__(self) -> None:
        for link in self.links:
            if not (0 <= link.first < len(self.nodes) and 0 <= link.second < len(self.nodes) and link.bandwidth > 0):
                raise TopoplanError(f"machine {self.device.name!r}: {shown(link)} joins no two of its nodes")

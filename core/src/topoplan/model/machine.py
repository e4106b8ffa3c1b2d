"""Machines: kinds of device, and what is inside a host that holds them.

A `topoplan.plugin.components.Machine` describes one; a `Cluster` has the devices of all machines that are known, so
that estimators look their figures up there.  Units are seconds, bytes, bytes/s and FLOP/s.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

import attrs

from topoplan.arrays import FrozenMapping
from topoplan.errors import TopoplanError, nearest, shown

__all__ = ["Device", "HostLink", "HostModel", "HostNode", "nearest_device"]

#: Accelerators that are sold: none of these names is a misspelling of another one.
_SOLD = (
    # of NVIDIA
    *("a2", "a10", "a10g", "a16", "a30", "a40", "a100", "a800", "b100", "b200", "b300", "gb200", "gb300", "gh200"),
    *("h20", "h100", "h200", "h800", "l2", "l4", "l20", "l40", "l40s", "k80", "m40", "p4", "p40", "p100", "t4", "v100"),
    *("rtx3090", "rtx4090", "rtx5090", "rtx6000", "3090", "4090", "5090", "a4000", "a5000", "a6000"),
    # of AMD
    *("mi50", "mi60", "mi100", "mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"),
    # of others
    *("gaudi", "gaudi2", "gaudi3", "tpuv2", "tpuv3", "tpuv4", "tpuv5e", "tpuv5p", "tpuv6e"),
    *("trainium", "trainium2", "trainium3", "ascend910", "ascend910b"),
)
#: Words after the name of a device that make it another one: with other rates, or a part of it.
_FORMS = ("pci", "nvl", "cnx", "mig", "ultra", "s", "x")


def nearest_device(name: str, names: Iterable[str]) -> str:
    """Return a hint for a kind of device that is not known: a name like it, or those there are and how to describe one.

    Another device's name gets no hint: one that is sold, one whose number is not that of the name like it, or one that
    adds a form or a memory to it, such as ``h100-pcie`` and ``h100-96``.

    Args:
        name: as it was typed.
        names: that are known.
    """
    devices = list(names)
    hint = nearest(name, devices)
    like = re.search(r"did you mean '(.+)'", hint)
    variants = [each for each in devices if each.lower().startswith(f"{name.lower()}-")]
    if variants or (like is not None and not _is_other(name, like[1])):
        return hint
    return (
        f" (have: {', '.join(sorted(devices))}; of another device say speed, beside a name that is known, and "
        "memory-gb, or -e roofline:compute-tflops=…,memory-gb-per-s=…)"
    )


def _is_other(name: str, like: str) -> bool:
    """Whether a name is that of another device than the one that it resembles."""
    if re.sub(r"[^a-z0-9]", "", name.lower()) in _SOLD:
        return True
    added = name.lower().removeprefix(like.lower())
    if added != name.lower() and (
        any(word.startswith(_FORMS[:-2]) or word in _FORMS for word in re.findall("[a-z]+", added))
        or re.search(r"\d\d", added)
    ):
        return True
    first, second = (re.search(r"\d+", text) for text in (name, like))
    if first is None or second is None:
        return False
    return not (first[0].startswith(second[0]) or second[0].startswith(first[0]))


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
    nodes: tuple[HostNode, ...] = ()
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

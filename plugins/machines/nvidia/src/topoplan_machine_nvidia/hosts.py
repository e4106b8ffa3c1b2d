"""Hosts of NVIDIA: eight GPUs on NVSwitches, PCIe switches and two CPUs, or a rack whose 72 GPUs share NVSwitches.

NVLink stripes every message of a GPU over all of its links, which are spread over all NVSwitches of the host: these are
one node, and a GPU has one link to it, of the rate of all of its NVLinks.
"""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import HostModel, HostNode, Machine, option
from topoplan_host_models import PCIE_4, PCIE_5, HostBuilder, server
from topoplan_machine_nvidia.devices import BY_NAME

__all__ = ["HOSTS"]

_PCIE_SOURCE = "PCIe: 16 lanes of 16 GT/s (4.0) or 32 GT/s (5.0), with 128 of 130 bits for data"
_SOCKET_SOURCE = "between CPUs: NVIDIA/nccl@5067397c, src/graph/topo.h, what NCCL assumes"


@attrs.frozen(kw_only=True)
class _Host(Machine):
    """What users may say of every host."""

    cross_rail: Literal["nvlink", "fabric"] = option(
        "nvlink", help="how messages reach a GPU on another rail: over NVLink first (PXN), or by the fabric's switches"
    )

    def _dgx(
        self, device: str, *, nvlink: float, nic: float, slot: float, between_sockets: float, sources: tuple[str, ...]
    ) -> HostModel:
        """Return eight GPUs with a NIC each, two of both below a PCIe switch."""
        host = HostBuilder()
        gpus, switch = host.devices(8), host.add(HostNode.SWITCH)
        host.link(gpus, [switch] * 8, nvlink)
        server(host, gpus, n_nics=8, slot=slot, per_switch=2, between_sockets=between_sockets)
        return host.build(
            BY_NAME[device],
            nic_bandwidth=nic,
            cross_rail=self.cross_rail,
            sources=(*sources, _PCIE_SOURCE, _SOCKET_SOURCE),
        )


@attrs.frozen(kw_only=True)
class DgxA100(_Host):
    """NVIDIA DGX A100: 8 A100 of 80 GB on 6 NVSwitches (300 GB/s each way), 8 NICs of 200 Gb/s."""

    name = "dgx-a100"

    def build(self) -> HostModel:
        """Return the host."""
        sources = (
            "NVIDIA DGX A100 System Architecture white paper: 12 NVLinks of 25 GB/s each way, 8 ConnectX-6 of 200 "
            "Gb/s, two GPUs and two of them below each of 4 PCIe 4.0 switches, 2 AMD CPUs",
        )
        return self._dgx("a100-80", nvlink=12 * 25e9, nic=25e9, slot=PCIE_4, between_sockets=16e9, sources=sources)


@attrs.frozen(kw_only=True)
class DgxH100(_Host):
    """NVIDIA DGX H100: 8 H100 on 4 NVSwitches (450 GB/s each way), 8 NICs of 400 Gb/s."""

    name = "dgx-h100"

    def build(self) -> HostModel:
        """Return the host."""
        sources = (
            "NVIDIA DGX H100 User Guide: 18 NVLinks of 25 GB/s each way, 8 ConnectX-7 of 400 Gb/s, one for each GPU "
            "(table of network modules), PCIe 5.0, 2 Intel CPUs of the fourth generation",
        )
        return self._dgx("h100", nvlink=18 * 25e9, nic=50e9, slot=PCIE_5, between_sockets=22e9, sources=sources)


@attrs.frozen(kw_only=True)
class DgxH200(_Host):
    """NVIDIA DGX H200: 8 H200 on 4 NVSwitches (450 GB/s each way), 8 NICs of 400 Gb/s."""

    name = "dgx-h200"

    def build(self) -> HostModel:
        """Return the host."""
        sources = ("NVIDIA DGX H100/H200 User Guide: as DGX H100, with H200",)
        return self._dgx("h200", nvlink=18 * 25e9, nic=50e9, slot=PCIE_5, between_sockets=22e9, sources=sources)


@attrs.frozen(kw_only=True)
class DgxB200(_Host):
    """NVIDIA DGX B200: 8 B200 on 2 NVSwitches (900 GB/s each way), 8 NICs of 400 Gb/s."""

    name = "dgx-b200"

    def build(self) -> HostModel:
        """Return the host."""
        sources = (
            "NVIDIA DGX B200 data sheet and User Guide: 18 NVLinks of 50 GB/s each way, 8 ConnectX-7 of 400 Gb/s, PCIe "
            "5.0, 2 Intel CPUs of the fifth generation",
        )
        return self._dgx("b200", nvlink=18 * 50e9, nic=50e9, slot=PCIE_5, between_sockets=40e9, sources=sources)


@attrs.frozen(kw_only=True)
class HgxH800(_Host):
    """Eight NVIDIA H800 on NVSwitches (200 GB/s each way), 8 NICs of 400 Gb/s."""

    name = "hgx-h800"

    def build(self) -> HostModel:
        """Return the host."""
        sources = (
            "DeepSeek-V3's report (arXiv 2412.19437) section 3.1: NVLink and NVSwitch inside nodes of eight; section "
            "3.2: 160 GB/s of NVLink, 50 GB/s of InfiniBand; 400 GB/s both ways by data sheet",
        )
        return self._dgx("h800", nvlink=200e9, nic=50e9, slot=PCIE_5, between_sockets=22e9, sources=sources)


@attrs.frozen(kw_only=True)
class DgxB300(_Host):
    """NVIDIA DGX B300: 8 B300 on 2 NVSwitches (900 GB/s each way), 8 NICs of 800 Gb/s."""

    name = "dgx-b300"

    def build(self) -> HostModel:
        """Return the host."""
        sources = (
            "NVIDIA DGX B300 data sheet: 14.4 TB/s of NVLink, 8 ConnectX-8 of 800 Gb/s, 2 Intel CPUs; PCIe 6.0 between "
            "a GPU and its NIC, as ConnectX-8 has it",
        )
        return self._dgx("b300", nvlink=18 * 50e9, nic=100e9, slot=2 * PCIE_5, between_sockets=40e9, sources=sources)


@attrs.frozen(kw_only=True)
class _Nvl72(_Host):
    """A rack of 72 GPUs: 18 trays of two superchips, each of a Grace CPU, two GPUs and their NICs."""

    gpus: int = option(
        72, help="GPUs of a rack that run, of the first superchips; jobs often take 64", minimum=1, maximum=72
    )

    def _rack(self, device: str, *, nic: float, slot: float, sources: tuple[str, ...]) -> HostModel:
        host = HostBuilder()
        gpus, switch = host.devices(self.gpus), host.add(HostNode.SWITCH)
        host.link(gpus, [switch] * self.gpus, 18 * 50e9)
        for first in range(0, self.gpus, 2):
            cpu, pair = host.add(HostNode.CPU), gpus[first : first + 2]
            host.link(pair, [cpu] * len(pair), 450e9 / 2)
            nics = [host.nic([gpu]) for gpu in pair]
            host.link(nics, [cpu] * len(pair), slot)
        return host.build(
            BY_NAME[device], nic_bandwidth=nic, cross_rail=self.cross_rail, sources=(*sources, _PCIE_SOURCE)
        )


@attrs.frozen(kw_only=True)
class Gb200Nvl72(_Nvl72):
    """NVIDIA GB200 NVL72: a rack of 72 GPUs on 18 NVSwitches (900 GB/s each way), 72 NICs of 400 Gb/s.

    The rack is one host: all of its GPUs reach each other over NVLink.  A Grace CPU has two of them, and their NICs.
    """

    name = "gb200-nvl72"

    def build(self) -> HostModel:
        """Return the rack."""
        sources = (
            "NVIDIA GB200 NVL72 data sheet: 36 Grace CPUs, 72 GPUs, NVLink 130 TB/s, which is 900 GB/s a GPU each "
            "way; NVLink-C2C of 900 GB/s both ways for each CPU with its two GPUs",
            "NVIDIA GB200 NVL Multi-Node Tuning Guide: 18 compute trays of 4 GPUs, 4 ConnectX-7 each, 9 trays of 2 "
            "NVSwitches",
        )
        return self._rack("gb200", nic=50e9, slot=PCIE_5, sources=sources)


@attrs.frozen(kw_only=True)
class Gb300Nvl72(_Nvl72):
    """NVIDIA GB300 NVL72: a rack of 72 GPUs on 18 NVSwitches (900 GB/s each way), 72 NICs of 800 Gb/s."""

    name = "gb300-nvl72"

    def build(self) -> HostModel:
        """Return the rack."""
        sources = (
            "NVIDIA GB300 NVL72 data sheet: 36 Grace CPUs, 72 GPUs, NVLink 130 TB/s, a ConnectX-8 of 800 Gb/s for each "
            "GPU; what is inside a tray is that of GB200 NVL72, with PCIe 6.0 at the NICs",
        )
        return self._rack("gb300", nic=100e9, slot=2 * PCIE_5, sources=sources)


HOSTS: list[type[Machine]] = [DgxA100, DgxH100, DgxH200, HgxH800, DgxB200, DgxB300, Gb200Nvl72, Gb300Nvl72]

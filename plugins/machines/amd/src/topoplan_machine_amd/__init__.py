"""Machines of AMD: MI300X, eight in a full mesh."""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import Device, HostModel, Machine, hookimpl, option
from topoplan_host_models import PCIE_5, HostBuilder, join_all, server

__all__ = ["DEVICES", "Mi300x", "topoplan_machines"]

DEVICES = (
    Device(
        name="MI300X",
        peak_flops={"fp32": 163.4e12, "tf32": 653.7e12, "bf16": 1307.4e12, "fp16": 1307.4e12},
        memory_bandwidth=5.3e12,
        memory=192e9,
        kernel_overhead=4e-6,
        matmul_efficiency={"bf16": 668.0 / 1300, "fp16": 668.0 / 1300},
        sources=(
            "AMD Instinct MI300X data sheet, without sparsity",
            "best matrix product, bf16: stas00/ml-engineering@744d01e18b79, compute/accelerator/README.md; fp16 has "
            "the same units and peak",
            "kernel overhead: not measured, as that of A100 in FlexNet's (TopoOpt, NSDI'23) measurements",
        ),
    ),
)


@attrs.frozen(kw_only=True)
class Mi300x(Machine):
    """AMD MI300X: 192 GB at 5.3 TB/s; eight in a mesh of 64 GB/s links each way, 8 NICs of 400 Gb/s."""

    name = "mi300x"

    cross_rail: Literal["nvlink", "fabric"] = option(
        "nvlink",
        help="how messages reach a GPU on another rail: over the mesh first, or by the fabric's switches",
    )

    def build(self) -> HostModel:
        """Return the platform of eight."""
        host = HostBuilder()
        gpus = host.devices(8)
        join_all(host, gpus, 64e9)
        server(host, gpus, n_nics=8, slot=PCIE_5, per_switch=1, between_sockets=16e9)
        return host.build(
            DEVICES[0],
            nic_bandwidth=50e9,
            cross_rail=self.cross_rail,
            sources=(
                "AMD Instinct MI300X Platform data sheet: 7 Infinity Fabric links of a GPU, 128 GB/s both ways each, "
                "PCIe 5.0 x16",
                "NICs: servers of the platform have one of 400 Gb/s for each GPU behind its PCIe switch",
                "between CPUs: NVIDIA/nccl@5067397c, src/graph/topo.h, AMD_BW",
            ),
        )


@hookimpl
def topoplan_machines() -> type[Machine]:
    """Return AMD's machine."""
    return Mi300x

"""A plain server: GPUs on PCIe slots, and NICs that are the host's."""

from __future__ import annotations

import attrs

from topoplan import HostModel, Machine, TopoplanError, hookimpl, option
from topoplan_host_models import HostBuilder, pcie, server

__all__ = ["Server", "topoplan_machines"]

#: GT/s of a lane of the third generation; each one after it doubles them.
_THIRD = 8.0


@attrs.frozen(kw_only=True)
class Server(Machine):
    """GPUs on the PCIe slots of two CPUs, without NVLink, and NICs that all of them share; --device says which GPUs."""

    name = "server"

    gpus: int = option(4, help="GPUs of a host", minimum=1, maximum=64)
    nics: int = option(1, help="NICs of a host, at the CPUs in turn", minimum=1, maximum=64)
    nic_gbps: float = option(100.0, help="of a NIC", unit="Gbps", above=0, maximum=1e9)
    pcie_generation: int = option(4, help="of the slots, which have 16 lanes", minimum=3, maximum=6)
    sockets: int = option(2, help="CPUs", minimum=1, maximum=8)
    between_sockets_gb_per_s: float = option(
        22.0, help="from a CPU to another, each way", unit="GB/s", above=0, maximum=1e9
    )

    def build(self) -> HostModel:
        """Return the host."""
        if self.sockets > self.gpus:
            raise TopoplanError(f"machine server: {self.sockets} sockets for {self.gpus} GPUs (at most one for each)")
        host = HostBuilder()
        server(
            host,
            host.devices(self.gpus),
            n_nics=self.nics,
            slot=pcie(_THIRD * 2 ** (self.pcie_generation - 3)),
            per_switch=0,
            between_sockets=self.between_sockets_gb_per_s * 1e9,
            sockets=self.sockets,
            owned=False,
        )
        return host.build(
            nic_bandwidth=self.nic_gbps / 8 * 1e9,
            cross_rail="fabric",
            sources=(
                "PCIe: 16 lanes of 8 GT/s in the third generation and twice as much in each that follows, with 128 of "
                "130 bits for data",
                "between CPUs, unless given: NVIDIA/nccl@5067397c, src/graph/topo.h, SRP_QPI_BW",
            ),
        )


@hookimpl
def topoplan_machines() -> type[Machine]:
    """Return the machine."""
    return Server

"""Machines of NVIDIA: accelerators, V100 to GB300, and the hosts that hold them, DGX A100 to GB300 NVL72."""

from __future__ import annotations

from topoplan import Machine, hookimpl
from topoplan_machine_nvidia.devices import DEVICES, KINDS
from topoplan_machine_nvidia.hosts import HOSTS

__all__ = ["DEVICES", "HOSTS", "KINDS", "MACHINES", "topoplan_machines"]

MACHINES: list[type[Machine]] = [*KINDS, *HOSTS]


@hookimpl
def topoplan_machines() -> list[type[Machine]]:
    """Return NVIDIA's machines."""
    return MACHINES

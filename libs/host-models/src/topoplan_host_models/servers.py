"""Servers of two sockets, as most that hold accelerators are: PCIe switches with devices and NICs below each CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from topoplan import HostNode
from topoplan_host_models.builder import HostBuilder

__all__ = ["PCIE_4", "PCIE_5", "join_all", "pcie", "server"]


def pcie(gigatransfers: float, lanes: int = 16) -> float:
    """Return bytes/s of a PCIe slot each way: lanes of so many GT/s, with 128 of 130 bits for data (since 3.0).

    >>> f"{pcie(16):.4g}, {pcie(32):.4g}"
    '3.151e+10, 6.302e+10'
    """
    return lanes * gigatransfers * 1e9 * 128 / 130 / 8


PCIE_4, PCIE_5 = pcie(16), pcie(32)


def server(
    host: HostBuilder,
    devices: Sequence[int],
    *,
    n_nics: int,
    slot: float,
    per_switch: int,
    between_sockets: float,
    sockets: int = 2,
    owned: bool = True,
) -> None:
    """Put devices on PCIe switches below the CPUs, and NICs beside them.

    Args:
        host: which has the devices.
        devices: numbers of these.
        n_nics: NICs in all.
        slot: bytes/s of a slot each way.
        per_switch: devices below one PCIe switch; 0 for slots at the CPUs themselves.
        between_sockets: bytes/s from one CPU to another.
        sockets: CPUs, each with as many of the devices, or one more.
        owned: each NIC belongs to the devices whose numbers are next to its own, else all are the host's.
    """
    cpus = [host.add(HostNode.CPU) for _ in range(sockets)]
    for first, second in combinations(cpus, 2):
        host.link([first], [second], between_sockets)
    below = [cpus[place * sockets // len(devices)] for place in range(len(devices))]
    if per_switch:
        for first in range(0, len(devices), per_switch):
            switch = host.add(HostNode.PCIE)
            host.link([switch], [below[first]], slot)
            for place in range(first, min(first + per_switch, len(devices))):
                below[place] = switch
    host.link(devices, below, slot)
    for number in range(n_nics):
        owners = [device for place, device in enumerate(devices) if place * n_nics // len(devices) == number]
        nic = host.nic(owners if owned else ())
        place = min(-(-number * len(devices) // n_nics), len(devices) - 1)
        host.link([nic], [below[place]], slot)


def join_all(host: HostBuilder, devices: Sequence[int], bandwidth: float) -> None:
    """Join any two devices by a link of their own."""
    for first, second in combinations(devices, 2):
        host.link([first], [second], bandwidth)

"""Hosts, node by node: what machines are described with.

A `HostBuilder` adds nodes and links, and gives a `topoplan.HostModel`; `server` puts devices and NICs on PCIe switches
and CPUs, as servers have them.
"""

from __future__ import annotations

from topoplan_host_models.builder import HostBuilder
from topoplan_host_models.servers import PCIE_4, PCIE_5, join_all, pcie, server

__all__ = ["PCIE_4", "PCIE_5", "HostBuilder", "join_all", "pcie", "server"]

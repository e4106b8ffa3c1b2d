"""Hosts that are built node by node, and servers with PCIe switches and CPUs."""

from __future__ import annotations

import pytest

from topoplan import HostNode, TopoplanError
from topoplan_host_models import PCIE_4, PCIE_5, HostBuilder, join_all, server


def built(n_devices, **options):
    host = HostBuilder()
    devices = host.devices(n_devices)
    defaults = {"n_nics": n_devices, "slot": 1.0, "per_switch": 2, "between_sockets": 9.0}
    server(host, devices, **{**defaults, **options})
    return host.build(nic_bandwidth=2.0)


def beside(model, node):
    ends = [(link.first, link.second) for link in model.links] + [(link.second, link.first) for link in model.links]
    return sorted(far for near, far in ends if near == node)


def test_a_pcie_slot_carries_128_of_130_bits():
    assert pytest.approx(31.508e9, rel=1e-4) == PCIE_4
    assert pytest.approx(63.015e9, rel=1e-4) == PCIE_5


def test_two_devices_and_their_nics_are_below_one_switch():
    model = built(8)
    assert [model.nodes.count(node) for node in HostNode] == [8, 0, 4, 2, 8]
    assert model.nic_owners == tuple((device,) for device in range(8))
    for device in range(8):
        (switch,) = beside(model, device)
        assert model.nodes[switch] is HostNode.PCIE
        nic = [place for place, node in enumerate(model.nodes) if node is HostNode.NIC][device]
        assert beside(model, nic) == [switch]


def test_each_socket_has_its_half_of_the_devices():
    model = built(4, per_switch=0, n_nics=2)
    cpus = [place for place, node in enumerate(model.nodes) if node is HostNode.CPU]
    assert [beside(model, device) for device in range(4)] == [[cpus[0]], [cpus[0]], [cpus[1]], [cpus[1]]]
    assert model.nic_owners == ((0, 1), (2, 3))
    nics = [place for place, node in enumerate(model.nodes) if node is HostNode.NIC]
    assert [beside(model, nic) for nic in nics] == [[cpus[0]], [cpus[1]]]


def test_nics_may_be_the_hosts():
    assert built(4, owned=False, n_nics=1).nic_owners == ((),)


def test_any_two_are_joined_once():
    host = HostBuilder()
    join_all(host, host.devices(8), 64e9)
    assert len(host.build().links) == 28


def test_a_nic_of_no_device_and_one_without_a_rate_are_refused():
    host = HostBuilder()
    (gpu,) = host.devices(1)
    host.nic([gpu])
    with pytest.raises(TopoplanError, match=r"nic_bandwidth is 0.0 bytes/s \(NICs have one above 0\)"):
        host.build()

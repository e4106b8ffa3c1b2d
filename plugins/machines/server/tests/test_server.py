"""Plain servers, and the promises that every machine makes."""

from __future__ import annotations

import pytest

from topoplan import HostNode, TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_machine_server import Server


@parametrize_with_checks(Server)
def test_conformance(check):
    check()


def test_gpus_and_the_nic_are_at_cpus_and_the_nic_is_the_hosts():
    model = Server(gpus=4, nics=1, nic_gbps=200.0, pcie_generation=5).build()
    assert [model.nodes.count(node) for node in HostNode] == [4, 0, 0, 2, 1]
    assert (model.nic_bandwidth, model.nic_owners) == (25e9, ((),))
    assert sorted({round(link.bandwidth / 1e9, 1) for link in model.links}) == [22.0, 63.0]


def test_a_socket_without_a_gpu_is_refused():
    with pytest.raises(TopoplanError, match=r"machine server: 4 sockets for 2 GPUs \(at most one for each\)"):
        Server(gpus=2, sockets=4).build()

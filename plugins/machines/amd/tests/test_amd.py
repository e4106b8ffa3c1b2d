"""The figures of AMD's machine, and the promises that every machine makes."""

from __future__ import annotations

from topoplan import HostNode
from topoplan.testing import parametrize_with_checks
from topoplan_machine_amd import DEVICES, Mi300x


@parametrize_with_checks(Mi300x)
def test_conformance(check):
    check()


def test_data_sheet_figures():
    (device,) = DEVICES
    assert (device.peak_flops["bf16"], device.memory_bandwidth, device.memory) == (1307.4e12, 5.3e12, 192e9)


def test_a_gpu_has_seven_links_to_the_others_and_a_nic_of_its_own():
    model = Mi300x().build()
    for gpu in range(8):
        own = [link for link in model.links if gpu in (link.first, link.second)]
        others = [link for link in own if {model.nodes[link.first], model.nodes[link.second]} == {HostNode.DEVICE}]
        assert sum(link.bandwidth for link in others) == 448e9
    assert model.nic_owners == tuple((gpu,) for gpu in range(8))
    assert model.nic_bandwidth == 50e9

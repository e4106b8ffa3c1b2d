"""Machines as values, as components, and as a cluster knows them."""

from __future__ import annotations

import pickle

import attrs
import pytest

from topoplan import Cluster, Device, HostLink, HostModel, HostNode, TopoplanError
from topoplan.testing import reference

A100 = Device(
    name="A100-40",
    peak_flops={"fp32": 19.5e12},
    memory_bandwidth=1555e9,
    memory=40e9,
    kernel_overhead=4e-6,
)
KNOWN = attrs.evolve(
    Cluster.uniform(n_hosts=1),
    machines={"a100-40": HostModel(device=A100), "h100": HostModel(device=attrs.evolve(A100, name="H100"))},
)


def test_case_does_not_matter():
    assert KNOWN.device("a100-40") is KNOWN.device("A100-40") is A100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("A100-4", "'A100-4': .*; did you mean 'A100-40'"),
        ("h10", "mean 'H100'"),
        ("h100-sxm5", "mean 'H100'"),
        ("tpu", "have: A100-40, H100"),
        ("a100", r"no such machine \(have: A100-40\)"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name, message):
    with pytest.raises(TopoplanError, match=message):
        KNOWN.device(name)


@pytest.mark.parametrize(
    "name", ["H20", "h800", "GH200", "H300", "A800-80", "A10", "h100-pcie", "H100 NVL", "h100-96", "h100x"]
)
def test_another_device_is_no_misspelling(name):
    with pytest.raises(
        TopoplanError, match=r"no such machine \(have: A100-40, H100; of another device say speed, .*\)"
    ):
        KNOWN.device(name)


def test_figures_cannot_be_changed():
    with pytest.raises(TypeError):
        A100.peak_flops["fp32"] = 1.0


def test_a_machine_can_be_sent_and_is_no_part_of_the_clusters_identity():
    again = pickle.loads(pickle.dumps(KNOWN))
    assert again.device("a100-40") == A100
    assert hash(again.device("a100-40")) == hash(A100)
    assert Cluster.uniform(n_hosts=1) == KNOWN


def test_what_is_inside_a_host_is_a_graph():
    nodes = (HostNode.DEVICE, HostNode.DEVICE, HostNode.SWITCH, HostNode.NIC)
    links = tuple(HostLink(node, 2, bandwidth=64e9, latency=1e-7) for node in (0, 1, 3))
    assert HostModel(device=A100, nodes=nodes, links=links, nic_bandwidth=12.5e9).links[2].second == 2
    with pytest.raises(TopoplanError, match=r"nic_bandwidth is 0.0 bytes/s \(NICs have one above 0\)"):
        HostModel(device=A100, nodes=nodes, links=links)
    with pytest.raises(TopoplanError, match=r"machine 'A100-40': HostLink\(first=0, second=4"):
        HostModel(device=A100, nodes=nodes, links=(HostLink(0, 4, bandwidth=64e9),))


def test_the_kits_cluster_knows_its_device():
    assert reference.cluster().device("reference").peak_flops["bf16"] > 0

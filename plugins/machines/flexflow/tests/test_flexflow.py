"""Machine-model files of FlexFlow, and the promises that every machine makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import topoplan_machine_flexflow
from topoplan import HostNode, TopologyContext, TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_machine_flexflow import FlexFlow, read_description
from topoplan_samples.tasks import task_graph, transfer
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

EXAMPLE = Path(topoplan_machine_flexflow.__file__).with_name("example.conf")
#: Bytes of FlexFlow's GB: it multiplies by 2**20 and divides by milliseconds (machine_model.cc at b1526834).
GB = 1000 * 2**20


@parametrize_with_checks(FlexFlow)
def test_conformance(check):
    check()


def changed(tmp_path, *changes):
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "machine_config"
    path.write_text(text)
    return FlexFlow(file=str(path)).build()


def between(model, first, second):
    return [link for link in model.links if {link.first, link.second} == {first, second}]


def test_the_gpus_of_a_socket_share_its_way_to_the_cpu():
    model = FlexFlow(file=str(EXAMPLE)).build()
    assert model.servers == 2
    assert [model.nodes.count(node) for node in HostNode] == [4, 0, 2, 2, 1]
    roots = [place for place, node in enumerate(model.nodes) if node is HostNode.PCIE]
    (up,) = between(model, roots[0], 4)
    assert (up.bandwidth, up.latency) == (15 * GB, 1e-6)
    assert all(between(model, gpu, roots[gpu // 2]) for gpu in range(4))


def test_nvlinks_are_where_paths_take_them(tmp_path):
    apart = FlexFlow(file=str(EXAMPLE)).build()
    assert [bool(between(apart, 0, gpu)) for gpu in (1, 2, 3)] == [True, False, False]
    joined = changed(tmp_path, ("gpu_fb_mem = pci_to_host upi pci_to_dev", "gpu_fb_mem = nvlink"))
    assert all(between(joined, 0, gpu) for gpu in (1, 2, 3))


def test_a_nic_for_each_socket_belongs_to_its_gpus(tmp_path):
    assert FlexFlow(file=str(EXAMPLE)).build().nic_owners == ((),)
    model = changed(tmp_path, ("nic_distribution = 0", "nic_distribution = 1"))
    assert model.nic_owners == ((0, 1), (2, 3))
    nic = model.nodes.index(HostNode.NIC)
    (link,) = [link for link in model.links if nic in (link.first, link.second)]
    assert (link.bandwidth, link.latency, model.nic_bandwidth) == (12 * GB, 1e-6, 12 * GB)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_nodes = 2", "num_nodes = 0", "line 2: num_nodes is '0' (expected a number of 1 to 65536)"),
        ("num_nodes = 2", "num_nodes = two", "line 2: num_nodes is 'two' (expected a number of 1 to 65536)"),
        ("pci_latency = 0.001", "pci_latency 0.001", "line 14: 'pci_latency 0.001' is not key = value"),
        ("pci_latency", "pci_latencies", "line 14: no key 'pci_latencies'; did you mean 'pci_latency'?"),
        ("nvlink_bandwidth = 24\n", "", "here: has no nvlink_bandwidth (a machine-model file of FlexFlow says it)"),
        ("nic pci_to_dev", "nics pci_to_dev", "inter_node_gpu_fb_mem_to_gpu_fb_mem: no link 'nics'"),
    ],
)
def test_a_bad_file_is_named_in_one_line(old, new, message):
    text = EXAMPLE.read_text()
    assert old in text
    with pytest.raises(TopoplanError) as caught:
        read_description(text.replace(old, new), "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_message_between_nodes_pays_the_latencies_of_its_path():
    """Of the path ``pci_to_host nic pci_to_dev``: twice that of pci, that of the NIC, and of the two links between."""
    cluster = build_cluster(ClusterOptions(machine=f"flexflow:file={EXAMPLE}", device="V100", latency_us=0.5))
    assert (cluster.n_hosts, cluster.n_devices) == (2, 8)
    fabric = BigSwitch().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    simulate = Fluid().build()
    tiny = simulate.makespan(task_graph([transfer(0, 5, 1)], n_devices=8), fabric, cluster)
    assert tiny == pytest.approx(2 * 1e-6 + 2e-6 + 2 * 0.5e-6, rel=1e-3)
    large = simulate.makespan(task_graph([transfer(0, 5, 1 << 30)], n_devices=8), fabric, cluster)
    assert large == pytest.approx((1 << 30) / (12 * GB) + tiny, rel=1e-3)
    across = simulate.makespan(task_graph([transfer(0, 3, 1 << 30)], n_devices=8), fabric, cluster)
    assert across == pytest.approx((1 << 30) / (10 * GB) + 2 * 1e-6 + 0.5e-6, rel=1e-3), "between sockets over UPI"

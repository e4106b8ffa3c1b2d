"""The promises of a topology; what the file leaves open is the cluster's."""

import json

import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, Fabric, TopologyContext, TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_network_files import infragraph
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_fluid import Fluid
from topoplan_topology_file import File


@parametrize_with_checks(File)
def test_conformance(check):
    check()


def built(path, **cluster):
    context = TopologyContext(cluster=Cluster.uniform(**cluster), demand=None, rng=np.random.default_rng(0))
    return File(path=str(path)).build(context)


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "pair.json"
    path.write_text(json.dumps({"nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1, "count": 2}]}))
    return path


def test_the_cluster_says_what_the_file_does_not(pair):
    fabric = built(pair, n_hosts=2, interface_bandwidth=3e9, latency=7e-6)
    assert fabric.link_bandwidth.tolist() == [6e9, 6e9]
    assert fabric.link_latency.tolist() == [7e-6, 7e-6]
    assert fabric.link_count.tolist() == [2, 2]
    assert fabric.max_paths == 8


@pytest.mark.filterwarnings("ignore:infragraph. the format cannot say:UserWarning")
@pytest.mark.parametrize("suffix", [".json", ".graphml", ".yaml"])
def test_rails_of_a_file_are_those_of_the_topology(tmp_path, suffix):
    """By hand: 2 (n-1)/n S over all eight interfaces, and the latency of two links 2 (n-1) times."""
    cluster = Cluster.uniform(n_hosts=8, interfaces=8, interface_bandwidth=50e9, latency=1e-6)
    graph = nx.Graph()
    graph.add_nodes_from(range(8), kind="host")
    graph.add_nodes_from((f"rail {rail}" for rail in range(8)), kind="switch")
    graph.add_edges_from((host, f"rail {rail}") for host in range(8) for rail in range(8))
    path = tmp_path / f"rails{suffix}"
    if suffix == ".yaml":
        built_in = Fabric.from_networkx(graph, bandwidth=50e9, latency=1e-6, max_paths=8)
        path.write_bytes(infragraph.write(built_in, cluster))
    elif suffix == ".json":
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    else:
        nx.write_graphml(graph, path)
    fabric = built(path, n_hosts=8, interfaces=8, interface_bandwidth=50e9, latency=1e-6)
    tasks = task_graph([collective(range(8), 1 << 30)], n_devices=8)
    by_hand = 2 * 7 / 8 * (1 << 30) / (8 * 50e9) + 2 * 7 * 2e-6
    assert Fluid().build().makespan(tasks, fabric, cluster) == pytest.approx(by_hand, rel=1e-9)


def test_other_hosts_than_the_cluster(pair):
    why = r"2 hosts, but the cluster has 3 \(a network of 3, or a plan for 2 hosts: optimize --servers 2\)"
    with pytest.raises(TopoplanError, match=rf"^topology file: path: {pair}: {why}$"):
        built(pair, n_hosts=3)


def test_no_path():
    with pytest.raises(TopoplanError, match=r"^topology file: path is missing \(write -t file:path=network.json\)$"):
        built("", n_hosts=2)


def test_no_file(tmp_path):
    with pytest.raises(TopoplanError, match=rf"^topology file: path: {tmp_path}/none.json: cannot be read"):
        built(tmp_path / "none.json", n_hosts=2)

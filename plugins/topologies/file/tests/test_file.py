"""The promises of a topology; what the file leaves open is the cluster's."""

import json

import numpy as np
import pytest

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan.testing import parametrize_with_checks
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


def test_other_hosts_than_the_cluster(pair):
    with pytest.raises(
        TopoplanError, match=rf"^{pair}: 2 hosts, but the cluster has 3 \(plan with --servers 2, or take"
    ):
        built(pair, n_hosts=3)


def test_no_path():
    with pytest.raises(TopoplanError, match=r"^topology file: path is missing \(write -t file:path=network.json\)$"):
        built("", n_hosts=2)


def test_no_file(tmp_path):
    with pytest.raises(TopoplanError, match=rf"^{tmp_path}/none.json: cannot be read"):
        built(tmp_path / "none.json", n_hosts=2)

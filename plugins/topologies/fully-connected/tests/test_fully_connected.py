"""Every ordered pair of hosts has one link of the slower interface."""

import attrs
import numpy as np

from topoplan import Cluster, TopologyContext
from topoplan.routing import full_routes
from topoplan_topology_fully_connected import FullyConnectedOptions, build


def make(cluster):
    return build(FullyConnectedOptions(), TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def test_links():
    fabric = make(Cluster.uniform(n_hosts=5, interfaces=1, interface_bandwidth=1e9))
    assert fabric.n_links == 20
    assert set(fabric.link_bandwidth) == {1e9}
    assert np.diff(full_routes(fabric).path_ptr).tolist() == [1] * 20


def test_the_slower_interface_decides():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=3), interface_bandwidth=[1e9, 2e9, 3e9])
    assert make(cluster).link_bandwidth.tolist() == [1e9, 1e9, 1e9, 2e9, 1e9, 2e9]


def test_one_host():
    assert make(Cluster.uniform(n_hosts=1)).n_links == 0

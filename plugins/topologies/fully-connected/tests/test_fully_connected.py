"""Any two hosts are joined; the slower one decides how fast."""

import attrs
import numpy as np
import pytest

from topoplan import Cluster, LinkKind, TopologyContext
from topoplan_engine.interfaces import check_fabric
from topoplan_engine.network.building import used_interfaces
from topoplan_engine.network.routing import full_routes
from topoplan_topology_fully_connected import FullyConnected


def make(cluster):
    return FullyConnected().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def test_links():
    fabric = make(Cluster.uniform(n_hosts=5, interfaces=4, interface_bandwidth=1e9))
    assert fabric.n_links == 20
    assert set(fabric.link_bandwidth) == {1e9}
    assert np.diff(full_routes(fabric).path_ptr).tolist() == [1] * 20


def test_the_slower_interface_decides():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=3, interfaces=2), interface_bandwidth=[1e9, 2e9, 3e9])
    assert make(cluster).link_bandwidth.tolist() == [1e9, 1e9, 1e9, 2e9, 1e9, 2e9]


@pytest.mark.parametrize("interfaces", range(1, 9))
def test_a_host_shares_all_of_its_bandwidth(interfaces):
    cluster = Cluster.uniform(n_hosts=4, interfaces=interfaces, interface_bandwidth=1e9)
    fabric = make(cluster)
    assert np.bincount(fabric.link_src, fabric.link_bandwidth) == pytest.approx(interfaces * 1e9)
    whole = interfaces % 3 == 0
    assert set(fabric.link_kind) == {LinkKind.NETWORK if whole else LinkKind.LANE}
    assert set(fabric.link_count) == {interfaces // 3 if whole else 1}
    assert used_interfaces(fabric, cluster).tolist() == [interfaces] * 4
    check_fabric(fabric, cluster)


def test_one_host():
    assert make(Cluster.uniform(n_hosts=1)).n_links == 0

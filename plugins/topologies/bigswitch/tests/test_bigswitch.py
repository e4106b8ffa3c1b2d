"""One switch: every host joins it with all of its interfaces."""

import attrs
import numpy as np
import pytest

from topoplan import Cluster, TopologyContext
from topoplan_engine.network.routing import full_routes
from topoplan_topology_bigswitch import BigSwitch


@pytest.mark.parametrize("n", [1, 2, 7])
def test_links(n):
    cluster = Cluster.uniform(n_hosts=n, interfaces=4, interface_bandwidth=1e9, latency=2e-6)
    fabric = BigSwitch().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    links = set(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))
    assert links == {(h, n) for h in range(n)} | {(n, h) for h in range(n)}
    assert set(fabric.link_count) == {4}
    assert set(fabric.link_bandwidth) == {4e9}
    assert set(fabric.link_latency) == {2e-6}
    routes = full_routes(fabric)
    assert len(routes.weight) == n * (n - 1)
    assert len(routes.links) == 2 * n * (n - 1)


def test_hosts_keep_their_own_interfaces_and_bandwidth():
    base = Cluster.uniform(n_hosts=2)
    cluster = attrs.evolve(base, interfaces=[3, 2], interface_bandwidth=[1e9, 4e9])
    fabric = BigSwitch().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    assert fabric.link_bandwidth.tolist() == [3e9, 8e9, 3e9, 8e9]  # 0 -> 2, 1 -> 2, 2 -> 0, 2 -> 1
    assert fabric.link_count.tolist() == [3, 2, 3, 2]

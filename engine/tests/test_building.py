"""Fabrics as commands get them, and what they say of the links of a host."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, LinkKind, ReconfigurableFabric, Topology, TopologyContext, TopoplanError
from topoplan_engine.network.building import build_fabric, host_links, used_interfaces

GBPS = 1e9 / 8
CLUSTER = Cluster.uniform(n_hosts=4, interfaces=2, interface_bandwidth=25 * GBPS)
RING = [(a, b) for a in range(4) for b in ((a + 1) % 4, (a - 1) % 4)]


@attrs.frozen
class Ring(Topology):
    """A ring of any four hosts."""

    name = "ring"

    def build(self, context):
        return Fabric.from_links(name="ring", n_hosts=4, links=RING, bandwidth=25 * GBPS, latency=0.0)


def test_a_fabric_that_hosts_cannot_have_is_refused():
    context = TopologyContext(cluster=CLUSTER, demand=None, rng=np.random.default_rng(0))
    assert build_fabric(Ring(), context) == Ring().build(context)
    with pytest.raises(TopoplanError, match="has 4 hosts, the cluster 5"):
        build_fabric(Ring(), attrs.evolve(context, cluster=Cluster.uniform(n_hosts=5)))


def test_a_host_needs_interfaces_for_its_cables_and_for_the_bandwidth_of_its_lanes():
    ring = Ring().build(None)
    assert used_interfaces(ring, CLUSTER).tolist() == [2] * 4
    full = [(a, b) for a in range(4) for b in range(4) if a != b]
    lanes = Fabric.from_links(name="lanes", n_hosts=4, links=full, bandwidth=10 * GBPS, latency=0.0, kind=LinkKind.LANE)
    assert used_interfaces(lanes, CLUSTER).tolist() == [2] * 4  # 30 Gbps on interfaces of 25
    inside = attrs.evolve(ring, link_kind=np.full(ring.n_links, LinkKind.INSIDE))
    assert used_interfaces(inside, CLUSTER).tolist() == [0] * 4
    rebuilt = ReconfigurableFabric(forward=ring, backward=inside, reduce=lanes, delay=0.0)
    assert used_interfaces(rebuilt, CLUSTER).tolist() == [2] * 4


def test_links_of_a_host_are_told_beside_its_interfaces():
    ring = Ring().build(None)
    assert host_links(ring, CLUSTER) == "2 x 25 Gbps"
    four = Cluster.uniform(n_hosts=4, interfaces=4, interface_bandwidth=25 * GBPS)
    assert host_links(ring, four) == "2 of 4 x 25 Gbps"
    full = [(a, b) for a in range(4) for b in range(4) if a != b]
    lanes = Fabric.from_links(name="lanes", n_hosts=4, links=full, bandwidth=10 * GBPS, latency=0.0, kind=LinkKind.LANE)
    assert host_links(lanes, CLUSTER) == "2 x 25 Gbps"

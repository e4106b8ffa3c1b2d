"""What results say of links that collectives leave idle."""

from __future__ import annotations

import attrs
import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, Fabric, LinkKind, Plan
from topoplan_directconnect.construct import construct
from topoplan_engine.network.ring_use import collective_links
from topoplan_samples.tasks import collective, task_graph, transfer

GBPS = 1e9 / 8


def found(fabric, groups, devices=1, interfaces=8):
    cluster = Cluster.uniform(n_hosts=fabric.n_hosts, devices_per_host=devices, interfaces=interfaces)
    tasks = task_graph([collective(list(group), size) for group, size in groups], n_devices=cluster.n_devices)
    return collective_links(Plan(cluster=cluster, fabric=fabric, taskgraph=tasks), tasks)


def rails(hosts, count):
    """Hosts wired once to each of so many switches."""
    ends = [(host, hosts + rail) for host in range(hosts) for rail in range(count)]
    return Fabric.from_links(
        name="rails",
        n_hosts=hosts,
        n_switches=count,
        links=[*ends, *((b, a) for a, b in ends)],
        bandwidth=400 * GBPS,
        latency=1e-6,
        max_paths=8,
    )


@pytest.mark.parametrize("devices", [1, 8])
def test_one_link_of_each_host_to_a_rail(devices):
    one_path = attrs.evolve(rails(16, 8), max_paths=1)
    links = found(one_path, [(range(16 * devices), 1000)], devices)
    assert (links.hosts, links.used, links.available, links.over_hosts) == (16, 1, 8, 0)
    assert links.text.startswith("1 of 8 links of a host")
    assert found(rails(16, 8), [(range(16 * devices), 1000)], devices) is None, "a ring on each rail"


def test_the_largest_group_counts():
    fabric = attrs.evolve(rails(4, 2), max_paths=1)
    assert found(fabric, [(range(2), 10), (range(4), 1000), ([0, 2], 100)]).hosts == 4
    assert found(fabric, [([0], 10)]) is None


def test_a_cable_of_eight_lanes_is_used_whole():
    switch = Fabric.from_links(
        name="switch",
        n_hosts=4,
        n_switches=1,
        links=[(host, 4) for host in range(4)] * 8 + [(4, host) for host in range(4)] * 8,
        bandwidth=400 * GBPS,
        latency=0,
    )
    assert found(switch, [(range(4), 1000)]) is None


def test_links_inside_a_chassis_are_none_of_the_network():
    """Single GPUs as hosts: a NIC each, and a switch for each two of them."""
    inside = [(gpu, 5 + gpu // 2) for gpu in range(4)]
    outside = [(gpu, 4) for gpu in range(4)]
    rows = [*inside, *outside]
    fabric = Fabric.from_links(
        name="gpus",
        n_hosts=4,
        n_switches=3,
        links=[*rows, *((b, a) for a, b in rows)],
        bandwidth=400 * GBPS,
        latency=0,
        kind=[*[LinkKind.INSIDE] * 4, *[LinkKind.NETWORK] * 4] * 2,
    )
    assert found(fabric, [(range(4), 1000)], interfaces=1) is None


def test_a_ring_whose_members_are_no_neighbours_says_so():
    star = nx.star_graph(8)
    links = found(Fabric.from_networkx(star, bandwidth=1e9, latency=0), [(range(9), 1000)])
    assert (links.used, links.available, links.over_hosts, links.steps) == (1, 8, 7, 9)
    assert "7 of 9 steps of its ring, in listed order, pass other hosts" in links.text


def test_rings_along_links_are_all_used_or_said():
    torus = nx.convert_node_labels_to_integers(nx.grid_graph([4, 4], periodic=True))
    assert found(Fabric.from_networkx(torus, bandwidth=1e9, latency=0), [(range(16), 1000)]) is None
    mesh = found(Fabric.from_networkx(nx.complete_graph(8), bandwidth=1e9, latency=0), [(range(8), 1000)])
    assert mesh.text == "6 of 7 links of a host: no more than 6 rings along links were found"


def test_rings_of_the_fabric_are_meant_so():
    cluster = Cluster.uniform(n_hosts=16, interfaces=8)
    wired = construct(cluster, None, rules="paper", paths=4, rng=np.random.default_rng(0))
    assert found(wired, [(range(16), 1000)]) is None


def test_messages_alone_are_no_collective():
    cluster = Cluster.uniform(n_hosts=4, interfaces=8)
    tasks = task_graph([transfer(0, 1, 10)], n_devices=4)
    assert collective_links(Plan(cluster=cluster, fabric=rails(4, 2), taskgraph=tasks), tasks) is None

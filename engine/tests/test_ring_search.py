"""Rings that are found along links, and how fast they make networks from files."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, Fabric
from topoplan_engine.interfaces import check_rings
from topoplan_engine.network.ring_search import find_cycles
from topoplan_engine.network.rings import cycles_of
from topoplan_engine.network.tables import Network
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_fluid import Fluid

GBPS = 1e9 / 8
GIB = float(2**30)


def torus(*sizes):
    return nx.grid_graph(sizes, periodic=True)


def fabric_of(graph, **options):
    options = {"bandwidth": 400 * GBPS, "latency": 0.0, **options}
    return Fabric.from_networkx(nx.convert_node_labels_to_integers(graph), name="f", **options)


def rings_of(fabric, hosts=None):
    """Return the rings that are found, checked: each visits all hosts, and no link has more of them than it carries."""
    hosts = np.arange(fabric.n_hosts, dtype=np.int32) if hosts is None else np.array(hosts, dtype=np.int32)
    found = find_cycles(fabric, hosts)
    crossed = Counter()
    for receivers in found.tolist():
        visited, place = set(), 0
        while place not in visited:
            visited.add(place)
            crossed[int(hosts[place]), int(hosts[receivers[place]])] += 1
            place = receivers[place]
        assert len(visited) == len(hosts)
    if crossed:
        rows = fabric.link_rows(*np.array(list(crossed)).T)
        assert (rows >= 0).all()
        unit = fabric.link_bandwidth[rows].min()
        assert (np.array(list(crossed.values())) * unit <= fabric.link_bandwidth[rows] * (1 + 1e-9)).all()
    return found


#: Graphs whose links can all be in rings: as many as a host has links, one each way.
ALL_LINKS = {
    "torus 8 x 8": (torus(8, 8), 4),
    "torus 3 x 5": (torus(3, 5), 4),
    "torus 4 x 4 x 4": (torus(4, 4, 4), 6),
    "torus 16 x 16": (torus(16, 16), 4),
    "hypercube of 16": (nx.hypercube_graph(4), 4),
    "circle": (nx.cycle_graph(64), 2),
    "full mesh of 7": (nx.complete_graph(7), 6),
    "steps 2 and 5 round 20": (nx.circulant_graph(20, [2, 5]), 4),
    "random, 8 links a host": (nx.random_regular_graph(8, 64, seed=1), 8),
}
#: Others: rings that are found, and why no more.
SOME_LINKS = {
    "full mesh of 8": (nx.complete_graph(8), 6),  # an odd number of links
    "cube": (nx.hypercube_graph(3), 2),
    "grid without wraparound": (nx.grid_graph([8, 8]), 2),  # two links at its corners
    "Petersen's graph": (nx.petersen_graph(), 0),  # has no Hamiltonian cycle
    "path": (nx.path_graph(9), 0),
    "star of hosts": (nx.star_graph(8), 0),
    "odd grid": (nx.grid_graph([3, 3]), 0),  # two colors, one more of one
}


@pytest.mark.parametrize("name", [*ALL_LINKS, *SOME_LINKS])
def test_so_many_rings_are_found(name):
    graph, expected = {**ALL_LINKS, **SOME_LINKS}[name]
    assert len(rings_of(fabric_of(graph))) == expected


@pytest.mark.parametrize("n", range(3, 14))
def test_full_meshes(n):
    assert len(rings_of(fabric_of(nx.complete_graph(n)))) == 2 * ((n - 1) // 2)


def test_faster_links_are_in_several_rings():
    graph = nx.cycle_graph(6)
    nx.set_edge_attributes(graph, 800 * GBPS, "bandwidth")
    for a, b in ((0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)):
        graph.add_edge(a, b, bandwidth=400 * GBPS)
    assert len(rings_of(fabric_of(graph))) == 6  # 1,200 Gbps a host
    slow = nx.cycle_graph(6)
    slow.add_edge(0, 3, bandwidth=1 * GBPS)  # is of no use to a ring
    assert len(rings_of(fabric_of(slow))) == 2


def test_links_that_lead_one_way():
    graph = nx.DiGraph()
    graph.add_nodes_from(range(8))
    graph.add_edges_from((host, (host + 3) % 8) for host in range(8))
    assert rings_of(fabric_of(graph)).tolist() == [[3, 4, 5, 6, 7, 0, 1, 2]]


def test_a_group_takes_the_links_between_its_hosts():
    fabric = fabric_of(torus(4, 4))
    row = np.array([2, 0, 3, 1], dtype=np.int32)
    assert len(rings_of(fabric, row)) == 2
    assert len(rings_of(fabric, [0, 1, 4, 5])) == 2  # a square
    assert len(rings_of(fabric, [0, 1])) == 1
    assert len(rings_of(fabric, [0, 5, 10, 15])) == 0  # the diagonal
    assert cycles_of(fabric, row).shape == (2, 4)
    assert cycles_of(fabric_of(torus(4, 4)).map_wirings(listed), row).size == 0


def listed(fabric):
    return Fabric.from_links(
        name="f",
        n_hosts=fabric.n_hosts,
        links=np.stack([fabric.link_src, fabric.link_dst], axis=1),
        bandwidth=fabric.link_bandwidth,
        latency=fabric.link_latency,
    )


def test_the_same_graph_has_the_same_rings_again():
    first = fabric_of(torus(6, 6))
    again = fabric_of(torus(6, 6), latency=1e-6)
    assert rings_of(first).tolist() == rings_of(again).tolist()


@pytest.mark.slow
def test_sixteen_thousand_hosts():
    assert len(rings_of(fabric_of(torus(128, 128)))) == 4


@pytest.mark.parametrize(("devices", "level"), [(1, "coupled"), (8, "coupled"), (1, "stepped")])
def test_a_torus_uses_all_links_of_a_host(devices, level):
    """8 x 8 hosts, two cables of 400 Gbps to each neighbour: eight interfaces send 2 (n-1) / n of the data."""
    fabric = fabric_of(torus(8, 8), bandwidth=2 * 400 * GBPS)
    cluster = Cluster.uniform(
        n_hosts=64,
        devices_per_host=devices,
        inside_bandwidth=450e9,
        interfaces=8,
        interface_bandwidth=400 * GBPS,
    )
    n = cluster.n_devices
    tasks = task_graph([collective(list(range(n)), 2**30)], n_devices=n)
    by_hand = 2 * (n - 1) / n * GIB / (8 * 400 * GBPS)  # 5.29 ms
    assert Fluid(level=level).build()(tasks, fabric, cluster).makespan == pytest.approx(by_hand, rel=5e-3)


def test_gpus_that_are_wired_as_in_a_dgx_1():
    """Six NVLinks a GPU, of which two pairs are double: three cycles, both ways, of 1 MiB over 150 GB/s."""
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    graph = nx.Graph()
    graph.add_nodes_from(range(8))
    graph.add_edges_from(double, bandwidth=2 * 25e9)
    graph.add_edges_from(single, bandwidth=25e9)
    fabric = fabric_of(graph)
    assert len(rings_of(fabric)) == 6
    check_rings(fabric)
    cluster = Cluster.uniform(n_hosts=8, interfaces=6, interface_bandwidth=25e9)
    tasks = task_graph([collective(list(range(8)), 2**30)], n_devices=8)
    by_hand = 2 * 7 / 8 * GIB / 150e9
    assert Fluid().build()(tasks, fabric, cluster).makespan == pytest.approx(by_hand, rel=5e-3)
    assert Network(fabric, cluster).fabric.rings_along_links

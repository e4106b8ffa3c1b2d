"""Slim Fly: counts, distances and cuts of the definition, by networkx and by hand."""

import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan_topology_slim_fly import SlimFly


def make(count, /, interfaces=4, **options):
    cluster = Cluster.uniform(n_hosts=count, interfaces=interfaces, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return structure(SlimFly, options, "topology slim-fly").build(context)


def counts(fabric):
    """Hosts, switches, links, links between switches, diameters of hosts and of switches, mean distance of hosts."""
    graph = fabric.to_networkx().to_undirected()
    distances = dict(nx.all_pairs_shortest_path_length(graph))
    hosts = range(fabric.n_hosts)
    between = [distances[a][b] for a in hosts for b in hosts if a < b]
    switches = graph.subgraph(range(fabric.n_hosts, fabric.n_nodes))
    diameter = nx.diameter(switches) if nx.is_connected(switches) else None
    row = fabric.n_hosts, fabric.n_switches, graph.number_of_edges(), switches.number_of_edges()
    return *row, max(between), diameter, round(float(np.mean(between)), 6)


@pytest.mark.parametrize(
    ("q", "hosts", "row"),
    [
        (5, 4, (200, 50, 375, 175, 4, 2, 3.829146)),
        pytest.param(13, 10, (3380, 338, 6591, 3211, 4, 2, 3.938443), marks=pytest.mark.slow),
    ],
)
def test_counts(q, hosts, row):
    assert counts(make(row[0], q=q, hosts=hosts)) == row


@pytest.mark.parametrize("q", [3, 4, 5, 7, 8, 9, 11, 13, 16])
def test_any_two_routers_are_two_links_apart(q):
    fabric = make(2 * q * q, q=q)
    graph = fabric.to_networkx().to_undirected().subgraph(range(2 * q * q, 4 * q * q))
    assert {degree for _, degree in graph.degree} == {(3 * q - {0: 0, 1: 1, 3: -1}[q % 4]) // 2}
    assert nx.diameter(graph) == 2


def test_sizes_follow_the_hosts():
    assert [make(n).n_switches for n in (16, 54, 55, 200, 1000)] == [18, 18, 32, 50, 162]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [(16, {"q": 6}, "must be a prime power that is not 2 modulo 4: 5 or 7"), (51, {"q": 5, "hosts": 1}, "use hosts=2")],
)
def test_errors_name_what_would_be_right(count, options, message):
    with pytest.raises(TopoplanError, match=message):
        make(count, **options)

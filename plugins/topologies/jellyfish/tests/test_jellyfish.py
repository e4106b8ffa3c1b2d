"""Random graphs of switches: regular, connected, reproducible, and nearly as short as any graph can be."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan_topology_jellyfish import Jellyfish


def switch_graph(count, /, seed=0, **options):
    cluster = Cluster.uniform(n_hosts=count, interfaces=1)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(seed))
    fabric = structure(Jellyfish, options, "topology jellyfish").build(context)
    graph = fabric.to_networkx().to_undirected()
    assert nx.is_connected(graph)
    return graph.subgraph(range(count, fabric.n_nodes))


@given(st.integers(4, 40), st.integers(3, 8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_regular(switches, links, seed):
    links = min(links, switches - 1)
    graph = switch_graph(switches, seed, switches=switches, links=links)
    degrees = sorted(degree for _, degree in graph.degree)
    assert degrees[1:] == [links] * (switches - 1)
    assert degrees[0] == links - switches * links % 2


@pytest.mark.parametrize(("switches", "links"), [(40, 20), (64, 30), (100, 40)])
def test_mean_distance_is_within_one_percent_of_the_bound(switches, links):
    """No graph is shorter than one whose switches all are one or two links apart (Cerf et al. 1974)."""
    bound = 2 - links / (switches - 1)
    graph = switch_graph(switches, switches=switches, links=links)
    assert bound <= nx.average_shortest_path_length(graph) <= 1.01 * bound


def test_seed():
    first, second = (set(switch_graph(64, seed).edges) for seed in (1, 2))
    assert first == set(switch_graph(64, 1).edges) != second


@pytest.mark.parametrize("hosts", [1, 2, 3, 16, 100, 1000])
def test_sizes_follow_the_hosts(hosts):
    assert len(switch_graph(hosts)) <= hosts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"switches": 8, "links": 9}, r"links 9 of 8 switches \(must be 2 to 7\)"),
        ({"switches": 8, "hosts": 1}, r"have room for 8, not 16 \(use hosts=2\)"),
    ],
)
def test_errors_name_what_would_be_right(options, message):
    with pytest.raises(TopoplanError, match=message):
        switch_graph(16, **options)

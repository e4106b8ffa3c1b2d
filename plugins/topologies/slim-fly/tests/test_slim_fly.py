"""Slim Fly: counts, distances and cuts of the definition, by networkx and by hand."""

import networkx as nx
import pytest

from topoplan import TopoplanError
from topoplan_samples.graph_fabrics import counts, made
from topoplan_topology_slim_fly import SlimFly


@pytest.mark.parametrize(
    ("q", "hosts", "row"),
    [
        (5, 4, (200, 50, 375, 175, 4, 2, 3.829146)),
        pytest.param(13, 10, (3380, 338, 6591, 3211, 4, 2, 3.938443), marks=pytest.mark.slow),
    ],
)
def test_counts(q, hosts, row):
    assert counts(made(SlimFly, row[0], q=q, hosts=hosts)) == row


@pytest.mark.parametrize("q", [3, 4, 5, 7, 8, 9, 11, 13, 16])
def test_any_two_routers_are_two_links_apart(q):
    fabric = made(SlimFly, 2 * q * q, q=q)
    graph = fabric.to_networkx().to_undirected().subgraph(range(2 * q * q, 4 * q * q))
    assert {degree for _, degree in graph.degree} == {(3 * q - {0: 0, 1: 1, 3: -1}[q % 4]) // 2}
    assert nx.diameter(graph) == 2


def test_sizes_follow_the_hosts():
    assert [made(SlimFly, n).n_switches for n in (16, 54, 55, 200, 1000)] == [18, 18, 32, 50, 162]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [(16, {"q": 6}, "must be a prime power that is not 2 modulo 4: 5 or 7"), (51, {"q": 5, "hosts": 1}, "use hosts=2")],
)
def test_errors_name_what_would_be_right(count, options, message):
    with pytest.raises(TopoplanError, match=message):
        made(SlimFly, count, **options)

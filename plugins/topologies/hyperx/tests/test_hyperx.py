"""HyperX: counts, distances and cuts of the definition, by networkx and by hand."""

import networkx as nx
import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan_samples.graph_fabrics import counts, made
from topoplan_topology_hyperx import HyperX


@pytest.mark.parametrize(
    ("sides", "hosts", "row", "bisection"),
    [
        ("4-4", 4, (64, 16, 112, 48, 4, 2, 3.52381), 16),
        ("8-8", 8, (512, 64, 960, 448, 4, 2, 3.753425), 128),
        ("4-4-4", 4, (256, 64, 544, 288, 5, 3, 4.258824), 64),
    ],
)
def test_counts(sides, hosts, row, bisection):
    fabric = made(HyperX, row[0], sides=sides, hosts=hosts)
    assert counts(fabric) == row
    graph = fabric.to_networkx().to_undirected()
    left = set(range(hosts * row[1] // 2)) | {row[0] + s for s in range(row[1] // 2)}  # half of the first axis
    assert len(list(nx.edge_boundary(graph, left))) == bisection


@pytest.mark.parametrize("sides", ["4-4", "3-4", "2-2-2-2", "4-3-5"])
def test_a_switch_is_joined_to_the_next_one(sides):
    shape = tuple(map(int, sides.split("-")))
    count = int(np.prod(shape))
    fabric = made(HyperX, count, sides=sides)
    graph = fabric.to_networkx().to_undirected().subgraph(range(count, 2 * count))
    expected = nx.complete_graph(shape[0])
    for side in shape[1:]:
        expected = nx.cartesian_product(expected, nx.complete_graph(side))
    assert nx.is_isomorphic(graph, expected)
    assert (fabric.link_rows(np.arange(count - 1) + count, np.arange(count - 1) + count + 1) >= 0).all()


def test_sizes_follow_the_hosts():
    assert [made(HyperX, n).n_switches for n in (1, 8, 64, 65, 512)] == [1, 4, 16, 25, 64]
    assert made(HyperX, 100_000).n_switches == 47**2


def test_errors_name_what_would_be_right():
    with pytest.raises(TopoplanError, match=r"room for 16, not 17 \(use hosts=2\)"):
        made(HyperX, 17, sides="4-4", hosts=1)

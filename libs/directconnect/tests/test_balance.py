"""Load-aware routes: paths that exist, shares that lower the busiest link, rings that count."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Demand, Fabric
from topoplan_directconnect.balance import balanced_routes, ring_load
from topoplan_directconnect.construct import construct, rebalanced
from topoplan_engine.network.routing import full_routes


def mesh(n, links, paths=4, speed=1e9):
    directed = [link for a, b in links for link in ((a, b), (b, a))]
    return Fabric.from_links(name="mesh", n_hosts=n, links=directed, bandwidth=speed, latency=1e-6, max_paths=paths)


def busiest(fabric, routes, matrix, background=0.0):
    owner = np.repeat(np.arange(len(routes.pairs)), np.diff(routes.pair_ptr))
    sent = routes.weight * matrix[routes.pairs[owner, 0], routes.pairs[owner, 1]]
    carried = np.bincount(routes.links, np.repeat(sent, np.diff(routes.path_ptr)), fabric.n_links)
    return float(((carried + background) / fabric.link_bandwidth).max())


def random_fabric(n, degree, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, n)) ** 3 * (rng.random((n, n)) < 0.7) * 1e9
    np.fill_diagonal(matrix, 0)
    demand = Demand(group_ptr=[0, n], group_members=range(n), group_bytes=[1e8], matrix=matrix)
    cluster = Cluster.uniform(n_hosts=n, interfaces=degree, interface_bandwidth=1e9)
    return construct(cluster, demand, rules="paper", paths=3, rng=rng), demand


@given(st.integers(3, 16), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_paths_lead_there_and_shares_add_up(n, degree, seed):
    fabric, demand = random_fabric(n, degree, seed)
    routes = balanced_routes(fabric, demand.matrix, np.zeros(fabric.n_links))
    assert routes.pairs.tolist() == np.argwhere(demand.matrix > 0).tolist()
    plain = full_routes(attrs.evolve(fabric, max_paths=1))
    shortest = dict(zip(map(tuple, plain.pairs.tolist()), np.diff(plain.path_ptr).tolist(), strict=True))
    for row, (a, b) in enumerate(routes.pairs.tolist()):
        rows = range(routes.pair_ptr[row], routes.pair_ptr[row + 1])
        assert 1 <= len(rows) <= 3
        assert routes.weight[rows].sum() == pytest.approx(1.0)
        for path in rows:
            links = routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]
            nodes = [a, *fabric.link_dst[links].tolist()]
            assert fabric.link_src[links].tolist() == nodes[:-1]
            assert nodes[-1] == b
            assert len(set(nodes)) == len(nodes)
            assert len(links) <= shortest[a, b] + 1


@given(st.integers(4, 16), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_busiest_link_is_no_busier_than_with_even_shares(n, degree, seed):
    fabric, demand = random_fabric(n, degree, seed)
    background = ring_load(fabric, demand)
    even = balanced_routes(attrs.evolve(fabric, max_paths=1), demand.matrix, background)
    shared = balanced_routes(fabric, demand.matrix, background)
    assert busiest(fabric, shared, demand.matrix, background) <= 1.02 * busiest(fabric, even, demand.matrix, background)


def test_two_ways_around_a_square_share_evenly_and_avoid_what_is_busy():
    square = mesh(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    matrix = np.zeros((4, 4))
    matrix[0, 2] = 1e9
    routes = balanced_routes(square, matrix, np.zeros(8))
    assert routes.weight == pytest.approx([0.5, 0.5])
    busy = np.where((square.link_src == 0) & (square.link_dst == 1), 0.6e9, 0.0)
    assert busiest(square, balanced_routes(square, matrix, busy), matrix, busy) < 0.9  # 0.8 at best, 1.1 evenly


def test_a_way_of_one_link_more_takes_a_part():
    triangle = mesh(3, [(0, 1), (1, 2), (2, 0)])
    matrix = np.zeros((3, 3))
    matrix[0, 1] = 1e9
    routes = balanced_routes(triangle, matrix, np.zeros(6))
    assert np.diff(routes.path_ptr).tolist() == [1, 2]
    assert busiest(triangle, routes, matrix) < 0.65
    assert balanced_routes(triangle, np.zeros((3, 3)), np.zeros(6)) is None


def test_rings_load_the_links_that_they_walk():
    fabric, demand = random_fabric(12, 4, 0)
    subset = attrs.evolve(demand, group_ptr=[0, 6, 7], group_members=[*range(0, 12, 2), 3], group_bytes=[6e6, 9e9])
    hops = [hop for ring in fabric.rings[6] for hop in ring]
    load = ring_load(fabric, subset)
    assert load.sum() == pytest.approx(2 * 5 / 6 * 6e6 * 6 * len(hops) / len(fabric.rings[6]))
    uneven = attrs.evolve(demand, group_ptr=[0, 3], group_members=[0, 1, 3])
    assert not ring_load(fabric, uneven).any()


def test_routes_are_split_once_and_for_traffic_only():
    fabric, demand = random_fabric(10, 4, 3)
    balanced = rebalanced(fabric, demand)
    assert rebalanced(balanced, demand) == balanced
    quiet = attrs.evolve(demand, matrix=np.zeros((10, 10)))
    assert rebalanced(fabric, quiet) == fabric

"""Heaviest demands first: which links, within which interfaces, and one component in the end."""

import attrs
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Demand
from topoplan_directconnect.construct import construct, rule_pairs
from topoplan_directconnect.greedy import add_heaviest, join_components
from topoplan_directconnect.traffic import neighbour_bytes
from topoplan_engine.network.routing import full_routes


def demand_of(matrix, groups=()):
    return Demand(
        group_ptr=np.cumsum([0, *(len(group) for group, _ in groups)]),
        group_members=[host for group, _ in groups for host in group],
        group_bytes=[size for _, size in groups],
        matrix=matrix,
    )


def empty(n, degree):
    return np.zeros((n, n), dtype=np.int64), np.full(n, degree)


def test_the_heaviest_pair_is_linked_again_until_half_is_less_than_another():
    matrix = np.zeros((4, 4))
    matrix[0, 1], matrix[1, 0], matrix[2, 3] = 8.0, 3.0, 3.0  # 8, 4, then 3 before 2
    count, free = empty(4, 3)
    add_heaviest(count, free, matrix)
    assert count[0, 1] == 3
    assert count[2, 3] == 3
    assert free.tolist() == [0, 0, 0, 0]
    matrix[0, 2] = 5.0
    count, free = empty(4, 2)
    add_heaviest(count, free, matrix)
    assert count[0].tolist() == [0, 1, 1, 0]
    assert count[2].tolist() == [1, 0, 0, 1]


def test_components_are_joined_by_crossing_links_of_least_demand():
    count = np.zeros((6, 6), dtype=np.int64)
    for a, b in ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)):
        count[a, b] = count[b, a] = 1
    weight = np.where(count > 0, 9.0, 0.0)
    weight[0, 1] = weight[1, 0] = weight[4, 5] = weight[5, 4] = 1.0
    assert join_components(count, np.zeros(6, dtype=np.int64), weight)
    assert count[0, 1] == count[4, 5] == 0
    assert (count.sum(axis=1) == 2).all()
    pairs = np.zeros((4, 4), dtype=np.int64)
    pairs[0, 1] = pairs[1, 0] = pairs[2, 3] = pairs[3, 2] = 1
    assert not join_components(pairs, np.zeros(4, dtype=np.int64), pairs * 1.0)


@given(st.integers(1, 17), st.integers(1, 6), st.integers(0, 999), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_demand_gives_a_connected_fabric(n, degree, seed, unequal):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, n)) * (rng.random((n, n)) < 0.2) * 1e9
    np.fill_diagonal(matrix, 0)
    interfaces = rng.integers(1, degree + 1, n) if unequal else np.full(n, degree)
    cluster = attrs.evolve(Cluster.uniform(n_hosts=n, interfaces=4), interfaces=interfaces)
    fabric = construct(cluster, demand_of(matrix), rules="greedy", paths=2, rng=rng)
    for side in (fabric.link_src, fabric.link_dst):
        assert (np.bincount(side, fabric.link_count, n) <= interfaces).all()
    assert (np.diff(full_routes(fabric).pair_ptr) > 0).all()
    assert rule_pairs(cluster, demand_of(matrix), "greedy") == 0


def test_all_reduces_are_demands_between_neighbours():
    demand = demand_of(np.zeros((6, 6)), [((0, 2, 5), 3.0), ((1,), 5.0)])
    bytes_between = neighbour_bytes(demand, 6)
    assert bytes_between[0, 2] == bytes_between[2, 5] == bytes_between[5, 0] == 2 * 2 / 3 * 3.0
    assert bytes_between.sum() == 12.0
    cluster = Cluster.uniform(n_hosts=6, interfaces=2)
    fabric = construct(cluster, demand, rules="greedy", paths=1, rng=np.random.default_rng(0))
    links = set(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))
    assert len({(0, 2), (2, 5), (5, 0)} & links) >= 2  # one of the three may go to join the others
    assert not fabric.rings

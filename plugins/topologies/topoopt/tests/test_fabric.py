"""Whole fabrics: interfaces, connectivity, rings over existing links, determinism, published examples."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Demand, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan_directconnect.permutations import group_sizes
from topoplan_engine.network.routing import full_routes
from topoplan_topology_topoopt import TopoOpt


def demand_of(n, groups, matrix=None):
    members = [list(group) for group, _ in groups]
    return Demand(
        group_ptr=np.cumsum([0, *map(len, members)]),
        group_members=[host for group in members for host in group],
        group_bytes=[size for _, size in groups],
        matrix=np.zeros((n, n)) if matrix is None else matrix,
    )


def make(n, interfaces, demand=None, seed=0, **options):
    cluster = Cluster.uniform(n_hosts=n, interfaces=4, interface_bandwidth=1e9, latency=1e-6)
    cluster = attrs.evolve(cluster, interfaces=np.broadcast_to(interfaces, n))
    context = TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(seed))
    return structure(TopoOpt, options, "topology topoopt").build(context)


def counts(fabric):
    matrix = np.zeros((fabric.n_hosts, fabric.n_hosts), dtype=int)
    matrix[fabric.link_src, fabric.link_dst] = fabric.link_count
    return matrix


def check(fabric, interfaces):
    n, matrix = fabric.n_hosts, counts(fabric)
    interfaces = np.broadcast_to(interfaces, n)
    assert (matrix.sum(axis=0) <= interfaces).all()
    assert (matrix.sum(axis=1) <= interfaces).all()
    assert fabric.link_bandwidth == pytest.approx(fabric.link_count * 1e9)
    assert (np.diff(full_routes(fabric).pair_ptr) > 0).all()
    for g, rings in fabric.rings.items():
        for ring in rings:
            step = sum(ring) % n
            assert {step * i % n for i in range(g)} == set(range(0, n, n // g))
            for host in range(n):
                at = host
                for hop in ring:
                    assert matrix[at, (at + hop) % n] > 0
                    at = (at + hop) % n


@pytest.mark.parametrize("rules", ["paper", "released"])
def test_sixteen_hosts_of_degree_four(rules):
    fabric = make(16, 4, demand_of(16, [(range(16), 1e9)]), rules=rules)
    row = counts(fabric)[0]
    assert {host: int(row[host]) for host in np.flatnonzero(row)} == {1: 1, 5: 1, 11: 1, 15: 1}
    assert fabric.rings[16] == ((1,), (15,), (5,), (11,))
    assert fabric.n_links == 64
    check(fabric, 4)


def test_released_heaviest_group_takes_all_but_one_ring():
    demand = demand_of(16, [(range(0, 16, 2), 9e9), (range(1, 16, 2), 9e9), (range(16), 1e6)], np.full((16, 16), 1e9))
    fabric = make(16, 4, demand, rules="released")
    assert fabric.rings[8] == ((2,), (14,))
    assert fabric.rings[16] == ((1,), (15,))
    fabric = make(16, 8, demand, rules="released")
    assert fabric.rings[8] == ((2,), (14,), (6,), (10,), (10,), (6,))
    assert counts(fabric)[0].tolist() == [0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 1]
    check(fabric, 8)


def test_released_needs_equal_even_interfaces():
    for interfaces in (3, [4, 4, 6]):
        with pytest.raises(TopoplanError, match="same even number of interfaces"):
            make(3, interfaces, rules="released")


@pytest.mark.parametrize("rules", ["paper", "released"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7, 12, 15])
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_rings_for_every_size_without_direct_links(rules, n, degree):
    fabric = make(n, degree, rules=rules)
    assert sorted(fabric.rings) == group_sizes(n)
    assert (counts(fabric).sum(axis=1) == (degree if n > 1 else 0)).all()
    check(fabric, degree)


@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 999), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_demand(n, degree, seed, unequal):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, n)) * (rng.random((n, n)) < rng.random()) * 1e9
    np.fill_diagonal(matrix, 0)
    groups = [
        (range(first, n, n // g), rng.random() * 1e9)
        for g in group_sizes(n)
        for first in range(n // g)
        if rng.random() < 0.3
    ]
    if n > 3 and rng.random() < 0.5:
        groups.append(([0, 1, 3], 1e8))
    interfaces = rng.integers(1, degree + 1, n) if unequal else np.full(n, degree)
    fabric = make(n, interfaces, demand_of(n, groups, matrix), seed)
    check(fabric, interfaces)
    if n > 1:
        assert n in fabric.rings
    if n > 1 and not unequal:
        assert n * degree - fabric.link_count.sum() <= 1
    if rng.random() < 0.2:
        assert make(n, interfaces, demand_of(n, groups, matrix), seed) == fabric


def test_one_interface():
    pair = make(2, 1)
    assert counts(pair).tolist() == [[0, 1], [1, 0]]
    assert pair.rings == {2: ((1,),)}
    ring = make(5, 1)
    assert (counts(ring) == np.roll(np.eye(5), 1, axis=1)).all()
    assert ring.rings == {5: ((1,),)}


def test_odd_degree_uses_the_last_interface_for_a_matching():
    fabric = make(8, 3, demand_of(8, [(range(8), 1e9)]))
    matrix = counts(fabric)
    assert (matrix.sum(axis=1) == 3).all()
    assert (matrix == matrix.T).all()


def test_heavy_pairs_get_direct_links():
    matrix = np.zeros((16, 16))
    for host in range(8):
        matrix[host, host + 8] = 1e9
    fabric = make(16, 4, demand_of(16, [(range(16), 1e6)], matrix))
    links = counts(fabric)
    assert all(links[host, host + 8] == 2 for host in range(8))
    assert all(links[host, (host + 1) % 16] >= 1 for host in range(16))
    check(fabric, 4)


def test_every_group_size_has_rings_even_beside_matchings():
    matrix = np.random.default_rng(1).random((128, 128)) * 1e9
    np.fill_diagonal(matrix, 0)
    fabric = make(128, 4, demand_of(128, [(range(128), 1e6)], matrix))
    assert sorted(fabric.rings) == [2, 4, 8, 16, 32, 64, 128]


def test_a_group_of_half_the_hosts_gets_links():
    fabric = make(16, 6, demand_of(16, [(range(0, 16, 2), 1e9), (range(1, 16, 2), 1e9)]))
    assert fabric.rings[8] == ((2,), (14,), (6,), (10,))
    assert fabric.rings[16] == ((1,), (15,))
    check(fabric, 6)


def test_the_slower_interface_decides():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=3, interfaces=2), interface_bandwidth=[1e9, 2e9, 3e9])
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = TopoOpt().build(context)
    assert fabric.link_bandwidth.tolist() == [1e9, 1e9, 1e9, 2e9, 1e9, 2e9]
    assert fabric.max_paths == 4


def test_traffic_is_split_by_load_if_the_option_says_so():
    matrix = np.random.default_rng(3).random((10, 10)) * 1e9
    np.fill_diagonal(matrix, 0)
    even, balanced = (make(10, 4, demand_of(10, [(range(10), 1e8)], matrix), routes=r) for r in ("even", "balanced"))
    assert even.routes is None
    assert balanced.routes is not None

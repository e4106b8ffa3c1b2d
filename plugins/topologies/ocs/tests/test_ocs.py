"""Wirings of the phases: what each is for, when they are the same, and that no host has more links than interfaces."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Demand, Fabric, TopologyContext
from topoplan.options import structure
from topoplan_engine.network.routing import full_routes
from topoplan_engine.simulation.phases import same_wires
from topoplan_topology_ocs import Ocs
from topoplan_topology_ocs.choice import fastest, link_seconds
from topoplan_topology_ocs.direct import direct, join_parts


def demand_of(n, sums, forward, backward=None):
    groups = [list(range(n))] if sums else []
    return Demand(
        group_ptr=[0, *([n] if sums else [])],
        group_members=[host for group in groups for host in group],
        group_bytes=[sums] if sums else [],
        matrix=forward + (forward.T if backward is None else backward),
        forward=forward,
    )


def context_of(n, interfaces, demand, seed=0):
    cluster = Cluster.uniform(n_hosts=n, interfaces=4, interface_bandwidth=1e9, latency=1e-6)
    cluster = attrs.evolve(cluster, interfaces=np.broadcast_to(interfaces, n))
    return TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(seed))


def make(n, interfaces, demand, seed=0, **options):
    return structure(Ocs, options, "topology ocs").build(context_of(n, interfaces, demand, seed))


def partners(n, size=1e8):
    """Every host of the first half sends to the one half way round."""
    matrix = np.zeros((n, n))
    for host in range(n // 2):
        matrix[host, host + n // 2] = size
    return matrix


def scattered(n, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 1000, (n, n)) * (rng.random((n, n)) < 0.3) * 1e3
    np.fill_diagonal(matrix, 0)
    return matrix


def counts(fabric):
    matrix = np.zeros((fabric.n_hosts, fabric.n_hosts), dtype=int)
    matrix[fabric.link_src, fabric.link_dst] = fabric.link_count
    return matrix


def test_passes_get_direct_links_and_all_reduces_get_rings():
    fabric = make(16, 4, demand_of(16, 1e9, partners(16)), delay_ms=2)
    assert fabric.name == "ocs"
    assert fabric.delay == pytest.approx(2e-3)
    forward, reduce = counts(fabric.forward), counts(fabric.reduce)
    assert all(forward[host, host + 8] >= 2 for host in range(8))
    assert fabric.backward is fabric.forward
    assert {int(step) for step in np.flatnonzero(reduce[0])} == {1, 5, 11, 15}
    assert len(fabric.reduce.rings[16]) == 4
    assert (forward.sum(axis=0) == 4).all()


def test_without_one_kind_of_traffic_the_fabric_stays():
    none = np.zeros((16, 16))
    for demand in (None, demand_of(16, 1e9, none), demand_of(16, 0, partners(16)), demand_of(16, 0, none)):
        phases = make(16, 4, demand)
        assert phases.forward is phases.backward
        assert phases.forward is phases.reduce


def test_rings_that_serve_a_pass_as_well_stay():
    ring = np.zeros((8, 8))
    ring[np.arange(8), (np.arange(8) + 1) % 8] = 1e6
    phases = make(8, 2, demand_of(8, 1e9, ring))
    assert phases.forward is phases.reduce


def test_passes_that_differ_are_wired_apart():
    there, back = partners(16), np.zeros((16, 16))
    back[np.arange(16), np.arange(16) ^ 1] = 1e8
    phases = make(16, 4, demand_of(16, 1e9, there, back))
    assert not same_wires(phases.forward, phases.backward)
    assert all(counts(phases.backward)[host, host ^ 1] >= 2 for host in range(16))
    assert all(counts(phases.forward)[host, host + 8] >= 2 for host in range(8))


def test_passes_that_nobody_told_apart_are_wired_alike():
    demand = attrs.evolve(demand_of(16, 1e9, scattered(16, 1)), forward=None)
    phases = make(16, 4, demand)
    assert phases.forward is phases.backward


@given(n=st.integers(2, 20), seed=st.integers(0, 99), sums=st.booleans(), data=st.data())
@settings(max_examples=40)
def test_every_wiring_is_whole_and_within_interfaces(n, seed, sums, data):
    interfaces = data.draw(st.one_of(st.integers(1, 6), st.lists(st.integers(2, 6), min_size=n, max_size=n)))
    demand = demand_of(n, 1e8 * sums, scattered(n, seed), scattered(n, seed + 1))
    wired = [*make(n, interfaces, demand, seed).wirings]
    wired += Ocs().static_fabrics(context_of(n, interfaces, demand, seed))
    for fabric in wired:
        matrix = counts(fabric)
        assert (matrix.sum(axis=0) <= interfaces).all()
        assert (matrix.sum(axis=1) <= interfaces).all()
        assert (np.diff(full_routes(fabric).pair_ptr) > 0).all()
        assert fabric.name == "ocs"
        assert fabric.switching == "ocs"
        assert isinstance(fabric, Fabric)


def test_static_fabrics_have_every_split():
    found = Ocs().static_fabrics(context_of(16, 8, demand_of(16, 1e9, partners(16))))
    assert [len(fabric.rings[16]) // 2 for fabric in found] == [1, 1, 2, 2, 3, 3, 4, 4]


def slow_link_seconds(fabric, matrix):
    routes = full_routes(fabric)
    load = np.zeros(fabric.n_links)
    for row, (a, b) in enumerate(routes.pairs.tolist()):
        for path in range(routes.pair_ptr[row], routes.pair_ptr[row + 1]):
            for link in routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]:
                load[link] += matrix[a, b] * routes.weight[path]
    return load / fabric.link_bandwidth


@given(st.integers(2, 12), st.integers(0, 99))
@settings(max_examples=20)
def test_load_of_links(n, seed):
    fabric, matrix = make(n, 3, None).forward, scattered(n, seed)
    assert link_seconds(fabric, matrix) == pytest.approx(slow_link_seconds(fabric, matrix))


def test_of_equally_fast_wirings_the_first_is_taken():
    fabrics = [make(8, 2, None).forward for _ in range(2)]
    assert fastest(fabrics, scattered(8, 3)) is fabrics[0]
    assert fastest(fabrics, np.zeros((8, 8))) is fabrics[0]


@given(st.integers(4, 16), st.integers(2, 4), st.integers(0, 99))
@settings(max_examples=40)
def test_joining_changes_no_number_of_links(n, degree, seed):
    """Start with as many separate cycles of two hosts or more as there are."""
    rng = np.random.default_rng(seed)
    count, place, at = np.zeros((n, n), dtype=np.int64), rng.permutation(n), 0
    while at < n:
        size = n - at if n - at < 4 else int(rng.integers(2, min(n - at - 1, 5)))
        hosts = place[at : at + size]
        for a, b in zip(hosts, np.roll(hosts, 1), strict=True):
            count[a, b] += 1
            count[b, a] += 1
        at += size
    before = count.sum(axis=0)
    join_parts(count, scattered(n, seed))
    assert (count == count.T).all()
    assert (count >= 0).all()
    assert not np.diag(count).any()
    assert (count.sum(axis=0) == before).all()
    reach = np.linalg.matrix_power((count > 0) + np.eye(n, dtype=int), n)
    assert (reach > 0).all()


def test_the_link_with_the_least_traffic_gives_way():
    count = np.zeros((6, 6), dtype=np.int64)
    for a, b in ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)):
        count[a, b] = count[b, a] = 1
    traffic = np.zeros((6, 6))
    for a, b in ((0, 1), (2, 0), (3, 4), (5, 3)):
        traffic[a, b] = 1e6
    join_parts(count, traffic)
    assert count[1, 2] == count[4, 5] == 0
    assert count[0, 1] == count[0, 2] == count[3, 4] == count[3, 5] == 1


def test_direct_links_follow_traffic():
    for fabric in direct(context_of(16, 4, None).cluster, partners(16), 4, np.random.default_rng(0)):
        matrix = counts(fabric)
        assert all(matrix[host, host + 8] >= 3 for host in range(8))
        assert fabric.max_paths == 4


def test_same_draws_same_fabric():
    demand = demand_of(16, 1e9, scattered(16, 4))
    assert make(16, 4, demand, seed=3) == make(16, 4, demand, seed=3)

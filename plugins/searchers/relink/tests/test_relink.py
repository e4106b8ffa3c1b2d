"""Moves keep what must be kept; the search keeps what is not slower."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Demand, Fabric, ReconfigurableFabric, State, TopoplanError, Trial
from topoplan.testing import landscape
from topoplan_directconnect.construct import construct, rebalanced
from topoplan_directconnect.permutations import group_sizes, ring_steps
from topoplan_engine.network.routing import full_routes
from topoplan_engine.simulation.phases import same_wires
from topoplan_searcher_relink import Relink, moves


def demand_of(n, seed=0, rings=1e6):
    matrix = np.random.default_rng(seed).random((n, n)) ** 4 * 1e6
    np.fill_diagonal(matrix, 0)
    return Demand(group_ptr=[0, n], group_members=range(n), group_bytes=[rings], matrix=matrix)


def cluster_of(n, interfaces):
    cluster = Cluster.uniform(n_hosts=n, interfaces=4, interface_bandwidth=1e9, latency=1e-6)
    return attrs.evolve(cluster, interfaces=np.broadcast_to(interfaces, n))


def start(n, interfaces, seed=0, **options):
    problem = attrs.evolve(landscape.problem(), cluster=cluster_of(n, interfaces))
    return Relink(**options).build(problem, np.random.default_rng(seed))


def trial(fabric, cost=1.0, demand=None):
    state = State(landscape.problem().space.initial(), fabric)
    return Trial(state=state, cost=cost, demand=lambda: demand or demand_of(fabric.n_hosts))


def wired(n, interfaces, pairs=1, **changes):
    rng = np.random.default_rng(1)
    return construct(cluster_of(n, interfaces), demand_of(n), rules="paper", paths=2, rng=rng, pairs=pairs, **changes)


def counts(fabric):
    matrix = np.zeros((fabric.n_hosts, fabric.n_hosts), dtype=int)
    matrix[fabric.link_src, fabric.link_dst] = fabric.link_count
    return matrix


def check_wiring(fabric, interfaces):
    matrix, n = counts(fabric), fabric.n_hosts
    assert (matrix.sum(axis=1) <= interfaces).all()
    assert (matrix.sum(axis=0) <= interfaces).all()
    assert (np.diff(full_routes(fabric).pair_ptr) > 0).all()
    for rings in fabric.rings.values():
        for hop in {hop for ring in rings for hop in ring}:
            assert all(matrix[host, (host + hop) % n] for host in range(n))


@given(st.integers(3, 18), st.integers(1, 7), st.integers(0, 99), st.booleans(), st.sampled_from(["paper", "greedy"]))
@settings(max_examples=40, deadline=None)
def test_every_proposal_is_a_fabric(n, degree, seed, unequal, rules):
    rng = np.random.default_rng(seed)
    interfaces = rng.integers(1, degree + 1, n) if unequal else np.full(n, degree)
    first = construct(cluster_of(n, interfaces), demand_of(n, seed), rules=rules, paths=2, rng=rng)
    search = start(n, interfaces, seed)
    search.adopt(trial(first))
    for turn in range(12):
        for candidate in search.ask():
            check_wiring(candidate.fabric, interfaces)
            assert sorted(candidate.fabric.rings) == sorted(first.rings)
            assert not same_wires(candidate.fabric, candidate.base.fabric) or candidate.fabric.rings != first.rings
            search.tell([trial(candidate.fabric, cost=1.0 + turn % 2)])


def test_two_links_swap_ends():
    ring = np.roll(np.eye(6, dtype=int), 1, axis=1)
    count = ring + ring.T
    after = moves.cross_links(count, count, np.zeros((6, 6)), np.random.default_rng(0))
    assert (after.sum(axis=1) == 2).all()
    assert (after == after.T).all()
    assert np.abs(after - count).sum() == 8  # two links gone, two made, both ways
    assert moves.cross_links(count, np.zeros_like(count), np.zeros((6, 6)), np.random.default_rng(0)) is None


def test_pairs_with_bytes_far_apart_are_joined_first():
    ring = np.roll(np.eye(8, dtype=int), 1, axis=1)
    count, wish = ring + ring.T, np.zeros((8, 8))
    wish[5, 1] = 1.0
    after = moves.cross_links(count, count, wish, np.random.default_rng(0))
    assert after[1, 5] == after[5, 1] == 1


def test_ends_move_to_free_interfaces():
    count = np.zeros((4, 4), dtype=int)
    count[0, 1] = count[1, 0] = 1
    rng = np.random.default_rng(0)
    after = moves.move_end(count, count, np.array([0, 0, 1, 0]), rng)
    assert after[:2, 2].sum() == 1
    assert after.sum() == 2
    assert moves.move_end(count, count, np.zeros(4, dtype=int), rng) is None
    assert moves.add_link(count, np.array([0, 0, 1, 1]), rng)[2, 3] == 1
    assert moves.add_link(count, np.array([0, 0, 1, 0]), rng) is None


@given(st.integers(2, 24), st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_steps_stay_steps_and_keep_hosts_connected(n, most, seed):
    rng = np.random.default_rng(seed)
    steps = {n: [1] * int(rng.integers(1, most + 1))}
    for _ in range(10):
        steps = moves.change_steps(n, steps, most, rng) or steps
        assert sum(map(len, steps.values())) <= most
        assert steps[n]
        assert all(step in ring_steps(n, g) for g, own in steps.items() for step in own)
        assert set(steps) <= set(group_sizes(n))


def test_steps_are_read_off_rings():
    fabric = wired(16, 6, steps={16: [3], 8: [2, 6]})
    assert moves.steps_of(16, fabric.rings) == {16: [3], 8: [2, 6]}


def test_what_is_slower_is_dropped():
    search = start(16, 4)
    first = trial(wired(16, 4))
    search.adopt(first)
    (candidate,) = search.ask()
    assert candidate.cutoff_seconds == pytest.approx(1.0)
    assert candidate.cutoff_seconds > 1.0  # equally fast is kept, so that it drifts
    search.tell([trial(candidate.fabric, cost=float("inf"))])
    assert search.ask()[0].base is first.state
    best = trial(candidate.fabric, cost=1.0)
    search.tell([best])
    assert search.ask()[0].base is best.state


def test_it_finds_direct_links():
    matrix = np.zeros((16, 16))
    for host in range(16):
        matrix[host, (host + 7) % 16] = 1e6
    demand = Demand(group_ptr=[0], group_members=[], group_bytes=[], matrix=matrix)

    def cost(fabric):
        far = np.argwhere(matrix > 0)
        return float(
            np.mean([np.diff(full_routes(fabric).path_ptr).mean(), *(counts(fabric)[a, b] == 0 for a, b in far)])
        )

    first = construct(cluster_of(16, 4), None, rules="paper", paths=1, rng=np.random.default_rng(0), pairs=1)
    search = start(16, 4)
    search.adopt(trial(first, cost(first), demand))
    for _ in range(150):
        search.tell([trial(c.fabric, cost(c.fabric), demand) for c in search.ask()])
    assert search._current.cost < 0.7 * cost(first)


def test_routes_by_load_stay_routes_by_load():
    fabric = rebalanced(wired(12, 4), demand_of(12))
    search = start(12, 4)
    search.adopt(trial(fabric))
    assert all(c.fabric.routes is not None for c in search.ask())


def test_waits_for_its_turn():
    search = start(16, 4, every=3)
    search.adopt(trial(wired(16, 4)))
    assert [len(search.ask()) for _ in range(7)] == [1, 0, 0, 1, 0, 0, 1]


def test_leaves_alone_what_it_cannot_change():
    switch = Fabric.from_links(name="s", n_hosts=2, n_switches=1, links=[(0, 2), (2, 1)], bandwidth=1.0, latency=0.0)
    part = wired(4, 4)
    search = start(4, 4)
    for fabric in (switch, ReconfigurableFabric(forward=part, backward=part, reduce=part, delay=0.0)):
        search.adopt(trial(fabric))
        assert search.ask() == []
    problem = attrs.evolve(landscape.problem(), reconfigurable=False)
    with pytest.raises(TopoplanError, match="cannot be rewired"):
        Relink().build(problem, np.random.default_rng(0))

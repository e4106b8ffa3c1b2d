"""Matchings against brute force, and the use of what is left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan_directconnect.matching import add_matchings, bridges, fill_free, heaviest_matching, hops


def brute(weight, hosts):
    if len(hosts) < 2:
        return 0.0
    first, remaining = hosts[0], hosts[1:]
    return max(
        brute(weight, remaining),
        *(weight[first, partner] + brute(weight, [h for h in remaining if h != partner]) for partner in remaining),
    )


@given(st.integers(1, 8), st.integers(0, 999), st.booleans())
@settings(max_examples=60, deadline=None)
def test_matching_is_the_heaviest(n, seed, whole):
    rng = np.random.default_rng(seed)
    weight = rng.random((n, n)) if not whole else rng.integers(0, 3, (n, n)).astype(float)
    weight = weight + weight.T
    pairs = heaviest_matching(weight, np.arange(n), rng)
    assert len({host for pair in pairs for host in pair}) == 2 * len(pairs)
    assert all(weight[pair] > 0 for pair in pairs)
    assert sum(weight[pair] for pair in pairs) == pytest.approx(brute(weight, list(range(n))), rel=1e-8)


def perfect(weight, hosts):
    """Weight of the heaviest matching that leaves out no host, or one where their number is odd."""
    if len(hosts) < 2:
        return 0.0
    if len(hosts) % 2:
        return max(perfect(weight, [h for h in hosts if h != out]) for out in hosts)
    first, remaining = hosts[0], hosts[1:]
    return max(weight[first, mate] + perfect(weight, [h for h in remaining if h != mate]) for mate in remaining)


@given(st.integers(1, 8), st.integers(0, 999), st.floats(0.1, 1.0))
@settings(max_examples=60, deadline=None)
def test_it_weighs_as_much_as_the_heaviest_perfect_matching(n, seed, dense):
    rng = np.random.default_rng(seed)
    weight = np.triu(rng.random((n, n)) * (rng.random((n, n)) < dense), 1)
    weight = weight + weight.T
    pairs = heaviest_matching(weight, np.arange(n), rng)
    assert sum(weight[pair] for pair in pairs) == pytest.approx(perfect(weight, list(range(n))), rel=1e-8)


def test_only_allowed_hosts():
    pairs = heaviest_matching(np.ones((5, 5)), np.array([1, 4]), np.random.default_rng(0))
    assert pairs == [(1, 4)]
    assert heaviest_matching(np.ones((5, 5)), np.array([], dtype=np.int64), np.random.default_rng(0)) == []


def test_both_directions_count_and_returns_diminish():
    demand = np.zeros((4, 4))
    demand[0, 1], demand[1, 0] = 5, 5  # 10 together: more than 8 in one direction
    demand[1, 2], demand[3, 0] = 4, 3.5
    count, free = np.zeros((4, 4), dtype=np.int64), np.full(4, 2)
    add_matchings(count, free, demand, np.random.default_rng(0))
    assert count[0, 1] == 1  # first 0-1 (10 beats 4 + 3.5), then 5 is less than 7.5
    assert count[1, 2] == count[0, 3] == 1
    assert (count == count.T).all()
    assert free.tolist() == [0, 0, 1, 1]


def test_detours_weigh_bytes_by_hops_saved():
    count = np.zeros((6, 6), dtype=np.int64)
    hosts = np.arange(6)
    count[hosts, (hosts + 1) % 6] = count[(hosts + 1) % 6, hosts] = 1
    demand = np.zeros((6, 6))
    demand[0, 1], demand[0, 3] = 5, 4  # neighbours, and three hops apart
    for detours, partner in ((False, 1), (True, 3)):
        links, free = count.copy(), np.array([1, 1, 0, 1, 0, 0])
        add_matchings(links, free, demand, np.random.default_rng(0), detours=detours)
        assert links[0, partner] == count[0, partner] + 1
        assert free[partner] == free[0] == 0


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_fill_leaves_at_most_one_interface(n, degree, seed):
    rng = np.random.default_rng(seed)
    count, free = np.zeros((n, n), dtype=np.int64), np.full(n, degree)
    fill_free(count, free, np.zeros((n, n), dtype=np.int64), np.zeros((n, n)), rng)
    assert free.sum() == n * degree % 2
    assert (count.sum(axis=0) + free == degree).all()
    assert (count == count.T).all()
    assert not np.diag(count).any()


def test_fill_keeps_rings():
    ring = np.zeros((4, 4), dtype=np.int64)
    for a, b in ((0, 1), (1, 2), (2, 0)):
        ring[a, b] = ring[b, a] = 1
    count, free = ring.copy(), np.array([0, 0, 0, 2])
    fill_free(count, free, ring, np.zeros((4, 4)), np.random.default_rng(0))
    assert (count == ring).all()
    assert free[3] == 2
    count, free = ring.copy(), np.array([0, 0, 0, 2])
    fill_free(count, free, np.zeros_like(ring), np.zeros((4, 4)), np.random.default_rng(0))
    assert count.sum() == 8
    assert free.sum() == 0


@given(n=st.integers(1, 9), seed=st.integers(0, 200))
def test_a_bridge_is_a_link_without_which_its_ends_are_apart(n, seed):
    rng = np.random.default_rng(seed)
    count = np.triu(rng.integers(0, 3, (n, n)) * (rng.random((n, n)) < 0.4), 1)
    count += count.T
    expected = set()
    for a, b in zip(*np.nonzero(np.triu(count)), strict=True):
        without = count.copy()
        without[a, b] -= 1
        without[b, a] -= 1
        if hops(without)[a, b] == n:
            expected.add(frozenset((int(a), int(b))))
    assert bridges(count) == expected


def test_hops():
    path = np.zeros((4, 4), dtype=np.int64)
    path[[0, 1, 2], [1, 2, 3]] = 1
    assert hops(path).tolist() == [[0, 1, 2, 3], [4, 0, 1, 2], [4, 4, 0, 1], [4, 4, 4, 0]]


@given(st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_hops_match_powers_of_the_matrix(n, seed):
    rng = np.random.default_rng(seed)
    count = (rng.random((n, n)) < 0.25).astype(np.int64) * 2
    np.fill_diagonal(count, 0)
    step = (count > 0) | np.eye(n, dtype=bool)
    reachable, expected = np.eye(n, dtype=bool), np.where(np.eye(n, dtype=bool), 0, n)
    for length in range(1, n):
        reachable = reachable.astype(int) @ step.astype(int) > 0
        expected = np.minimum(expected, np.where(reachable, length, n))
    assert (hops(count) == expected).all()

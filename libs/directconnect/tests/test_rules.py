"""The pieces of the construction: permutations, coin change, splits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Demand
from topoplan_directconnect.coins import change, coin_table, multi_hop_rings
from topoplan_directconnect.permutations import group_sizes, ring_steps, select_paper, select_released
from topoplan_directconnect.split import allot_paper, allot_released, paper_pairs
from topoplan_directconnect.traffic import Traffic, traffic


def test_group_sizes():
    assert group_sizes(12) == [2, 3, 4, 6, 12]
    assert group_sizes(13) == [13]
    assert group_sizes(1) == []


def test_ring_steps():
    assert ring_steps(16, 16) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert ring_steps(12, 6) == [2, 10]
    assert ring_steps(12, 2) == [6]


@given(st.integers(2, 60), st.data())
@settings(max_examples=40, deadline=None)
def test_every_step_visits_the_whole_group(n, data):
    g = data.draw(st.sampled_from(group_sizes(n)))
    for step in ring_steps(n, g):
        assert {step * i % n for i in range(g)} == set(range(0, n, n // g))


@pytest.mark.parametrize(
    ("n", "degree", "steps"),
    [
        (16, 4, [1, 5]),
        (16, 8, [1, 3, 5, 9]),
        (12, 4, [1, 5]),
        (32, 4, [1, 7]),
        (32, 8, [1, 3, 7, 15]),
        (64, 4, [1, 9]),
        (64, 8, [1, 3, 9, 23]),
        (128, 4, [1, 13]),
        (128, 6, [1, 7, 27]),
        (128, 8, [1, 5, 13, 39]),
        (256, 8, [1, 5, 17, 65]),
        (432, 4, [1, 23]),
        (432, 8, [1, 5, 23, 95]),
        (16, 2, [1]),
    ],
)
def test_released_steps_are_flexnets(n, degree, steps):
    assert select_released(ring_steps(n, n), degree // 2) == steps


def test_released_steps_of_half_the_hosts():
    assert select_released(ring_steps(16, 8), 1) == [2]
    assert select_released(ring_steps(16, 8), 3) == [2, 6, 10]


def test_paper_steps_follow_the_progression():
    assert select_paper(ring_steps(16, 16), 2) == [1, 5]  # 1, 4: 5 is nearer in ratio than 3
    assert select_paper(ring_steps(64, 64), 3) == [1, 5, 17]  # 1, 4, 16: 17 is nearer in ratio than 15
    assert select_paper(ring_steps(64, 16), 2) == [4, 20]


@given(st.integers(2, 200), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_paper_steps_are_different_rings_while_there_are_any(n, count):
    steps = ring_steps(n, n)
    chosen = select_paper(steps, count)
    assert len(chosen) == count
    assert set(chosen) <= set(steps)
    different = {min(step, n - step) for step in steps}
    assert len({min(step, n - step) for step in chosen}) == min(count, len(different))
    assert chosen[0] == 1


@given(st.integers(2, 14), st.data())
@settings(max_examples=60, deadline=None)
def test_coin_change_is_minimal(n, data):
    coins = data.draw(st.lists(st.integers(1, n - 1), min_size=1, max_size=3, unique=True))
    table = coin_table(n, coins)
    for residue in range(n):
        counts = [
            k for k in range(n) if any(sum(c) % n == residue for c in itertools.combinations_with_replacement(coins, k))
        ]
        assert table[residue] == (counts[0] if counts else -1)
        if counts:
            used = change(n, table, residue, dict.fromkeys(coins, 0.0))
            assert sum(used) % n == residue
            assert len(used) == counts[0]
            assert set(used) <= set(coins)


def test_twelve_hosts_as_flexnet_exported_them():
    coins = {1: 1, 11: 1, 5: 1, 7: 1}
    published = {
        6: [(1, 1), (11, 11)],
        4: [(11, 5, 11), (1, 7, 1)],
        3: [(5, 11), (7, 1)],
        2: [(5, 1), (7, 11)],
    }
    for g, rings in published.items():
        ours = multi_hop_rings(12, ring_steps(12, g), coins, several=False)
        assert [len(ring) for ring in ours] == [len(ring) for ring in rings]
        assert {sum(ring) % 12 for ring in ours} <= set(ring_steps(12, g))
        assert ours[1] == tuple(12 - hop for hop in ours[0])


def test_several_rings_use_more_links():
    assert set(multi_hop_rings(16, ring_steps(16, 8), {1: 1, 15: 1, 5: 1, 11: 1}, several=True)[0]) <= {1, 5, 11, 15}
    rings = multi_hop_rings(12, ring_steps(12, 6), {1: 1, 11: 1, 5: 1, 7: 1}, several=True)
    assert {hop for ring in rings for hop in ring} == {1, 5, 7, 11}


def load(summed, pairs_bytes, n=16):
    matrix = np.zeros((n, n))
    matrix[0, 1] = pairs_bytes
    return Traffic(summed=summed, matrix=matrix)


@pytest.mark.parametrize(
    ("share", "degree", "pairs"),
    [(1.0, 4, 2), (0.5, 4, 1), (0.51, 4, 2), (0.0, 8, 1), (0.26, 8, 2), (0.25, 8, 1), (1.0, 5, 2), (1.0, 2, 1)],
)
def test_split_between_rings_and_links(share, degree, pairs):
    summed = {2: 100 * share / 2} if share else {}
    assert paper_pairs(load(summed, 100 * (1 - share)), degree) == pairs


def test_no_traffic_gives_everything_to_rings():
    assert paper_pairs(load({}, 0), 8) == 4
    assert allot_paper(load({}, 0), 16, 4) == [(16, 4)]
    assert allot_released(load({}, 0), 16, 4) == [(16, 4)]


def test_paper_allotment_is_in_proportion_and_keeps_a_ring_over_all():
    assert allot_paper(load({8: 1.0}, 0), 16, 4) == [(8, 3), (16, 1)]
    assert allot_paper(load({16: 1.0}, 0), 16, 4) == [(16, 4)]
    # 2 (g-1) bytes: 16 -> 30, 4 -> 30: half each
    assert allot_paper(load({16: 1.0, 4: 5.0}, 0), 16, 4) == [(16, 2), (4, 2)]
    assert allot_paper(load({8: 1.0, 4: 1.0}, 0), 16, 1) == [(16, 1)]


def test_released_allotment_gives_all_to_the_heaviest():
    assert allot_released(load({16: 10.0, 8: 1.0}, 9e9), 16, 4) == [(16, 4)]
    assert allot_released(load({16: 1.0, 8: 10.0}, 0), 16, 4) == [(8, 3), (16, 1)]
    assert allot_released(load({8: 10.0}, 0), 16, 1) == [(16, 1)]


def test_groups_that_are_not_evenly_spaced_count_as_pairs():
    demand = Demand(
        group_ptr=[0, 2, 5, 9],
        group_members=[1, 5, 0, 1, 2, 0, 2, 4, 6],
        group_bytes=[10, 30, 7],
        matrix=np.zeros((8, 8)),
    )
    sorted_out = traffic(demand, 8)
    assert sorted_out.summed == {2: 10, 4: 7}
    assert sorted_out.ring_bytes() == {2: 20, 4: 42}
    expected = np.zeros((8, 8))
    expected[[0, 1, 2], [1, 2, 0]] = 2 * 2 / 3 * 30
    assert sorted_out.matrix == pytest.approx(expected)

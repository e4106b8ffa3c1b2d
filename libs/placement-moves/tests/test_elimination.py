"""Elimination finds what trying all combinations finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan_placement_moves.elimination import least_sum


def total(unary, pairs, values):
    return sum(table[value] for table, value in zip(unary, values, strict=True)) + sum(
        table[values[u], values[v]] for (u, v), table in pairs.items()
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_sum_is_least(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 6).tolist()
    unary = [rng.random(size) for size in sizes]
    ends = [ends for ends in itertools.combinations(range(6), 2) if rng.random() < 0.5]
    pairs = {(u, v): rng.random((sizes[u], sizes[v])) * 2 for u, v in ends}
    found = total(unary, pairs, least_sum(unary, pairs))
    least = min(total(unary, pairs, values) for values in itertools.product(*map(range, sizes)))
    assert found == pytest.approx(least)


def test_a_variable_of_too_many_neighbours_gets_its_own_best_value():
    unary = [np.array([1.0, 0.0]), *(np.zeros(2) for _ in range(4))]
    pairs = {(u, v): np.eye(2) for u, v in itertools.combinations(range(5), 2)}
    values = least_sum(unary, pairs, most=4)
    assert len(values) == 5
    assert values[0] == 1

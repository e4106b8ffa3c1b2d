"""Distinct columns are those that `numpy.unique` finds, in its order."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan_engine.distinct import distinct_columns


@pytest.mark.parametrize("largest", [2, 9, 10**15])
def test_distinct_columns_are_those_of_numpy(largest):
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = rng.integers(-3, largest, (rng.integers(1, 4), rng.integers(1, 60)))
        _, first, number, counts = np.unique(rows, axis=1, return_index=True, return_inverse=True, return_counts=True)
        found = distinct_columns(*rows)
        assert found.first.tolist() == first.tolist()
        assert found.number.tolist() == number.ravel().tolist()
        assert found.counts.tolist() == counts.tolist()


def test_no_columns_are_none():
    assert distinct_columns(np.zeros(0, np.int64)).first.tolist() == []

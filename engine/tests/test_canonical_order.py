"""The canonical order of classes: a stable sort by several keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topoplan_engine.lowering.symmetry import order


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**64 - 1)), max_size=70))
def test_orders_are_sorted_stably(rows):
    keys = np.ascontiguousarray(np.array(rows, np.uint64).reshape(-1, 3).T)
    for first in range(3):
        ascending = order.ascending(np.ascontiguousarray(keys[first:]))
        assert ascending.tolist() == np.lexsort(keys[first:][::-1]).tolist()

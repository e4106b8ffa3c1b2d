"""The canonical order of classes: a stable sort by several keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topoplan_engine.lowering.symmetry import order


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=70))
def test_orders_are_sorted_stably(rows):
    first, second = np.array(rows, np.uint64).reshape(-1, 2).T
    by_second = order._by(np.ascontiguousarray(second), np.arange(len(rows)))
    both = order._by(np.ascontiguousarray(first), by_second)
    assert by_second.tolist() == np.argsort(second, kind="stable").tolist()
    assert both.tolist() == np.lexsort((second, first)).tolist()

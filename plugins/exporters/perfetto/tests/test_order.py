"""Slices in the order of their packets: a slice before all that wait for it, also where several begin together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topoplan_exporter_perfetto.slices import Slices, causes_first


@st.composite
def graphs(draw):
    """Return starts of slices, and dependencies none of which leads back in time; rows in any order."""
    count = draw(st.integers(1, 12))
    starts = np.sort(np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=np.int64))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    edges = np.array([pair for pair in pairs if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)
    place = np.array(draw(st.permutations(range(count))), dtype=np.int64)
    return starts[np.argsort(place)], place[edges[:, 0]], place[edges[:, 1]]


@given(graphs())
def test_slices_come_by_start_and_after_what_they_wait_for(graph):
    starts, sources, targets = graph
    empty = np.zeros(len(starts), dtype=np.int64)
    order = causes_first(Slices(empty, empty, empty, empty, starts, starts), sources, targets)
    assert sorted(order.tolist()) == list(range(len(starts)))
    assert np.all(np.diff(starts[order]) >= 0)
    place = np.argsort(order)
    assert np.all(place[sources] < place[targets])

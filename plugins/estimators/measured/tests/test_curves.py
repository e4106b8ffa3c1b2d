"""Interpolation: exact on power laws, bounded outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan_estimator_measured.curves import interpolate
from topoplan_estimator_measured.reading import Entry


def test_power_laws_and_lines_are_met_exactly():
    points = {float(n): Entry(2e-6 * n**0.5, 3e-6 * n, 1000 + 8 * n) for n in (16, 64, 256)}
    for samples in (16, 24, 64, 100, 256, 512, 8):
        value = interpolate(points, samples)
        assert value.forward == pytest.approx(2e-6 * samples**0.5)
        assert value.backward == pytest.approx(3e-6 * samples)
        assert value.memory == pytest.approx(1000 + 8 * samples)


def test_beyond_the_ends_time_neither_falls_nor_outgrows_the_samples():
    falling = {1.0: Entry(2.0, 1.0, 9.0), 2.0: Entry(1.0, 8.0, 5.0)}
    value = interpolate(falling, 4)
    assert (value.forward, value.backward, value.memory) == (1.0, 16.0, 5.0)
    value = interpolate(falling, 0.5)
    assert (value.forward, value.backward, value.memory) == (2.0, 0.5, 9.0)


def test_a_time_of_zero_is_joined_by_a_line():
    points = {1.0: Entry(0.0, 0.0, 0.0), 3.0: Entry(4.0, 0.0, 2.0)}
    assert interpolate(points, 2) == Entry(2.0, 0.0, 1.0)
    assert interpolate(points, 9).forward == 4.0
    assert interpolate(points, 0.5).forward == 0.0


@given(
    st.dictionaries(
        st.integers(1, 10**6).map(float),
        st.builds(Entry, *[st.floats(1e-6, 10)] * 2, st.floats(0, 1e11)),
        min_size=2,
        max_size=6,
    ),
    st.floats(0.5, 2e6),
)
def test_between_two_points_lies_between_their_costs(points, samples):
    got = interpolate(points, samples)
    for field in ("forward", "backward", "memory"):
        value = getattr(got, field)
        assert value >= 0
        below = [n for n in points if n <= samples]
        above = [n for n in points if n >= samples]
        if below and above:
            ends = sorted(getattr(points[n], field) for n in (max(below), min(above)))
            assert ends[0] * (1 - 1e-9) <= value <= ends[1] * (1 + 1e-9) + 1e-6 * (field == "memory")

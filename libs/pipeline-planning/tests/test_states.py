"""Antichain states against their definition, with sets instead of bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan_pipeline_planning.states import TooManyStatesError, antichain_states, joined_states, prefix_states


@st.composite
def graphs(draw, largest=8):
    """Draw the children of each operator of a DAG in which the first operator leads everywhere."""
    count = draw(st.integers(1, largest))
    children = [[] for _ in range(count)]
    for v in range(1, count):
        for u in sorted(draw(st.sets(st.integers(0, v - 1), min_size=1, max_size=3))):
            children[u].append(v)
    return children


def reached_from(children, start):
    states, queue = set(), list(children[start])
    while queue:
        node = queue.pop()
        if node not in states:
            states.add(node)
            queue.extend(children[node])
    return states


def slow_states(children):
    """Return, for each antichain: closed set, crossing set, and the antichains that follow it."""
    count = len(children)
    after = [reached_from(children, u) for u in range(count)]
    before = [{u for u in range(count) if v in after[u]} for v in range(count)]

    def augmented(antichain):
        more = {p for a in antichain for p in before[a] if any(v != a and v not in before[a] for v in children[p])}
        return set(antichain) | more

    states, queue, following = {}, [frozenset({0})], {}
    while queue:
        antichain = queue.pop()
        if antichain in states:
            continue
        members = augmented(antichain)
        states[antichain] = (frozenset(antichain.union(*(before[a] for a in antichain))), frozenset(members))
        following[antichain] = set()
        for u in members:
            for v in children[u]:
                if v not in antichain and not after[v] & members:
                    moved = (members - {u}) | {v}
                    step = frozenset(x for x in moved if not after[x] & moved)
                    following[antichain].add(step)
                    queue.append(step)
    return states, following


def members(row):
    return frozenset(np.flatnonzero(row).tolist())


@given(graphs())
def test_states_are_those_of_the_definition(children):
    expected, following = slow_states(children)
    states = antichain_states(children, 10_000)
    actual = [
        (members(closed), members(crossing)) for closed, crossing in zip(states.closed, states.crossing, strict=True)
    ]
    assert sorted(map(sorted, (state for state, _ in actual))) == sorted(
        map(sorted, (pair[0] for pair in expected.values()))
    )
    assert set(actual) == set(expected.values())

    number = {expected[antichain]: antichain for antichain in expected}
    if len(number) < len(expected):
        return  # two antichains that differ only in their way are not told apart below
    order = [number[pair] for pair in actual]
    for j, antichain in enumerate(order):
        earlier, others = set(), [a for a in order if antichain in following[a]]
        while others:
            antichain_ = others.pop()
            if antichain_ not in earlier:
                earlier.add(antichain_)
                others += [a for a in order if antichain_ in following[a]]
        assert members(states.before[j]) == {order.index(a) for a in earlier}


@given(graphs())
def test_states_are_prefixes_in_topological_order(children):
    states = antichain_states(children, 10_000)
    for closed, crossing in zip(states.closed, states.crossing, strict=True):
        inside = members(closed)
        assert all(u in inside for v in inside for u in range(len(children)) if v in children[u])
        assert members(crossing) <= inside
    assert not np.triu(states.before).any()
    assert states.closed[-1].all()
    assert states.before[-1, :-1].all()


@given(st.integers(1, 40))
def test_states_of_a_chain_are_its_operators(count):
    children = [[k + 1] for k in range(count - 1)] + [[]]
    states, prefixes = antichain_states(children, count), prefix_states(children)
    for matrices in (states, prefixes):
        np.testing.assert_array_equal(matrices.closed, np.tri(count, dtype=bool))
        np.testing.assert_array_equal(matrices.crossing, np.eye(count, dtype=bool))
        np.testing.assert_array_equal(matrices.before, np.tri(count, k=-1, dtype=bool))


@given(graphs())
def test_prefixes_carry_over_what_is_read_later(children):
    states = prefix_states(children)
    for j in range(len(children)):
        expected = {u for u in range(j + 1) if u == j or any(v > j for v in children[u])}
        assert members(states.crossing[j]) == expected


def test_skip_connection_crosses_every_cut_under_it():
    states = antichain_states([[1, 3], [2], [3], []], 10)
    assert [sorted(members(row)) for row in states.crossing] == [[0], [0, 1], [0, 2], [3]]


def test_an_explosion_is_stopped():
    wide = [list(range(1, 31)), *([31] for _ in range(30)), []]
    with pytest.raises(TooManyStatesError):
        antichain_states(wide, 1000)
    assert antichain_states([[1], [2], []], 3).closed.shape == (3, 3)
    with pytest.raises(TooManyStatesError):
        antichain_states([[1], [2], []], 2)


@given(graphs())
def test_joined_states_are_those_of_both_with_the_order_of_sets(children):
    first, second = antichain_states(children, 1000), prefix_states(children)
    joined, places = joined_states(first, second)

    def sets(states):
        return [frozenset(np.flatnonzero(row).tolist()) for row in states.closed]

    closed = sets(joined)
    assert len(set(closed)) == len(closed)
    assert set(closed) == set(sets(first)) | set(sets(second))
    assert [closed[place] for place in places] == sets(first)
    for j, late in enumerate(closed):
        earlier = {k for k, early in enumerate(closed) if early < late}
        assert set(np.flatnonzero(joined.before[j]).tolist()) == earlier
        assert all(k < j for k in earlier)
    for place, row in zip(places, first.crossing, strict=True):
        assert np.array_equal(joined.crossing[place], row)

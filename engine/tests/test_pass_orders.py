"""Pass orders against the published figures of their schedules, and what an order must fulfil."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.model.pass_order import Pass, PassOrder
from topoplan_engine.pass_orders import (
    Rows,
    alternating_order,
    bubble,
    ideal_times,
    kept_passes,
    pass_order,
)
from topoplan_samples.staged import with_recomputation


def one_f_one_b(ranks, micro_batches):
    return alternating_order("1f1b", range(ranks)[::-1], micro_batches)


def order_of(text):
    """An order from lines as `str` writes them, chunks named after a slash."""
    rows = []
    for rank, line in enumerate(text.split("\n")):
        passes = [(each, *each[1:].split("/")) for each in line.split()]
        kind = np.array(["FRBW".index(each[0]) for each, *_ in passes])
        micro_batch = np.array([int(numbers[0]) for _, *numbers in passes])
        chunk = np.array([int(numbers[1]) if len(numbers) > 1 else rank for _, *numbers in passes])
        rows.append(Rows(kind, chunk, micro_batch))
    return pass_order("given", rows)


def test_an_iteration_of_equal_passes_takes_what_is_published():
    """p = 4, m = 8, F = B = W = 1: 24 units of work, and 9, 3 and 4.5 of bubble."""
    equal = np.ones((4, 4))
    interleaved = alternating_order("interleaved", [2 * r + 4 for r in (3, 2, 1, 0)], 8, chunks=2)
    zb_h1 = alternating_order("zb-h1", [3, 2, 1, 0], 8, weights_late=[0, 1, 2, 3])
    assert ideal_times(one_f_one_b(4, 8), equal)[1].max() == 33
    assert ideal_times(zb_h1, equal)[1].max() == 27
    assert ideal_times(interleaved, np.full((4, 8), 0.5))[1].max() == 28.5


def test_a_recomputation_runs_in_front_of_the_backward_pass():
    assert str(with_recomputation(one_f_one_b(2, 2), [0])) == "rank 0: F0 F1 R0 B0 R1 B1\nrank 1: F0 B0 F1 B1"
    order = with_recomputation(alternating_order("interleaved", [4, 2], 2, chunks=2), [2])
    assert str(order).split("\n")[0] == "rank 0: F0/0 F1/0 F0/2 F1/2 R0/2 B0/2 R1/2 B1/2 B0/0 B1/0"
    twice = ideal_times(with_recomputation(one_f_one_b(1, 3), [0]), np.ones((4, 1)))[1].max()
    assert twice == 3 * 4  # F, R, B, W


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F0 F1 B0", "the backward pass of micro-batch 1 in chunk 0 is missing"),
        ("F0 B0 B0", "the backward pass of micro-batch 0 in chunk 0 runs 2 times"),
        ("B0 F0", "the backward pass of micro-batch 0 in chunk 0 comes before its forward pass"),
        ("F0 W0 B0", "the weights pass of micro-batch 0 in chunk 0 comes before its backward pass"),
        ("F0 B0 W0 R0", "the backward pass of micro-batch 0 in chunk 0 comes before its recompute pass"),
        ("B0", "the forward pass of micro-batch 0 in chunk 0 is missing"),
        ("F1 B1", "micro-batch 0 is in no row"),
        ("F0/0 B0/0\nF0/0 B0/0", "runs 2 times"),
        ("F0/0 F1/1\nB0/0 B1/1", "chunk 0 is on ranks 0 and 1"),
        ("F0/0 B0/0 F1/0 B1/0\nF0/1 B0/1", "chunks 0 and 1 share some micro-batches, not all"),
        ("F0 B0 F1 B1\nF1 B1 F0 B0", "ranks wait for each other, the first for the backward pass of micro-batch 0"),
    ],
)
def test_an_order_that_cannot_run_is_refused(text, reason):
    with pytest.raises(TopoplanError, match="pass order 'given': .*" + reason):
        order_of(text)


def test_columns_that_are_none_are_refused():
    columns = {"kind": [0, 2], "chunk": [0, 0], "micro_batch": [0, 0]}
    for changed, reason in (
        ({"chunk": [0]}, "columns of 2, 1 and 2 passes"),
        ({"rank_ptr": [0, 1]}, "rank_ptr must rise from 0 to the number of passes, 2"),
        ({"rank_ptr": [0, 0, 2]}, "rank_ptr must rise"),
        ({"kind": [0, 7]}, r"kind has 7 \(must be 0 to 3\)"),
        ({"chunk": [-1, 0]}, r"chunk -1 is in a row \(numbers begin at 0\)"),
    ):
        with pytest.raises(TopoplanError, match=reason):
            PassOrder(**{"name": "bad", "rank_ptr": [0, 2], **columns, **changed})


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_bubbles_of_1f1b_and_gpipe_are_those_of_the_formula(ranks, micro_batches, forward, backward, weights):
    """(p - 1)(F + B + W), for all micro-batches; GPipe keeps all, 1F1B as many as there are ranks to come."""
    seconds = np.repeat([[forward], [0], [backward], [weights]], ranks, axis=1).astype(float)
    gpipe = alternating_order("gpipe", [micro_batches] * ranks, micro_batches)
    for order in (gpipe, one_f_one_b(ranks, micro_batches)):
        makespan = ideal_times(order, seconds)[1].max()
        assert makespan == (micro_batches + ranks - 1) * (forward + backward + weights)
        assert bubble(order, seconds) == makespan - micro_batches * (forward + backward + weights)
    assert kept_passes(gpipe).tolist() == [micro_batches] * ranks
    expected = [min(micro_batches, ranks - rank) for rank in range(ranks)]
    assert kept_passes(one_f_one_b(ranks, micro_batches)).tolist() == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_ends_follow_what_each_pass_needs(ranks, turns, chunks):
    """A slow statement of the same: each pass begins at the latest end of its rank's last pass and of what it needs."""
    order = alternating_order(
        "interleaved", [2 * r + (chunks - 1) * ranks for r in range(ranks)][::-1], turns * ranks, chunks
    )
    seconds = np.random.default_rng(ranks).integers(1, 9, (4, order.n_chunks)).astype(float)
    start, end = ideal_times(order, seconds)
    tails, heads = order.edges
    latest = np.zeros(len(start))
    np.maximum.at(latest, heads, end[tails])
    assert (start == latest).all()
    one_pass = seconds[Pass.BACKWARD] + seconds[Pass.WEIGHTS]
    expected = np.where(order.kind == Pass.FORWARD, seconds[Pass.FORWARD][order.chunk], one_pass[order.chunk])
    assert end - start == pytest.approx(expected)

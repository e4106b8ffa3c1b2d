"""DualPipe's bubble and activations, and what it refuses."""

import itertools

import numpy as np
import pytest

from topoplan import Pass, TopoplanError
from topoplan_engine.pass_orders import bubble, kept_passes
from topoplan_schedule_dualpipe import DualPipe


def paired_bubble(order, forward, backward, weights):
    """The most that a rank is idle if a forward pass and the backward pass behind it, of the other way, run as one."""
    rank = np.repeat(np.arange(order.n_ranks), np.diff(order.rank_ptr))
    split = order.row_of[Pass.WEIGHTS][order.chunk, order.micro_batch] >= 0
    unit = np.arange(len(rank))
    followed = (rank[1:] == rank[:-1]) & (order.kind[:-1] == Pass.FORWARD) & (order.kind[1:] == Pass.BACKWARD)
    second = np.flatnonzero(followed & ~split[1:] & (order.chunk[1:] != order.chunk[:-1])) + 1
    unit[second] = second - 1
    seconds = np.array([forward, 0, backward, weights])[order.kind] + weights * ((order.kind == Pass.BACKWARD) & ~split)
    duration = np.bincount(unit, seconds)
    tails, heads = (unit[ends] for ends in order.edges)
    end, before = np.zeros(len(rank)), None
    while before is None or (before != end).any():  # a longest path, by relaxation
        before, start = end.copy(), np.zeros(len(rank))
        between = tails != heads
        np.maximum.at(start, heads[between], end[tails[between]])
        end = start + duration
    spans = [unit[first:last] for first, last in itertools.pairwise(order.rank_ptr)]
    return max(end[own].max() - start[own].min() - duration[np.unique(own)].sum() for own in spans)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("turns", [2, 5])
@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 1, 1), (2, 3, 1), (4, 5, 3)])
def test_bubble_is_that_of_the_table(ranks, turns, forward, backward, weights):
    """(p / 2 - 1)(F&B + B' - 3W), here with pairs that take as long as both passes."""
    order, whole = DualPipe().order(ranks, turns * ranks), backward + weights
    expected = (ranks / 2 - 1) * (forward + whole + whole - 3 * weights)
    assert paired_bubble(order, forward, backward, weights) == expected
    single = np.repeat([[float(forward)], [0.0], [float(backward)], [float(weights)]], order.n_chunks, axis=1)
    assert bubble(order, single) <= expected


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_each_rank_keeps_one_activation_more_than_there_are_ranks(ranks):
    assert kept_passes(DualPipe().order(ranks, 3 * ranks)).tolist() == [ranks + 1] * ranks


def test_half_of_the_micro_batches_go_each_way():
    order = DualPipe().order(4, 10)
    down, up = (order.micro_batch[(order.chunk == chunk) & (order.kind == Pass.FORWARD)] for chunk in (0, 4))
    assert down.tolist() == [0, 1, 2, 3, 4]
    assert up.tolist() == [5, 6, 7, 8, 9]
    assert order.rank_of.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "reason"),
    [(3, 8, r"3 ranks \(must be even: 2\)"), (4, 9, "two for each rank: 8"), (4, 6, "two for each rank: 8")],
)
def test_other_numbers_are_refused(ranks, micro_batches, reason):
    with pytest.raises(TopoplanError, match=reason):
        DualPipe().order(ranks, micro_batches)

"""Bubbles and activations of the zero-bubble schedules are those of their papers."""

import numpy as np
import pytest

from topoplan_engine.pass_orders import bubble, ideal_times, kept_passes
from topoplan_schedule_zero_bubble import VHalf, VMin, Zb2p, ZbH1, ZbH2, Zbv


def times(order, forward=1.0, backward=1.0, weights=1.0):
    return np.repeat([[forward], [0.0], [backward], [weights]], order.n_chunks, axis=1)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 1, 1), (4, 5, 3), (6, 5, 2)])
def test_zb_h1_idles_as_long_as_its_formula_says(ranks, forward, backward, weights):
    order = ZbH1().order(ranks, 4 * ranks)
    assert bubble(order, times(order, forward, backward, weights)) == (ranks - 1) * (forward + backward - weights)
    assert kept_passes(order).tolist() == [ranks] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 1, 1), (4, 5, 3)])
def test_zb_h2_idles_as_long_as_its_formula_says(ranks, forward, backward, weights):
    order = ZbH2().order(ranks, 4 * ranks)
    seconds = times(order, forward, backward, weights)
    assert bubble(order, seconds) == (ranks - 1) * (forward + backward - 2 * weights)
    assert kept_passes(order).tolist() == [2 * ranks - 1] * ranks


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 1, 1), (4, 5, 3)])
def test_zb_2p_keeps_all_that_its_search_may_and_idles_no_longer(ranks, forward, backward, weights):
    order = Zb2p().order(ranks, 4 * ranks)
    seconds = times(order, forward, backward, weights)
    assert bubble(order, seconds) <= bubble(ZbH2().order(ranks, 4 * ranks), seconds)
    assert kept_passes(order).max() == 2 * ranks


def test_an_iteration_of_equal_passes():
    """p = 4, m = 8: 24 units of work; ZB-H1 adds 3, and the last rank of ZB-H2 begins 3 later."""
    for cls in (ZbH1, ZbH2):
        order = cls().order(4, 8)
        assert ideal_times(order, times(order))[1].max() == 27


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 16])
@pytest.mark.parametrize("turns", [2, 5])
def test_zbv_has_no_bubble_and_the_activations_of_1f1b(ranks, turns):
    order = Zbv().order(ranks, turns * ranks)
    assert bubble(order, times(order)) == 0
    assert kept_passes(order).tolist() == [2 * ranks] * ranks  # of half a rank's layers each


@pytest.mark.parametrize(("cls", "idle", "kept"), [(VHalf, 1 / 2, 1 / 2), (VMin, 2 / 3, 1 / 3)])
@pytest.mark.parametrize("ranks", [4, 6, 8, 16, 32])
def test_v_half_and_v_min_trade_bubbles_for_activations(cls, idle, kept, ranks):
    """The paper gives shares of 1F1B for many ranks; few units are left at the ends."""
    order = cls().order(ranks, 3 * ranks)
    whole = (ranks - 1) * 3
    assert bubble(order, times(order)) / 2 <= idle * whole + 1
    assert kept_passes(order).max() / 2 <= kept * ranks + 1.5

"""Scores by hand."""

from __future__ import annotations

import math

import pytest

from topoplan_llm_measurements.scoring import kendall_tau, score


def test_errors_and_bias_are_those_of_a_hand_calculation():
    found = score([1.0, 2.0], [1.1, 1.6], ["a", "a"])
    assert found.mape_percent == pytest.approx(15.0)
    assert found.bias_percent == pytest.approx(-5.0)
    assert found.worst_percent == pytest.approx(20.0)


def test_order_counts_pairs_within_workloads():
    # Workload a: measured 1 < 1.02 < 2, predicted 1 > 0.9 and 1 < 1.5; the pair (1, 1.02) is nearer than 5 %.
    found = score([1.0, 1.02, 2.0, 10.0, 5.0], [1.0, 0.9, 1.5, 1.0, 2.0], ["a", "a", "a", "b", "b"])
    assert (found.pairs, found.pairs_in_order_percent) == (3, pytest.approx(200 / 3))
    assert found.kendall_tau_within == pytest.approx((1 + 1 - 1 - 1) / 4)  # three pairs of a, one of b
    # a: 0.9 is predicted best, measured 1.02 of 1.0; b: 1.0 is predicted best, measured 10 of 5.
    assert found.best_within_percent == pytest.approx(100.0)


def test_one_plan_that_was_measured_twice_is_counted():
    # Measured 1, 1.1, 1.01, 2; the first two are one plan.  Apart: (1, 1.1), (1.1, 1.01), and each with 2.
    found = score([1.0, 1.1, 1.01, 2.0], [1.0, 1.0, 1.2, 1.1], ["a"] * 4)
    assert (found.pairs, found.repeated_pairs, found.pairs_in_order_percent) == (5, 1, pytest.approx(100 * 2 / 5))
    assert (found.all_pairs, found.all_pairs_in_order_percent) == (6, pytest.approx(100 * 3 / 6))


def test_the_best_rate_is_the_largest():
    found = score([10.0, 20.0], [1.0, 2.0], ["a", "a"], larger_is_better=True)
    assert found.best_within_percent == 0.0


def test_ties_count_as_in_tau_b():
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))


def test_no_rows_have_no_score():
    found = score([], [], [])
    assert found.rows == 0
    assert math.isnan(found.mape_percent)

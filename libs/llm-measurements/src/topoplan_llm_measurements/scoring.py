"""How well predictions agree with measurements: size of the error, bias, and order.

Errors are those of predicted over measured.  Order is Kendall's tau-b, over all rows and within workloads, and of the
pairs of one workload that were measured more than 5 % apart, the share that is predicted in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, f64

__all__ = ["Score", "kendall_tau", "score"]

#: Two measurements of a workload that are nearer to each other than this share are in no order.
_APART = 0.05


@attrs.frozen(kw_only=True)
class Score:
    """How well the predictions of some rows agree; NaN where too few rows say nothing.

    Attributes:
        rows: how many.
        mape_percent: mean of |predicted / measured - 1|.
        bias_percent: mean of predicted / measured - 1: what all predictions are off by together, below 0 where they
            are too low.
        worst_percent: the largest error.
        kendall_tau: tau-b of predicted and measured over all rows.
        kendall_tau_within: the same over the pairs of one workload alone.
        pairs: pairs of one workload that were measured more than 5 % apart.
        pairs_in_order_percent: the share of them that is predicted in the same order.
        repeated_pairs: those of them with equal predictions: one plan, measured twice, which no prediction puts in
            order.
        all_pairs: pairs of one workload, however near to each other; equal measurements are none.
        all_pairs_in_order_percent: the share of these that is predicted in the same order.
        best_within_percent: by how much the plan predicted best was measured worse than the best one of its workload,
            in the worst workload.
    """

    rows: int
    mape_percent: float
    bias_percent: float
    worst_percent: float
    kendall_tau: float
    kendall_tau_within: float
    pairs: int
    pairs_in_order_percent: float
    repeated_pairs: int
    all_pairs: int
    all_pairs_in_order_percent: float
    best_within_percent: float


def score(
    measured: Sequence[float], predicted: Sequence[float], workloads: Sequence[str], larger_is_better: bool = False
) -> Score:
    """Return how well predictions agree.

    Args:
        measured, predicted: (n,) of a quantity, above 0.
        workloads: (n,) of which workload each row is.
        larger_is_better: whether the best plan has the most of the quantity.

    Examples:
        >>> found = score([1.0, 2.0, 4.0], [1.1, 1.8, 4.0], ["a", "a", "a"])
        >>> round(found.mape_percent, 2), found.kendall_tau, found.best_within_percent
        (6.67, 1.0, 0.0)
    """
    truth, guess = f64(np.array(measured, dtype=float)), f64(np.array(predicted, dtype=float))
    if not len(truth):
        nan = float("nan")
        return Score(
            rows=0,
            mape_percent=nan,
            bias_percent=nan,
            worst_percent=nan,
            kendall_tau=nan,
            kendall_tau_within=nan,
            pairs=0,
            pairs_in_order_percent=nan,
            repeated_pairs=0,
            all_pairs=0,
            all_pairs_in_order_percent=nan,
            best_within_percent=nan,
        )
    errors = np.abs(guess / truth - 1)
    _, number = np.unique(np.array(list(workloads)), return_inverse=True)
    same = _Pairs.of(truth, guess, number)
    return Score(
        rows=len(truth),
        mape_percent=float(100 * errors.mean()),
        bias_percent=float(100 * (guess / truth - 1).mean()),
        worst_percent=float(100 * errors.max()),
        kendall_tau=kendall_tau(truth, guess),
        kendall_tau_within=same.tau,
        pairs=same.apart,
        pairs_in_order_percent=_percent(same.in_order, same.apart),
        repeated_pairs=same.repeated,
        all_pairs=same.different,
        all_pairs_in_order_percent=_percent(same.agree, same.different),
        best_within_percent=_best_within(truth, guess, number, larger_is_better),
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")


@attrs.frozen(kw_only=True)
class _Pairs:
    """Pairs of rows of one workload: tau-b over them, and how many there are of them.

    Attributes:
        tau: tau-b.
        different, agree: those measured at different values, and those of them in order.
        apart, in_order, repeated: those far apart, those of them in order, and those predicted to be equal.
    """

    tau: float
    different: int
    agree: int
    apart: int
    in_order: int
    repeated: int

    @classmethod
    def of(cls, truth: F64, guess: F64, workload: np.ndarray) -> _Pairs:
        balance = different_truth = different_guess = agree = apart = in_order = repeated = 0
        for each in np.unique(workload):
            rows = np.flatnonzero(workload == each)
            for place, row in enumerate(rows[:-1]):
                later = rows[place + 1 :]
                by_truth, by_guess = np.sign(truth[row] - truth[later]), np.sign(guess[row] - guess[later])
                balance += int((by_truth * by_guess).sum())
                agree += int((by_truth * by_guess > 0).sum())
                different_truth += int((by_truth != 0).sum())
                different_guess += int((by_guess != 0).sum())
                far = np.abs(np.log(truth[row] / truth[later])) > np.log1p(_APART)
                apart += int(far.sum())
                in_order += int((far & (by_truth == by_guess)).sum())
                repeated += int((far & (by_guess == 0)).sum())
        scale = float(np.sqrt(float(different_truth) * float(different_guess)))
        return cls(
            tau=balance / scale if scale else float("nan"),
            different=different_truth,
            agree=agree,
            apart=apart,
            in_order=in_order,
            repeated=repeated,
        )


def kendall_tau(first: Sequence[float] | F64, second: Sequence[float] | F64) -> float:
    """Return Kendall's tau-b of two columns; NaN where all values of one are equal.

    Examples:
        >>> round(kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]), 3)
        0.667
    """
    same_workload = np.zeros(len(first), dtype=np.int64)
    return _Pairs.of(f64(np.array(first, dtype=float)), f64(np.array(second, dtype=float)), same_workload).tau


def _best_within(truth: F64, guess: F64, workload: np.ndarray, larger_is_better: bool) -> float:
    worst = float("nan")
    for each in np.unique(workload):
        rows = np.flatnonzero(workload == each)
        if len(rows) < 2:
            continue
        sign = -1.0 if larger_is_better else 1.0
        chosen, best = truth[rows[(sign * guess[rows]).argmin()]], truth[rows[(sign * truth[rows]).argmin()]]
        loss = 100 * (max(chosen / best, best / chosen) - 1)
        worst = loss if np.isnan(worst) else max(worst, loss)
    return float(worst)

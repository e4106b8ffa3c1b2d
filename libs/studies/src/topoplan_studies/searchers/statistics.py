"""What several seeds say about searchers: medians with intervals, tests of differences, ranks over problems.

Pure functions on arrays.  Methods, with their sources:

- the interval of a median by order statistics, from the binomial distribution (Conover, Practical Nonparametric
  Statistics, 3rd edition, section 3.2): it assumes that seeds are independent, and no distribution;
- Wilcoxon's signed-rank test of paired values, two-sided (Wilcoxon, Biometrics Bulletin 1, 1945);
- Holm's correction of several tests (Holm, Scandinavian Journal of Statistics 6, 1979);
- Friedman's test of ranks and Nemenyi's critical difference, for several searchers over several problems (Demsar,
  Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2).
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.errors import TopoplanError

__all__ = [
    "Interval",
    "Ranking",
    "Summary",
    "best_after",
    "check_scipy",
    "holm",
    "least_p",
    "least_rank_p",
    "median_interval",
    "paired_test",
    "ranking",
    "seeds_needed",
    "summary",
]

#: Probability that an interval holds the median, and chance of an error of the first kind.
CONFIDENCE, SIGNIFICANT = 0.95, 0.05


@attrs.frozen
class Interval:
    """An interval of a median, and the probability with which it holds it."""

    low: float
    high: float
    coverage: float


@attrs.frozen(kw_only=True)
class Summary:
    """What the values of several seeds are like: the median, quartiles, extremes, and the interval of the median."""

    count: int
    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float
    interval: Interval


@attrs.frozen(kw_only=True)
class Ranking:
    """Ranks of searchers over problems.

    Attributes:
        mean_ranks: (S,) the best has 1; searchers of equal medians share the mean of their ranks.
        p: chance of ranks as different as these where all searchers are equal, by Friedman's test; of two searchers by
            Wilcoxon's signed-rank test over problems.  None where there are too few problems.
        method: name of the test, or why there is none.
        critical_difference: mean ranks that differ by more differ significantly (Nemenyi); None of two searchers.
    """

    mean_ranks: F64
    p: float | None
    method: str
    critical_difference: float | None


def check_scipy() -> None:
    """Raise `TopoplanError` where the tests of this module cannot run; for a check before long work."""
    if importlib.util.find_spec("scipy") is None:
        raise TopoplanError("comparing searchers needs scipy: pip install 'topoplan-studies[statistics]'")


def summary(values: Sequence[float]) -> Summary:
    """Return what several values are like; quartiles are interpolated linearly, or the nearest if any is infinite."""
    finite = bool(np.isfinite(values).all())
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1], method="linear" if finite else "nearest")
    lowest, lower, median, upper, highest = quantiles.tolist()
    return Summary(
        count=len(values),
        least=lowest,
        lower_quartile=lower,
        median=median,
        upper_quartile=upper,
        most=highest,
        interval=median_interval(values),
    )


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the narrowest pair of order statistics, equally far from both ends, that holds the median.

    Its coverage is at least ``confidence`` where there are enough values for that, which are six for 95 %; of fewer,
    it is that of the least and the greatest.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count, skipped = len(ordered), 0
    while skipped + 1 < (count + 1) // 2 and 1 - 2 * _half_or_less(skipped + 1, count) >= confidence:
        skipped += 1
    coverage = max(0.0, 1 - 2 * _half_or_less(skipped, count))
    return Interval(float(ordered[skipped]), float(ordered[-1 - skipped]), coverage)


def _half_or_less(successes: int, trials: int) -> float:
    """Return the chance of at most so many successes, where each trial has one with chance 1/2."""
    return sum(math.comb(trials, count) for count in range(successes + 1)) / (1 << trials)


def paired_test(values: Sequence[float], second_values: Sequence[float]) -> float | None:
    """Return the chance of differences like these where neither is better: Wilcoxon's signed-rank test, two-sided.

    Differences are those of logarithms, so that a share of the time counts, not seconds.  Pairs of equal values are
    left out; where all are equal, the chance is 1.  None where an infinite value leaves no difference.
    """
    from scipy.stats import wilcoxon

    with np.errstate(invalid="ignore", divide="ignore"):
        differences = np.log(np.asarray(values, dtype=np.float64)) - np.log(np.asarray(second_values, dtype=np.float64))
    if not np.isfinite(differences).all():
        return None
    differences = differences[differences != 0]
    return float(wilcoxon(differences).pvalue) if len(differences) else 1.0


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Correct the chances of several tests, so that that of any false difference stays below each; None stays None."""
    order = sorted((p, index) for index, p in enumerate(chances) if p is not None)
    corrected: list[float | None] = [None] * len(chances)
    highest = 0.0
    for place, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p))
        corrected[index] = highest
    return corrected


def least_p(seeds: int, tests: int = 1) -> float:
    """Return the least chance that Wilcoxon's test of so many seeds can have, after Holm's correction of tests.

    All differences have one sign in two of the 2^n cases, and the least of the chances is multiplied by their number.

    >>> least_p(6), least_p(6, tests=10), least_p(9, tests=10)
    (0.03125, 0.3125, 0.0390625)
    """
    return float(min(1.0, tests * 2.0 ** (1 - seeds)))


def seeds_needed(tests: int = 1) -> int:
    """Return how many seeds a significant difference takes at least.

    >>> seeds_needed(), seeds_needed(tests=10)
    (6, 9)
    """
    return next(seeds for seeds in itertools.count(1) if least_p(seeds, tests) <= SIGNIFICANT)


def least_rank_p(problems: int, searchers: int) -> float:
    """Return the least chance that the test of ranks over so many problems can have: all of them have one order."""
    from scipy.stats import chi2

    if searchers == 2:
        return least_p(problems)
    return float(chi2.sf(problems * (searchers - 1), searchers - 1))


def ranking(medians: F64) -> Ranking:
    """Rank searchers over problems.

    Args:
        medians: (P, S) of each problem and searcher.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    problems, searchers = medians.shape
    mean_ranks = rankdata(medians, axis=1).mean(axis=0)
    if problems < 2 or searchers < 2:
        return Ranking(
            mean_ranks=mean_ranks, p=None, method="one problem has no test of ranks", critical_difference=None
        )
    if searchers == 2:
        p = paired_test(medians[:, 0].tolist(), medians[:, 1].tolist())
        method = "Wilcoxon's signed-rank test of medians over problems"
        return Ranking(mean_ranks=mean_ranks, p=p, method=method, critical_difference=None)
    tied = bool((medians == medians[:, :1]).all())
    p = 1.0 if tied else float(friedmanchisquare(*medians.T).pvalue)
    spread = float(studentized_range.ppf(1 - SIGNIFICANT, searchers, np.inf)) / np.sqrt(2)
    difference = spread * np.sqrt(searchers * (searchers + 1) / (6 * problems))
    return Ranking(
        mean_ranks=mean_ranks,
        p=p,
        method="Friedman's test, with Nemenyi's critical difference",
        critical_difference=float(difference),
    )


def best_after(history: F64, grid: F64) -> F64:
    """Return the best cost at each point of a grid.

    Args:
        history: (k, 2) rows (evaluations or seconds, best cost), by rising first column.
        grid: (n,) rising; before the first row the cost is infinite.
    """
    row = np.searchsorted(history[:, 0], grid, side="right") - 1
    return np.where(row >= 0, history[np.maximum(row, 0), 1], np.inf)

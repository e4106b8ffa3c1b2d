"""Fit a roofline to measured times, and say how far off it is where it was not fitted.

Model: seconds = max(FLOPs / rate, bytes / bandwidth) + kernels x overhead (Williams, Waterman, Patterson: Roofline,
CACM 52(4), 2009; plus a constant time per kernel), as the estimator ``roofline`` has it.  The fit minimizes the mean of
|log(model / measured)|, so that short and long operators count alike and outliers count little.  It is a pattern search
over the logarithms of the three constants, from several starts, which has no randomness.

Reshapes are left out: PyTorch moves no data for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64
from topoplan_operator_times.table import PartTimes

__all__ = ["Errors", "Passes", "Rates", "errors", "errors_by_kind", "fit_rates", "held_out", "passes_of"]

#: Least number of passes that three constants can be fitted to.
_LEAST = 6
#: Kinds of operator that only look at data in another shape.
_RESHAPES = ("flat", "flatten", "view")
#: Percentiles of rates and of times at which the search starts.
_STARTS = (10, 90)
#: Factors of the pattern search: from a factor of four down to a thousandth.
_STEPS = tuple(4.0 ** (0.5**k) for k in range(11))
_ROUNDS = 60


@attrs.frozen(eq=False)
class Passes:
    """Forward and backward passes, (n,) each: FLOPs, bytes and kernels, seconds, and name and kind of the operator."""

    flops: F64
    traffic: F64
    kernels: F64
    seconds: F64
    operators: tuple[str, ...]
    kinds: tuple[str, ...]

    def choose(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Passes:
        """Return those that ``mask`` (n,) names."""
        rows = np.flatnonzero(mask)
        names, kinds = (tuple(column[k] for k in rows) for column in (self.operators, self.kinds))
        return Passes(self.flops[rows], self.traffic[rows], self.kernels[rows], self.seconds[rows], names, kinds)


@attrs.frozen
class Rates:
    """FLOP/s, bytes/s, and seconds of each kernel."""

    flops: float
    bandwidth: float
    overhead: float

    def seconds(self, passes: Passes) -> F64:
        """Return the (n,) seconds of passes under the model."""
        working = np.maximum(passes.flops / self.flops, passes.traffic / self.bandwidth)
        return np.asarray(working + passes.kernels * self.overhead)


@attrs.frozen
class Errors:
    """Number of passes, and median and ninth decile of |model - measured| / measured."""

    count: int
    median: float
    decile: float


def passes_of(rows: Iterable[PartTimes]) -> Passes:
    """Return the passes of all rows that have times; those without kernels are left out.

    Raises:
        TopoplanError: there are too few.
    """
    table = []
    for row in rows:
        if row.shape.kind in _RESHAPES:
            continue
        flops, traffic, kernels = row.work.backward
        name = (row.operator, row.shape.kind)
        if row.forward is not None and row.forward.median > 0:
            table.append((row.work.flops, row.work.traffic, 1.0, row.forward.median, *name))
        if row.backward is not None and row.backward.median > 0 and kernels:
            work = (row.work.flops * flops, row.work.traffic * traffic, float(kernels))
            table.append((*work, row.backward.median, *name))
    if len(table) < _LEAST:
        raise TopoplanError(f"has {len(table)} timed passes (a roofline needs {_LEAST} at least)")
    numbers = np.array([row[:4] for row in table], dtype=np.float64)
    flops_of, traffic_of, kernels_of, seconds = numbers.T
    names, kinds = tuple(row[4] for row in table), tuple(row[5] for row in table)
    return Passes(flops_of, traffic_of, kernels_of, seconds, names, kinds)


def held_out(passes: Passes, share: float, seed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the (n,) mask of passes to hold out: all passes of a random ``share`` of the operators.

    Raises:
        TopoplanError: there are fewer than two operators.
    """
    names = sorted(set(passes.operators))
    if len(names) < 2:
        raise TopoplanError(f"has one operator, {names[0]!r} (two at least are needed to hold one out)")
    count = min(max(round(len(names) * share), 1), len(names) - 1)
    chosen = {names[k] for k in np.random.default_rng(seed).permutation(len(names))[:count]}
    return np.array([name in chosen for name in passes.operators])


def fit_rates(passes: Passes) -> Rates:
    """Return the constants whose times are nearest to the measured ones."""

    def loss(logs: F64) -> float:
        return float(np.abs(np.log(Rates(*map(float, np.exp(logs))).seconds(passes) / passes.seconds)).mean())

    def search(start: F64) -> tuple[float, F64]:
        best, lowest = start, loss(start)
        for step in _STEPS:
            for _ in range(_ROUNDS):
                moves = [best + sign * np.log(step) * axis for axis in np.eye(3) for sign in (1, -1)]
                losses = [loss(move) for move in moves]
                if min(losses) >= lowest - 1e-12:
                    break
                lowest, best = min(losses), moves[int(np.argmin(losses))]
        return lowest, best

    rates = [np.percentile(work / passes.seconds, _STARTS).clip(1) for work in (passes.flops, passes.traffic)]
    overheads = np.percentile(passes.seconds, _STARTS)
    starts = itertools.product(*rates, overheads)
    _, best = min((search(np.log(start)) for start in starts), key=lambda outcome: outcome[0])
    return Rates(*map(float, np.exp(best)))


def errors_by_kind(rates: Rates, passes: Passes) -> dict[str, Errors]:
    """Return how far the model is from what was measured, for each kind of operator."""
    kinds = np.array(passes.kinds)
    return {kind: errors(rates, passes.choose(kinds == kind)) for kind in dict.fromkeys(passes.kinds)}


def errors(rates: Rates, passes: Passes) -> Errors:
    """Return how far the model is from what was measured."""
    relative = np.abs(rates.seconds(passes) - passes.seconds) / passes.seconds
    median, decile = np.percentile(relative, (50, 90))
    return Errors(len(relative), float(median), float(decile))

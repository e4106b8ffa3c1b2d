"""Plans to start from: strategies that are the best by estimates, under several weights of communication.

How much of communication hides behind computation is not known before a simulation.  Therefore the sum of estimated
seconds is minimized under several weights of transfers and of gradient all-reduces, and every different plan is
proposed once.  On many devices estimates take seconds: they are made in turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topoplan import PlacedStrategy, Problem
from topoplan.arrays import F64
from topoplan_placement_moves.cut_estimates import CutEstimates
from topoplan_placement_moves.elimination import least_sum

__all__ = ["best_cuts", "plans"]

#: Weights of transfers and of gradient all-reduces beside computation.
_WEIGHTS = (
    (1.0, 1.0),
    (1.0, 0.5),
    (1.0, 0.2),
    (0.5, 1.0),
    (2.0, 1.0),
    (2.0, 2.0),
    (0.5, 0.5),
    (4.0, 4.0),
    (0.25, 0.25),
)


def plans(problem: Problem) -> Iterator[PlacedStrategy | None]:
    """Yield the different plans of all weights, without the initial strategy; None after each part of the estimates."""
    estimates = CutEstimates(problem)
    parts = estimates.growing_edges()
    edges = next(parts)
    while (more := next(parts, None)) is not None:
        edges = more
        yield None
    for numbers in best_cuts(estimates, edges):
        yield PlacedStrategy(tuple(cuts[number] for cuts, number in zip(estimates.cuts, numbers, strict=True)))


def best_cuts(estimates: CutEstimates, edges: Mapping[tuple[int, int], F64]) -> Iterator[tuple[int, ...]]:
    """Yield the different plans of all weights as numbers of cuts, without the initial strategy, which has the first.

    Args:
        estimates: of a problem.
        edges: all of `CutEstimates.growing_edges`.
    """
    yielded_plans = {(0,) * len(estimates.cuts)}
    for transfers, gradients in _WEIGHTS:
        unary = [
            compute + gradients * sums for compute, sums in zip(estimates.compute, estimates.gradients, strict=True)
        ]
        numbers = tuple(least_sum(unary, {ends: transfers * table for ends, table in edges.items()}))
        if numbers not in yielded_plans:
            yielded_plans.add(numbers)
            yield numbers

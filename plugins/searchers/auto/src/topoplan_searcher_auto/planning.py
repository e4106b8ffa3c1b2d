"""Plans to start from: strategies that are the best by estimates, under several weights of communication.

How much of communication hides behind computation is not known before a simulation.  Therefore the sum of estimated
seconds is minimized under several weights of transfers and of gradient all-reduces, and every different plan is
proposed once.  On many devices estimates take seconds: they are made in turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from topoplan import PlacedStrategy, Problem
from topoplan_searcher_auto.cuts import CutEstimates
from topoplan_searcher_auto.elimination import least_sum

__all__ = ["plans"]

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
    proposed_keys = {problem.space.initial().key}
    for transfers, gradients in _WEIGHTS:
        unary = [
            compute + gradients * sums for compute, sums in zip(estimates.compute, estimates.gradients, strict=True)
        ]
        values = least_sum(unary, {ends: transfers * table for ends, table in edges.items()})
        plan = PlacedStrategy(tuple(cuts[value] for cuts, value in zip(estimates.cuts, values, strict=True)))
        if plan.key not in proposed_keys:
            proposed_keys.add(plan.key)
            yield plan

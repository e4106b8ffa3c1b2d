"""The cuts that lower bounds look at: those of the strategy space, and cuts of the samples over any devices."""

from __future__ import annotations

from collections.abc import Iterator

from topoplan.model.problem import Problem

__all__ = ["degrees_of"]


def degrees_of(problem: Problem, index: int) -> Iterator[tuple[int, ...]]:
    """Go through the cuts of an operator: those of the space, the uncut operator, and its samples over any devices."""
    operator = problem.graph.operators[index]
    candidates = dict.fromkeys([*problem.space.degrees(index), (1,) * len(operator.dims)])
    if operator.sample_dim >= 0:
        size = operator.dims[operator.sample_dim].size
        most = min(problem.cluster.n_devices, size)
        candidates |= dict.fromkeys(operator.sample_cut(count) for count in range(2, most + 1))
    for degrees in candidates:
        if problem.costs.supports(index, degrees):
            yield degrees

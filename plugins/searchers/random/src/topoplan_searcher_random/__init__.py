"""Uniformly random strategies: a baseline for other searchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoplan import Candidate, PlacedStrategy, Search, Searcher, State, hookimpl

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem

__all__ = ["Random", "topoplan_searchers"]


class RandomSearch(Search):
    """Draws a placement for every operator, for each candidate; uses the fabric of the last adopted state."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._space, self._rng = problem.space, rng

    def ask(self) -> Sequence[Candidate]:
        """Propose one random strategy."""
        if self.state is None:
            return []
        count = len(self.state.strategy.placements)
        placements = [self._space.random_placement(op, self._rng) for op in range(count)]
        return [Candidate(base=State(PlacedStrategy(tuple(placements)), self.state.fabric))]


class Random(Searcher):
    """Uniformly random strategies: the baseline of every other searcher."""

    name = "random"
    axis = "strategy"
    whole_batch = True

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        return RandomSearch(problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Random

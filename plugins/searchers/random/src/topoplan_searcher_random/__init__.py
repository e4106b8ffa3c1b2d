"""Uniformly random strategies: the baseline that every other searcher has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoplan import Candidate, PlacedStrategy, Search, Searcher, State, Trial, hookimpl

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem

__all__ = ["Random", "topoplan_searchers"]


class RandomSearch(Search):
    """Draws every operator's placement anew for each candidate; keeps the fabric it adopted."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._space, self._rng = problem.space, rng
        self._state: State | None = None

    def adopt(self, trial: Trial) -> None:
        """Use the fabric of ``trial`` from now on."""
        self._state = trial.state

    def ask(self) -> Sequence[Candidate]:
        """Propose one random strategy."""
        if self._state is None:
            return []
        count = len(self._state.strategy.placements)
        placements = [self._space.random_placement(op, self._rng) for op in range(count)]
        return [Candidate(base=State(PlacedStrategy(tuple(placements)), self._state.fabric))]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn nothing."""


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

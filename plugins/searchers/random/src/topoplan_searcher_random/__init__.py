"""Uniformly random strategies: the baseline that every other searcher has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from topoplan import Candidate, PlacedStrategy, Searcher, State, Trial, hookimpl

__all__ = ["RANDOM", "RandomOptions", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class RandomOptions:
    """`random` has no options."""


class RandomSearch:
    """Draws every operator's placement anew for each candidate; keeps the fabric it adopted."""

    def __init__(self, problem: Any, rng: Any) -> None:
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


def _build(options: RandomOptions, problem: Any, rng: Any) -> RandomSearch:
    return RandomSearch(problem, rng)


RANDOM = Searcher(
    name="random",
    summary="Uniformly random strategies: the baseline of every other searcher",
    options=RandomOptions,
    build=_build,
    axis="strategy",
    whole_batch=True,
)


@hookimpl
def topoplan_searchers() -> list[Searcher]:
    """Register the searcher."""
    return [RANDOM]

"""Simulated annealing over strategies, with restarts.

One proposal gives one operator a random placement, or changes a staged strategy in one respect.  A slowdown ``d``, as a
share of the best time, is accepted with probability ``exp(-d / temperature)``.  The temperature falls geometrically
from ``hot`` to ``cold`` in the course of a round; the next round is twice as long and starts hot from the best state.
Rounds that double need no budget to be known: whenever the search ends, at least a quarter of the proposals belong to
one whole cooling.

Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated Annealing", Science 220, 1983.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from topoplan import Candidate, Search, Searcher, StagedStrategy, State, Trial, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Placement, Problem
    from topoplan_placement_moves.staged import StagedMoves

__all__ = ["Anneal", "topoplan_searchers"]


class AnnealSearch(Search):
    """One annealed chain; the fabric is that of the state that it adopted last."""

    follows = True
    reached: Trial | None = None

    def __init__(self, options: Anneal, problem: Problem, rng: np.random.Generator) -> None:
        self._options, self._problem, self._rng = options, problem, rng
        self._staged: StagedMoves | None = None
        self._current: Trial | None = None
        self._best: Trial | None = None
        self._cutoff = math.inf
        self._length, self._position = options.length, 0
        self._proposed = self._accepted = 0

    @property
    def acceptance(self) -> float | None:
        """Share of the proposals that were accepted."""
        return self._accepted / self._proposed if self._proposed else None

    @property
    def temperature(self) -> float:
        """Slowdown, as a share of the best time, that is accepted with probability 1/e."""
        hot, cold = self._options.hot, self._options.cold
        return hot * math.exp(self._position / max(self._length - 1, 1) * math.log(cold / hot))

    def adopt(self, trial: Trial) -> None:
        """Continue from ``trial``."""
        self._current = trial
        if self._best is None or trial.rank < self._best.rank:
            self._best = trial

    def ask(self) -> Sequence[Candidate]:
        """Propose a placement of one operator."""
        if self._current is None or self._best is None:
            return []
        if self._position == self._length:
            self._current, self._length, self._position = self._best, 2 * self._length, 0
        base, changes = self._changed(self._current.state)
        # Drawn before the price is known, the slowdown to accept is a cutoff that lets the evaluator stop early.
        slack = -math.log(1.0 - self._rng.random()) * self.temperature * self._best.cost
        self._cutoff = math.nextafter(self._current.cost + slack, math.inf)
        return [Candidate(base=base, placements=changes, cutoff_seconds=self._cutoff)]

    def _changed(self, state: State) -> tuple[State, dict[int, Placement]]:
        """Return a placement of one operator; or, of a staged strategy, one next to it and no placement."""
        if isinstance(state.strategy, StagedStrategy) and state.strategy.program is None:
            if self._staged is None:
                from topoplan_placement_moves.staged import StagedMoves

                self._staged = StagedMoves(self._problem)
            return attrs.evolve(state, strategy=self._staged.draw(state.strategy, self._rng)), {}
        op = int(self._rng.integers(len(state.strategy.placements)))
        return state, {op: self._problem.space.random_placement(op, self._rng)}

    def tell(self, trials: Sequence[Trial]) -> None:
        """Accept the proposal if it costs less than its cutoff."""
        self.reached = None
        for trial in trials:
            self._proposed += 1
            self._position += 1
            if trial.cost < self._cutoff:
                self._accepted += 1
                self._current = self.reached = trial
            if self._best is None or trial.rank < self._best.rank:
                self._best = trial


@attrs.frozen(kw_only=True)
class Anneal(Searcher):
    """Simulated annealing over strategies, with restarts (Kirkpatrick et al., Science 1983)."""

    name = "anneal"
    axis = "strategy"
    whole_batch = True

    hot: float = option(0.1, help="temperature at the start of a round, as a share of the best time", above=0)
    cold: float = option(0.001, help="temperature at the end of a round, likewise", above=0)
    length: int = option(250, help="proposals of the first round; each further one has twice as many", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        return AnnealSearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Anneal

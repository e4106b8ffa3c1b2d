"""The cross-entropy method over placements.

Every operator has a distribution over its placements.  A generation of strategies is drawn, operator by operator; its
fastest strategies, the elite, say what the distributions move towards; the next generation is drawn from these.

A distribution is a weight for each placement that an elite had, and one for a new random placement, which never falls
below ``fresh``.  It begins with the initial placement at ``1 - spread``.  So nothing of the size of the space is kept.

Source: Rubinstein, "The Cross-Entropy Method for Combinatorial and Continuous Optimization", Methodology and Computing
in Applied Probability 1, 1999, section 3; the smoothed update is that of De Boer et al., "A Tutorial on the
Cross-Entropy Method", Annals of Operations Research 134, 2005, section 4.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from topoplan import Candidate, Placement, Search, Searcher, Trial, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem

__all__ = ["CrossEntropy", "topoplan_searchers"]


class Distribution:
    """Weights of the placements of one operator; what they lack of 1 is that of a new random placement."""

    def __init__(self, placement: Placement, spread: float) -> None:
        self.weights = {placement: 1.0 - spread}

    def draw(self, uniform: float) -> Placement | None:
        """Return the placement that a number in [0, 1) names; None for a new random one."""
        position = bisect.bisect_right(list(itertools.accumulate(self.weights.values())), uniform)
        return next(itertools.islice(self.weights, position, None), None)

    def learn(self, placements: Sequence[Placement], rate: float, fresh: float) -> None:
        """Move the share ``rate`` of the way to the frequencies of ``placements``; ``fresh`` is left for new ones."""
        moved = {placement: (1.0 - rate) * weight for placement, weight in self.weights.items()}
        for placement, count in Counter(placements).items():
            moved[placement] = moved.get(placement, 0.0) + rate * count / len(placements)
        scale = min(1.0, (1.0 - fresh) / sum(moved.values()))
        self.weights = {placement: scale * weight for placement, weight in moved.items() if scale * weight > 1e-4}


class CrossEntropySearch(Search):
    """Draws strategies one by one; the fabric is that of the state that it adopted last."""

    def __init__(self, options: CrossEntropy, problem: Problem, rng: np.random.Generator) -> None:
        self._options, self._space, self._rng = options, problem.space, rng
        self._elites = math.ceil(options.elite * options.generation)
        # With one change in each strategy on average, or more for small models.
        self._fresh = options.fresh / len(problem.graph.operators)
        self._distributions: list[Distribution] = []
        self._drawn = 0
        self._generation: list[Trial] = []

    def adopt(self, trial: Trial) -> None:
        """Continue on the fabric of ``trial``, which counts as one of the generation; begin around the first one."""
        self.state = trial.state
        placements = trial.state.strategy.placements
        if not self._distributions:
            spread = min(0.5, self._options.spread / len(placements))
            self._distributions = [Distribution(placement, spread) for placement in placements]
        self._keep(trial)

    def ask(self) -> Sequence[Candidate]:
        """Draw a strategy; the cutoff is the cost of the slowest of the elite so far."""
        if self.state is None:
            return []
        changes = {}
        for op, placement in enumerate(self.state.strategy.placements):
            new_placement = self._distributions[op].draw(self._rng.random())
            new_placement = new_placement or self._space.random_placement(op, self._rng)
            if new_placement is not placement:
                changes[op] = new_placement
        full = len(self._generation) == self._elites
        cutoff = self._generation[-1].cost if full else math.inf
        return [Candidate(base=self.state, placements=changes, cutoff_seconds=cutoff)]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep the strategies that are fast; after a generation, learn from them."""
        for trial in trials:
            self._drawn += 1
            self._keep(trial)
        if self._drawn >= self._options.generation:
            self._learn()

    def _keep(self, trial: Trial) -> None:
        if trial.cost < math.inf:
            self._generation = sorted([*self._generation, trial], key=lambda t: t.rank)[: self._elites]

    def _learn(self) -> None:
        self._drawn, elite = 0, self._generation
        if elite:
            strategies = [trial.state.strategy.placements for trial in elite]
            for distribution, placements in zip(self._distributions, zip(*strategies, strict=True), strict=True):
                distribution.learn(placements, self._options.rate, self._fresh)
        self._generation = elite[:1]


@attrs.frozen(kw_only=True)
class CrossEntropy(Searcher):
    """The cross-entropy method over placements (Rubinstein 1999)."""

    name = "cem"
    axis = "strategy"
    whole_batch = True

    generation: int = option(50, help="strategies between two updates of the distributions", minimum=2)
    elite: float = option(0.1, help="share of a generation that the distributions learn from", above=0, maximum=1)
    rate: float = option(0.3, help="how far a distribution moves to the frequencies of the elite", above=0, maximum=1)
    spread: float = option(3.0, help="new placements in a strategy of the first generation, on average", above=0)
    fresh: float = option(1.0, help="new placements in a strategy of any generation, on average, at least", above=0)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        return CrossEntropySearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return CrossEntropy

"""Simulated annealing over strategies, with restarts from the best state."""

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import Candidate, Problem, Search, Searcher, Trial, hookimpl, option


@attrs.frozen(kw_only=True)
class Annealing(Searcher):
    """Simulated annealing over strategies, with restarts (Kirkpatrick et al., Science 220, 1983)."""

    name = "annealing"
    axis = "strategy"
    start: float = option(0.05, help="first temperature, as a share of the best cost", above=0)
    cooling: float = option(0.99, help="factor of the temperature after each proposal", above=0, maximum=1)
    restart: int = option(200, help="proposals without a new best before a restart", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        return AnnealingSearch(self, problem, rng)


class AnnealingSearch(Search):
    def __init__(self, options: Annealing, problem: Problem, rng: np.random.Generator) -> None:
        self.options, self.problem, self.rng = options, problem, rng

    def adopt(self, trial: Trial) -> None:
        self.current = self.best = trial
        self.temperature, self.since_best = self.options.start, 0

    def ask(self) -> Sequence[Candidate]:
        op = int(self.rng.integers(len(self.problem.graph.operators)))
        placement = self.problem.space.random_placement(op, self.rng)
        self.limit = self.current.cost - self.best.cost * self.temperature * np.log(1 - self.rng.random())
        return [Candidate(base=self.current.state, placements={op: placement}, cutoff_seconds=self.limit)]

    def tell(self, trials: Sequence[Trial]) -> None:
        self.temperature, self.since_best = self.temperature * self.options.cooling, self.since_best + 1
        for trial in trials:
            self.current = trial if trial.cost < self.limit else self.current
            if trial.rank < self.best.rank:
                self.best, self.since_best = trial, 0
        if self.since_best >= self.options.restart:
            self.adopt(self.best)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    return Annealing

"""The Markov chain: proposal, acceptance and resets.

Each `ask` proposes one change to the current state.  `tell` accepts or rejects it.  The acceptance number is drawn
before the proposal is priced and determines its cutoff.  The evaluator may therefore stop as soon as a lower bound
reaches the cutoff, and the chain visits the same states.

Sources: Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019,
section 6 (Metropolis-Hastings over strategies); the mix of proposals, the propagation and the periodic
return to the best state are those of FlexNet (``FFModel::optimize`` and ``rewrite``, TopoOpt, NSDI 2023).
FlexNet's temperature is absolute (1/ms).  It accepts almost no slowdown for slow models and almost every slowdown for
fast ones.  The default here measures a slowdown relative to the best time.

One kind of proposal is new: a *block* of neighbouring operators moves to one new placement at once.  If they move one
by one, the first moves add transfers between moved and unmoved operators.  A chain of single moves crosses this barrier
only at temperatures at which it accepts nearly everything.

From a staged strategy a proposal changes its layout, a border between stages, its micro-batches, ZeRO or recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from topoplan.model.placement import Placement
from topoplan.model.problem import Problem
from topoplan.model.staged import StagedStrategy
from topoplan.search.protocol import Candidate, Search, State, Trial
from topoplan_placement_moves.propagation import Propagation
from topoplan_searcher_mcmc.draws import quick_draws
from topoplan_searcher_mcmc.windows import neighbouring

if TYPE_CHECKING:
    from topoplan_placement_moves.staged import StagedMoves
    from topoplan_searcher_mcmc import Mcmc

__all__ = ["Chain"]

_RELATIVE_ALPHA = 20.0
_ABSOLUTE_ALPHA_PER_SECOND = 1000.0


class Chain(Search):
    """One Monte Carlo chain over strategies; the fabric is that of the state it last adopted."""

    follows = True
    reached: Trial | None = None

    def __init__(self, options: Mcmc, problem: Problem, rng: np.random.Generator) -> None:
        self._options = options
        self._problem = problem
        self._rng, self._staged_rng = quick_draws(rng), rng
        self._staged: StagedMoves | None = None
        self._propagation = Propagation(problem.graph, problem.space, options.spread)
        self._current: Trial | None = None
        self._best: Trial | None = None
        self._cutoff = math.inf
        self._proposed = self._accepted = self._since_reset = 0

    @property
    def acceptance(self) -> float | None:
        """Share of the proposals that were accepted."""
        return self._accepted / self._proposed if self._proposed else None

    def adopt(self, trial: Trial) -> None:
        """Start from ``trial``, or continue from it if another searcher found it."""
        self._current = trial
        if self._best is None or trial.cost < self._best.cost:
            self._best = trial

    def ask(self) -> Sequence[Candidate]:
        """Propose one change to the current state."""
        if self._current is None or self._best is None:
            return []
        self._reset()
        strategy = self._current.state.strategy
        if isinstance(strategy, StagedStrategy) and strategy.program is None:
            return [self._staged_move(strategy, self._current.state)]
        placements = self._changes(self._current)
        return [Candidate(base=self._current.state, placements=placements, cutoff_seconds=self._cutoff_seconds())]

    def _staged_move(self, strategy: StagedStrategy, state: State) -> Candidate:
        """Return a change of layout, border, micro-batches, ZeRO or recomputation."""
        if self._staged is None:
            from topoplan_placement_moves.staged import StagedMoves

            self._staged = StagedMoves(self._problem)
        moved = self._staged.draw(strategy, self._staged_rng)
        return Candidate(base=attrs.evolve(state, strategy=moved), cutoff_seconds=self._cutoff_seconds())

    def ask_screened(
        self, rejects: Callable[[State, Mapping[int, Placement], float], bool], most: int
    ) -> tuple[int, Sequence[Candidate]]:
        """Propose changes until one is not rejected; see `topoplan_engine.screening.Screened`."""
        if self._current is None or self._best is None:
            return 0, []
        strategy = self._current.state.strategy
        if isinstance(strategy, StagedStrategy) and strategy.program is None:
            return 0, self.ask()
        for rejected in range(most):
            self._reset()
            base = self._current.state
            placements = self._changes(self._current)
            cutoff = self._cutoff_seconds()
            if not rejects(base, placements, cutoff):
                return rejected, [Candidate(base=base, placements=placements, cutoff_seconds=cutoff)]
            self.reached = None
            self._proposed += 1
            self._since_reset += 1
        return most, []

    def _reset(self) -> None:
        """Return to the best state if it is time to."""
        if self._since_reset >= self._options.reset_every:
            self._current, self._since_reset = self._best, 0

    def tell(self, trials: Sequence[Trial]) -> None:
        """Accept the proposal if it costs less than its cutoff."""
        self.reached = None
        for trial in trials:
            self._proposed += 1
            self._since_reset += 1
            if trial.cost < self._cutoff:
                self._accepted += 1
                self._current = self.reached = trial
            if self._best is None or trial.cost < self._best.cost:
                self._best = trial

    def _changes(self, current: Trial) -> dict[int, Placement]:
        placements = current.state.strategy.placements
        kind = self._rng.random()
        if kind < self._options.propagation:
            changes = self._propagation.spread(placements, self._rng)
            if changes:
                return changes
        op = int(self._rng.integers(len(placements)))
        placement = self._problem.space.random_placement(op, self._rng)
        if self._options.hosts == "neighbouring":
            placement = self._problem.space.intern(neighbouring(placement, self._problem.cluster, self._rng))
        if kind >= 1.0 - self._options.block:
            return self._propagation.block(op, placement, self._rng)
        return {op: placement}

    def _cutoff_seconds(self) -> float:
        """Draw and return the cutoff of the next proposal, which is accepted if it costs less.

        Metropolis accepts a slowdown ``d`` with probability ``exp(-alpha * d)``.  With ``u`` drawn first, this is
        the condition ``d < -ln(u) / alpha``.
        """
        assert self._current is not None
        assert self._best is not None
        if math.isinf(self._current.cost):
            self._cutoff = math.inf
            return self._cutoff
        slack = -math.log(1.0 - self._rng.random())
        if self._options.temperature == "relative":
            slack *= self._best.cost / (self._options.alpha or _RELATIVE_ALPHA)
        else:
            slack /= (self._options.alpha or 1.0) * _ABSOLUTE_ALPHA_PER_SECOND
        # A proposal as fast as the current state is always accepted, so that the chain can drift on plateaus.
        self._cutoff = math.nextafter(self._current.cost + slack, math.inf)
        return self._cutoff

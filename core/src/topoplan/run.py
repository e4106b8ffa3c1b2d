"""The driver: the only search loop in the project.

``drive`` prices the initial state, then lets its searchers take turns: each is asked for candidates,
the evaluator prices them, the searcher is told.  When a searcher reaches a state better than all before,
the searchers of the *other* axis adopt it.  So do other network searchers, since another fabric for the same
strategy is as good a start for them all; other strategy searchers do not, since a strategy of another kind, a
pipeline say, may leave a chain no way on.  The loop ends when the budget is spent, when no searcher proposes
anything, when nothing was better for long enough, or when the user interrupts it: the best state so far is then
the result all the same.

The loop is a method of `Walk`, one search under way, so that several of them can go on in turns
(`topoplan.chains`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.evaluate import Evaluator
from topoplan.interrupt import Stop, interruptible
from topoplan.problem import Problem
from topoplan.search import Candidate, Search, State, Trial
from topoplan.strategy import Strategy

__all__ = ["Progress", "Result", "Run", "Walk", "drive", "first_state", "patience_of"]

#: Seconds between two reports of progress.
_REPORT_EVERY = 0.1


@attrs.frozen(kw_only=True)
class Run:
    """A search about to start: what observers are told about it.

    Attributes:
        budget: candidates to price after the initial state.
        patience: share of the budget after which the search ends if nothing was better; None to spend all.
    """

    problem: Problem
    budget: int
    seed: int
    searchers: tuple[str, ...]
    patience: float | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """How far a search is.

    Attributes:
        evaluations: candidates priced so far, the initial state included.
        best, initial: seconds per iteration.
        acceptance: share of its proposals that the strategy searcher accepted; None if it does not say.
        elapsed: seconds since the start.
    """

    evaluations: int
    best: float
    initial: float
    acceptance: float | None
    elapsed: float


@attrs.frozen(kw_only=True)
class Result:
    """What a search found.

    Attributes:
        best, initial: the states, and in ``*_cost`` their seconds per iteration, memory penalty included.
        history: (k, 2) float64, rows (evaluations, best cost) at every improvement.
        interrupted: the user stopped it.
    """

    best: State
    best_cost: float
    initial: State
    initial_cost: float
    evaluations: int
    elapsed: float
    acceptance: float | None
    history: np.ndarray
    interrupted: bool


class Walk:
    """One search under way.

    Attributes:
        best, initial: trials.
        history: rows (evaluations, best cost) at every improvement.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        first: State,
        searchers: Sequence[tuple[str, Search]],
        patience: int | None = None,
        on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
    ) -> None:
        """Price the state ``first`` and give it to the searchers.

        Args:
            evaluator: prices candidates.
            first: where to start.
            searchers: (axis, search) in the order of their turns.
            patience: proposals without a better state after which the walk ends; None for no such end.
            on_progress: called with ``"evaluated"`` at intervals and ``"new_best"`` at improvements.
        """
        self._started = self._reported = time.monotonic()
        self._evaluator, self._searchers, self._on_progress = evaluator, searchers, on_progress
        self._patience, self._idle = patience, 0
        self.initial = self.best = evaluator.price(Candidate(base=first))
        self.history = [(1.0, self.best.cost)]
        for _, search in searchers:
            search.adopt(self.initial)

    def advance(self, budget: int, stop: Stop) -> bool:
        """Price up to ``budget`` proposals; say whether more is worth asking for."""
        left = budget
        while left > 0 and not stop.wanted:
            asked = 0
            for axis, search in self._searchers:
                candidates = list(search.ask())[:left]
                if not candidates:
                    continue
                asked += len(candidates)
                left -= len(candidates)
                self._step(axis, search, candidates, stop)
                if self._patience is not None and self._idle >= self._patience:
                    return False
            if asked == 0:
                return False
        return True

    def _step(self, axis: str, search: Search, candidates: Sequence[Candidate], stop: Stop) -> None:
        """Price candidates, tell their searcher, and give what is worth it to the others."""
        trials = []
        for candidate in candidates:
            best = self.best
            trials.append(self._evaluator.price(candidate, best.cost if best.fits else float("inf")))
            if stop.wanted:
                break
        search.tell(trials)
        self._idle += len(trials)
        top = min(trials, key=lambda t: t.rank)
        if top.rank < self.best.rank:
            self._improve(top)
            for across, other in self._searchers:
                if other is not search and (across != axis or axis == "network"):
                    other.adopt(top)
            self._on_progress("new_best", self.progress())
        reached = getattr(search, "reached", None)
        if reached is not None and reached is not self.best:
            for across, other in self._searchers:
                if across != axis and getattr(other, "follows", False):
                    other.adopt(reached)
        now = time.monotonic()
        if now - self._reported >= _REPORT_EVERY:
            self._reported = now
            self._on_progress("evaluated", self.progress())

    def adopt(self, state: State, cost: float) -> None:
        """Go on from a better state that another walk reached; ``cost`` in seconds."""
        strategy = state.strategy
        fits = self._evaluator.fits(strategy)
        trial = Trial(state=state, cost=cost, demand=lambda: self._evaluator.demand(strategy), fits=fits)
        self._improve(trial)
        for _, search in self._searchers:
            search.adopt(trial)

    def _improve(self, trial: Trial) -> None:
        self.best, self._idle = trial, 0
        self.history.append((float(self.evaluations), trial.cost))

    @property
    def evaluations(self) -> int:
        """Candidates priced so far, the initial state included."""
        return self._evaluator.evaluations

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate of the first searcher that keeps one."""
        for _, search in self._searchers:
            rate = getattr(search, "acceptance", None)
            if rate is not None:
                return float(rate)
        return None

    def progress(self) -> Progress:
        """Say how far the walk is."""
        return Progress(
            evaluations=self.evaluations,
            best=self.best.cost,
            initial=self.initial.cost,
            acceptance=self.acceptance,
            elapsed=time.monotonic() - self._started,
        )


def first_state(evaluator: Evaluator, strategy: Strategy, rng: np.random.Generator) -> State:
    """Return a strategy on the fabric that the topology builds for it; ``rng`` draws what the topology draws."""
    problem = evaluator.problem
    demand = evaluator.demand(strategy) if problem.reconfigurable else None
    return State(strategy, problem.build_fabric(demand, rng))


def drive(
    run: Run,
    evaluator: Evaluator,
    start: Strategy | State,
    searchers: Sequence[tuple[str, Search]],
    rng: np.random.Generator,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
) -> Result:
    """Search from a strategy, whose fabric the topology builds, or from a state.

    Args:
        run: budget, and what observers see.
        evaluator: prices candidates.
        start: where to start.
        searchers: (axis, search) in the order of their turns.
        rng: draws the first fabric.
        on_progress: called with ``"evaluated"`` at intervals and ``"new_best"`` at improvements.

    The initial state and every candidate that a searcher proposes are one evaluation each; the budget
    counts the proposals, so a budget of 0 prices the initial state only.
    """
    first = start if isinstance(start, State) else first_state(evaluator, start, rng)
    walk = Walk(evaluator, first, searchers, patience_of(run.patience, run.budget), on_progress)
    with interruptible() as stop:
        walk.advance(run.budget, stop)
    done = walk.progress()
    on_progress("evaluated", done)
    return Result(
        best=walk.best.state,
        best_cost=walk.best.cost,
        initial=first,
        initial_cost=walk.initial.cost,
        evaluations=done.evaluations,
        elapsed=done.elapsed,
        acceptance=done.acceptance,
        history=np.array(walk.history),
        interrupted=stop.wanted,
    )


def patience_of(share: float | None, budget: int) -> int | None:
    """Return how many proposals a share of the budget is, at least one; None where there is no such limit."""
    return None if share is None else max(1, math.ceil(share * budget))

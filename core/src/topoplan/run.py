"""The driver: the only search loop in the project.

``optimize`` prices the initial state, then lets its searchers take turns: each is asked for candidates,
the evaluator prices them, the searcher is told.  When a searcher reaches a state better than all before,
the searchers of the *other* axis adopt it.  The loop ends when the budget is spent, when no searcher
proposes anything, or when the user interrupts it: the best state so far is then the result all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.evaluate import Evaluator
from topoplan.interrupt import interruptible
from topoplan.problem import Problem
from topoplan.search import Candidate, Search, State, Trial
from topoplan.strategy import Strategy

__all__ = ["Progress", "Result", "Run", "drive"]

#: Seconds between two reports of progress.
_REPORT_EVERY = 0.1


@attrs.frozen(kw_only=True)
class Run:
    """A search about to start: what observers are told about it."""

    problem: Problem
    budget: int
    seed: int
    searchers: tuple[str, ...]


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


def drive(
    run: Run,
    evaluator: Evaluator,
    strategy: Strategy,
    searchers: Sequence[tuple[str, Search]],
    rng: np.random.Generator,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
) -> Result:
    """Search from ``strategy``.

    Args:
        run: budget, and what observers see.
        evaluator: prices candidates.
        strategy: where to start; the topology builds its fabric for it.
        searchers: (axis, search) in the order of their turns.
        rng: draws the first fabric.
        on_progress: called with ``"evaluated"`` at intervals and ``"new_best"`` at improvements.

    The initial state and every candidate that a searcher proposes are one evaluation each; the budget
    counts the proposals, so a budget of 0 prices the initial state only.
    """
    started = time.monotonic()
    problem = evaluator.problem
    demand = evaluator.demand(strategy) if problem.reconfigurable else None
    first = State(strategy, problem.build_fabric(demand, rng))
    trial = evaluator.price(Candidate(base=first))
    best, initial_cost = trial, trial.cost
    history = [(1.0, trial.cost)]
    for _, search in searchers:
        search.adopt(trial)

    def progress() -> Progress:
        return Progress(
            evaluations=evaluator.evaluations,
            best=best.cost,
            initial=initial_cost,
            acceptance=_acceptance(searchers),
            elapsed=time.monotonic() - started,
        )

    left, reported = run.budget, started
    with interruptible() as stop:
        while left > 0 and not stop.wanted:
            asked = 0
            for axis, search in searchers:
                candidates = list(search.ask())[:left]
                if not candidates:
                    continue
                asked += len(candidates)
                left -= len(candidates)
                trials = []
                for candidate in candidates:
                    trials.append(evaluator.price(candidate))
                    if stop.wanted:
                        break
                search.tell(trials)
                top = min(trials, key=lambda t: t.cost)
                if top.cost < best.cost:
                    best = top
                    history.append((float(evaluator.evaluations), top.cost))
                    _share(searchers, axis, top)
                    on_progress("new_best", progress())
                reached = getattr(search, "reached", None)
                if reached is not None and reached is not best:
                    _share(searchers, axis, reached, followers_only=True)
                now = time.monotonic()
                if now - reported >= _REPORT_EVERY:
                    reported = now
                    on_progress("evaluated", progress())
            if asked == 0:
                break
    on_progress("evaluated", progress())
    return Result(
        best=best.state,
        best_cost=best.cost,
        initial=first,
        initial_cost=initial_cost,
        evaluations=evaluator.evaluations,
        elapsed=time.monotonic() - started,
        acceptance=_acceptance(searchers),
        history=np.array(history),
        interrupted=stop.wanted,
    )


def _share(
    searchers: Sequence[tuple[str, Search]], axis: str, trial: Trial, *, followers_only: bool = False
) -> None:
    """Give a state to every searcher of the other axis, or to those alone that follow each move."""
    for other, search in searchers:
        if other != axis and (not followers_only or getattr(search, "follows", False)):
            search.adopt(trial)


def _acceptance(searchers: Sequence[tuple[str, Search]]) -> float | None:
    """Return the acceptance rate of the first searcher that keeps one."""
    for _, search in searchers:
        rate = getattr(search, "acceptance", None)
        if rate is not None:
            return float(rate)
    return None

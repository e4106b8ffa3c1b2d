"""`drive`: one search run from its start to its `Result`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topoplan.model.strategy import Strategy
from topoplan.search.protocol import Progress, Run, Search, State
from topoplan_engine.interrupt import interruptible
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.journal import NoJournal
from topoplan_engine.search.limits import Ending, Limits, limits_of
from topoplan_engine.search.recorder import NoRecorder, history_of
from topoplan_engine.search.result import Result
from topoplan_engine.search.starting import first_state

__all__ = ["drive"]


def drive(
    run: Run,
    evaluator: Evaluator,
    start: Strategy | State,
    searchers: Sequence[tuple[str, Search]],
    rng: np.random.Generator,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
    keep: Keep = Keep(),  # noqa: B008 - it is frozen
    planning: float = 0.0,
    recorder: NoRecorder = NoRecorder(),  # noqa: B008 - it has no state
    limits: Limits | None = None,
    journal: NoJournal = NoJournal(),  # noqa: B008 - it has no state
    on_best: Callable[[SearchRun], None] = lambda search_run: None,
    *,
    interrupted: bool = False,
) -> Result:
    """Search from a strategy, whose fabric the topology builds, or from a state.

    Args:
        run: budget, and what observers see.
        evaluator: prices candidates.
        start: where to start.
        searchers: (axis, search) in the order of their turns.
        rng: draws the first fabric.
        on_progress: called with ``"evaluated"`` at intervals and ``"new_best"`` at improvements.
        keep: which searchers construct, and whether what they constructed is kept.
        planning: seconds that the searchers took to be built.
        recorder: takes note of evaluations.
        limits: of this search, where it is one of several that share those of the run.
        journal: of a run that can be resumed.
        on_best: called when there is a new best state.
        interrupted: the user has asked to stop while the searchers were built.

    The initial state and every candidate that a searcher proposes are one evaluation each; the budget
    counts the proposals, so a budget of 0 prices the initial state only.
    """
    first = start if isinstance(start, State) else first_state(evaluator, start, rng)
    limits = limits or limits_of(run.patience, run.budget, run.time_limit)
    search_run = SearchRun(evaluator, first, searchers, limits, on_progress, keep, planning, recorder, journal, on_best)
    with interruptible() as stop:
        stop.wanted = interrupted
        ended_by = search_run.advance(limits.budget, stop, limits.seconds - search_run.elapsed)
        if ended_by == "budget":
            search_run.price_something()
    on_progress("evaluated", search_run.progress())
    return _result(search_run, first, ended_by)


def _result(search_run: SearchRun, first: State, ended_by: Ending) -> Result:
    """Return what a run that has ended found."""
    final, (shortlist, aside) = search_run.progress(), search_run.shortlist()
    recorder = search_run.recorder
    return Result(
        best=search_run.best.state,
        best_cost=search_run.best.cost,
        initial=first,
        initial_cost=search_run.initial.cost,
        shortlist=shortlist,
        aside=aside,
        reports=search_run.reports(),
        evaluations=final.evaluations,
        planning=search_run.planning,
        elapsed=final.elapsed,
        acceptance=final.acceptance,
        history=np.array(search_run.history),
        rank=search_run.rank,
        ended_by=ended_by,
        unfinished=search_run.unfinished,
        too_large=search_run.too_large,
        left_out=search_run.left_out(),
        recorded=history_of([recorder.rows()]) if recorder.rows() else None,
    )

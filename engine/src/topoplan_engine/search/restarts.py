"""Restarts: independent searches from the same state, one after the other, that share a budget and a time limit.

A search that is lost in a poor part of the space stays there; several short ones often end better than a long one, and
differ in their random numbers alone.  None knows of what the others found: the best of all is the result.

Data flow: `searched` gives every search its `Limits`, and puts their `Result`s together as if they were one search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.model.recording import SearchHistory
from topoplan.search.protocol import Progress
from topoplan_engine.options import RunOptions
from topoplan_engine.search.bests import LAST, ShortlistEntry
from topoplan_engine.search.limits import Limits, limits_of, share, time_share
from topoplan_engine.search.result import Restart, Result
from topoplan_engine.search.run_folder import Journals
from topoplan_engine.states import state_key

__all__ = ["Part", "searched"]

_Report = Callable[[str, Progress], None]


@attrs.frozen(kw_only=True)
class Part:
    """One of the independent searches of a run.

    Attributes:
        limits: of this search.
        number: from 0 on.
        journals: where its chains write down their prices.
    """

    limits: Limits
    number: int = 0
    journals: Journals = attrs.field(factory=Journals)


def searched(
    run: RunOptions, journals: Journals, search: Callable[[Part, _Report], Result], on_progress: _Report
) -> Result:
    """Search as often as the options say, and return the result of all searches.

    Args:
        run: says how often, and the limits of all searches together.
        journals: of the run.
        search: runs one of the searches, and reports its progress.
        on_progress: called with the progress of all searches so far.
    """
    results: list[Result] = []
    for number in range(run.restarts):
        budget = share(run.budget, run.restarts, number)
        seconds = time_share(run.seconds, sum(result.elapsed for result in results), run.restarts - number)
        limits = limits_of(run.patience, budget, seconds, by_time=run.ends_by_time_alone)
        part = Part(number=number, limits=limits, journals=journals)
        results.append(search(part, _together(results, on_progress)))
        if results[-1].interrupted:
            break
    return results[0] if run.restarts == 1 else _joined(results, run.chains)


def _together(before: Sequence[Result], on_progress: _Report) -> _Report:
    """Return what reports the progress of a search and of those before it."""
    evaluations, elapsed = sum(r.evaluations for r in before), sum(r.elapsed for r in before)
    best = min((r.best_cost for r in before), default=float("inf"))

    def report(event: str, progress: Progress) -> None:
        if event == "new_best" and progress.best >= best:
            event = "evaluated"
        on_progress(
            event,
            attrs.evolve(
                progress,
                evaluations=evaluations + progress.evaluations,
                best=min(best, progress.best),
                elapsed=elapsed + progress.elapsed,
            ),
        )

    return report if before else on_progress


def _joined(results: Sequence[Result], chains: int) -> Result:
    """Return the results of independent searches as one: the best of them, with the evaluations of all."""
    best = min(results, key=lambda result: result.rank)
    kind = best.shortlist[-1].origin.constructed
    of_kind = [r for r in results if r.shortlist[-1].origin.constructed is kind and r is not best]
    rivals = sorted((entry for result in of_kind for entry in result.shortlist), key=lambda entry: entry.cost)
    asides = [result.aside for result in results if result.aside is not None]
    evaluations = np.cumsum([0, *(result.evaluations for result in results)])
    seconds = np.cumsum([0.0, *(result.elapsed for result in results)])
    rates = [result.acceptance for result in results if result.acceptance is not None]
    return attrs.evolve(
        best,
        initial=results[0].initial,
        initial_cost=min(result.initial_cost for result in results),  # some may have had no time to price it
        shortlist=_last_of([*best.shortlist[::-1], *rivals]),
        aside=min(asides, key=lambda entry: entry.cost, default=None),
        evaluations=int(evaluations[-1]),
        planning=sum(result.planning for result in results),
        elapsed=float(seconds[-1]),
        acceptance=sum(rates) / len(rates) if rates else None,
        history=_history(results, evaluations, seconds),
        ended_by=results[-1].ended_by,
        recorded=_recorded(results, chains, seconds),
        restarts=tuple(
            Restart(
                evaluations=int(evaluations[number]),
                seconds=float(seconds[number]),
                initial_cost=result.initial_cost,
                best_cost=result.best_cost,
            )
            for number, result in enumerate(results)
        ),
    )


def _last_of(entries: Sequence[ShortlistEntry]) -> tuple[ShortlistEntry, ...]:
    """Return the first of different states, the first of all at the end."""
    different = {state_key(entry.state): entry for entry in reversed(entries)}
    return tuple(entry for entry in reversed(entries) if entry in different.values())[-LAST:]


def _history(results: Sequence[Result], evaluations: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the rows of the first search, and those of later ones that are better than all before."""
    before = np.column_stack([evaluations[:-1], seconds[:-1], np.zeros(len(results))])
    rows = np.concatenate([result.history + offset for result, offset in zip(results, before, strict=True)])
    return rows[[k for k in range(len(rows)) if k < len(results[0].history) or rows[k, 2] < rows[:k, 2].min()]]


def _recorded(results: Sequence[Result], chains: int, seconds: np.ndarray) -> SearchHistory | None:
    """Return the evaluations of searches behind each other, the chains of a later one numbered after those before."""
    written = [(k, result.recorded) for k, result in enumerate(results) if result.recorded is not None]
    if not written:
        return None
    return SearchHistory(
        chain=np.concatenate([history.chain + k * chains for k, history in written]),
        evaluation=np.concatenate([history.evaluation for _, history in written]),
        seconds=np.concatenate([history.seconds + seconds[k] for k, history in written]),
        current=np.concatenate([history.current for _, history in written]),
        best=np.concatenate([history.best for _, history in written]),
        accepted=np.concatenate([history.accepted for _, history in written]),
    )

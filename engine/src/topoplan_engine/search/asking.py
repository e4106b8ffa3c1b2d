"""What the driver asks of searchers and of what they propose, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topoplan.model.placement import Placement
from topoplan.search.protocol import Search, State, Trial
from topoplan.search.stopping import Stopped
from topoplan_engine.guarded import KnowsBest, SaysLeftOut
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.evaluator import Evaluator

__all__ = [
    "acceptance_of",
    "planned_in_vain",
    "reasons_of",
    "reports_of",
    "say_best",
    "some_hold",
    "some_wait",
    "surely_rejects",
    "wake_all",
]


def surely_rejects(evaluator: Evaluator, base: State, placements: Mapping[int, Placement], cutoff: float) -> bool:
    """Say whether a proposal is known to cost no less than its cutoff.

    What raises an error is not rejected, nor what a clock stops: to price it says whose fault that is, or stops again.
    """
    try:
        return evaluator.rejects(base, placements, cutoff)
    except (Exception, Stopped):
        return False


def reasons_of(searchers: Sequence[Search]) -> tuple[str, ...]:
    """Return which searchers took no part in the search, or gave up a part of it, and why, a line for each."""
    reasons = (search.left_out for search in searchers if isinstance(search, SaysLeftOut))
    return tuple(reason for reason in reasons if reason)


def reports_of(searchers: Mapping[str, Search]) -> Mapping[str, Mapping[str, Any]]:
    """Return what searchers, by name, say of their best plans; those that say nothing are left out."""
    reports = {name: search.report(None) for name, search in searchers.items()}
    return {name: report for name, report in reports.items() if report is not None}


def some_wait(searchers: Sequence[tuple[str, Search]]) -> bool:
    """Say whether a searcher proposed nothing in its last turn, and may in one of the next."""
    return any(getattr(search, "waits", False) for _, search in searchers)  # of one that `TakesTurns`, asked each turn


def acceptance_of(searchers: Sequence[Search]) -> float | None:
    """Return the acceptance rate of the first searcher that keeps one."""
    return next((float(search.acceptance) for search in searchers if search.acceptance is not None), None)


def some_hold(searchers: Sequence[tuple[str, Search]], plans: Callable[[int], bool]) -> bool:
    """Say whether a search that ``plans``, as its number tells, keeps the run from ending by patience."""
    return any(
        plans(number) and (not isinstance(search, PortfolioMember) or search.holds)
        for number, (_, search) in enumerate(searchers)
    )


def planned_in_vain(search: Search) -> bool:
    """Say whether the last turn of a search was worth a proposal in work, though it brought none."""
    return bool(getattr(search, "in_vain", False))  # of one that `PlansInVain`


def say_best(searchers: Sequence[tuple[str, Search]], finder: Search | None, best: Trial) -> None:
    """Let searchers know the best state so far, and members of a portfolio who found it."""
    for _, search in searchers:
        if isinstance(search, PortfolioMember):
            search.leads = search is finder
            search.know_stages(best.state.strategy.n_stages)
        if best.fits and isinstance(search, KnowsBest):
            search.know_best(best.cost)


def wake_all(searchers: Sequence[tuple[str, Search]]) -> None:
    """Let members of a portfolio take part that wait for a pipeline to be the best plan."""
    for _, search in searchers:
        if isinstance(search, PortfolioMember):
            search.idles = False

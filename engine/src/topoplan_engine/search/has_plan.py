"""Whether a search ended with a plan that may be its result; if not, a line says why.

There is none where no state has a cost, and where the one plan that users stated has none: what a search began with
is no answer to them (`topoplan_engine.search.bests.Keep`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from topoplan.errors import NoPlanFitsError, TopoplanError
from topoplan_engine.fitting import no_plan_fits
from topoplan_engine.search.result import Result
from topoplan_engine.search.setup import SearchSetup, StatesStrategy
from topoplan_engine.search.unpriced import UnpricedError

__all__ = ["check_has_plan", "nearest_of"]


def check_has_plan(setup: SearchSetup, result: Result) -> None:
    """Raise an error where a search has no plan.

    Raises:
        NoPlanFitsError: no state has a cost, or the one that users stated does not fit under a hard limit.
        UnpricedError: there was no time for the one that users stated.
        TopoplanError: no state can be used.
    """
    if result.best_cost == math.inf:
        _refuse_all(setup, result)
    has_constructed = any(entry.origin.constructed for entry in result.shortlist)
    if setup.keep.stated and setup.keep.constructed and not has_constructed and not result.interrupted:
        _refuse_stated(setup, result)


def _refuse_all(setup: SearchSetup, result: Result) -> None:
    strategy = result.best.strategy
    if why := setup.evaluator.refusal(strategy) or setup.evaluator.oversize(strategy):
        raise TopoplanError(f"model {setup.problem.graph.name!r}: no plan was found that can be used: {why}")
    lacks = no_plan_fits(setup.problem, strategy, setup.evaluator.memory_use(strategy))
    early = f" (the {result.ended_by} came while {result.unfinished})" if result.unfinished else ""
    if result.too_large:
        early += f"; {result.too_large} were not priced, as their iterations are too large for the time or the memory"
    raise NoPlanFitsError(
        f"model {setup.problem.graph.name!r}: no strategy that was tried fits{early}: {lacks}; or "
        f"--simulator {setup.simulator.name}:memory=penalty, which ranks strategies that do not fit by what they lack"
    )


def _refuse_stated(setup: SearchSetup, result: Result) -> None:
    stating = next(searcher for searcher in setup.searchers if isinstance(searcher, StatesStrategy))
    strategy, model = stating.stated_strategy(setup.problem), setup.problem.graph.name
    if why := setup.evaluator.oversize(strategy):
        raise TopoplanError(why)
    if setup.evaluator.fits(strategy):
        raise UnpricedError(
            f"time-limit: the stated plan of model {model!r} could not be priced in "
            f"{setup.experiment.run.seconds:.3g} s: allow it more time"
        )
    reports = [nearest for report in result.reports.values() if (nearest := nearest_of(report))]
    lacks = no_plan_fits(setup.problem, strategy, setup.evaluator.memory_use(strategy), *reports[:1])
    raise NoPlanFitsError(f"model {model!r}: the stated plan does not fit: {lacks}")


def nearest_of(report: object) -> str:
    """Return the nearest plan that fits, as the searcher of one that does not fit reports it; empty if it does not."""
    nearest = report.get("nearest_that_fits") if isinstance(report, Mapping) else None
    return nearest if isinstance(nearest, str) else ""

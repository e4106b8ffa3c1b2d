"""Pipelines of a trainer: stages of equally many devices, its cuts and schedules, and recomputation as it has it.

The planner builds any pipeline; here its options, the widths of its stages and its plans are limited to what a
`topoplan.Restriction` says of pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from topoplan import Problem, TopoplanError
from topoplan_engine.search.common_restriction import as_run
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.planning import Planner, orders_of
from topoplan_searcher_pipeline.plans import PipelinePlan, strategy_of

__all__ = ["limited", "plans_of", "runnable"]


def limited(options: DapplePipeline, problem: Problem) -> tuple[DapplePipeline, tuple[str, ...]]:
    """Return options with the cuts and the recomputation of the trainer, if plans are for one, and schedules to try.

    Raises:
        TopoplanError: the trainer has no pipelines, or none with the schedule of the option.
    """
    kinds, restriction = orders_of(options.schedule), problem.restriction
    if restriction is None:
        return options, kinds
    limits = restriction.pipelines
    if limits is None:
        raise TopoplanError(f"searcher pipeline: {restriction.name} can run no pipelines")
    chosen = tuple(kind for kind in kinds if kind in limits.schedules)
    if not chosen:
        raise TopoplanError(
            f"searcher pipeline: schedule={options.schedule}: {restriction.name} runs no such pipelines "
            f"(it runs {', '.join(limits.schedules)})"
        )
    cuts = "layers" if limits.cuts == "layers" else options.cuts
    return attrs.evolve(options, cuts=cuts, recompute=options.recompute and limits.recompute != "none"), chosen


def plans_of(planner: Planner, problem: Problem, best: float, number: int) -> list[PipelinePlan]:
    """Return what `Planner.plans_of` does; of plans for a trainer, those whose stages have equally many devices."""
    if problem.restriction is None:
        return planner.plans_of(best, number)
    plans: list[PipelinePlan] = []
    for size in planner.sizes:
        plans += attrs.evolve(planner, sizes=(size,)).plans_of(best, number)
    return sorted(plans, key=lambda plan: plan.seconds)[:number]


def runnable(plans: Sequence[PipelinePlan], problem: Problem, planner: Planner) -> Iterator[PipelinePlan]:
    """Yield what the trainer runs of some plans; all stages recompute where some do and it has no such thing."""
    restriction = problem.restriction
    for plan in plans:
        if restriction is None:
            yield plan
            continue
        limits = restriction.pipelines
        if limits is not None and limits.recompute != "any" and any(plan.recompute):
            plan = attrs.evolve(plan, recompute=(True,) * len(plan.recompute))
        strategy = as_run(problem, strategy_of(plan, problem.graph, planner.columns, planner.machine))
        if len(set(plan.pipeline.sizes)) == 1 and not restriction.refusal(problem.graph, problem.cluster, strategy):
            yield plan

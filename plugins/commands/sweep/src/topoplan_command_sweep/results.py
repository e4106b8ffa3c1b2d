"""One experiment for each batch size, each in a worker of its own; finished ones survive an interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from topoplan import Host, TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan_engine import Experiment, optimize
from topoplan_engine.executors import Executor, run_jobs

__all__ = ["BatchSizeResult", "plan_batch_size", "plan_batch_sizes"]


@attrs.frozen(kw_only=True)
class BatchSizeResult:
    """What came of planning for one batch size.

    Attributes:
        batch_size: samples of an iteration.
        seconds: of one iteration of the plan, as simulated; None if there is no plan.
        plan: where it comes from.
        speedup: as the searcher estimates it; None if it does not, or if it constructed another plan.
        simulated_speedup: what one device takes, as the searcher reports it, over ``seconds``.
        split: the plan in short, as the searcher reports it; empty likewise.
        baselines: speedups of other plans, as the searcher reports them.
        aside, aside_seconds: the other plan to know of (`topoplan.Outcome`), and what it takes as simulated.
        fits: whether a plan fits into memory; None if there is no plan for another reason.
        problem: why there is no plan, or what it lacks; empty if there is one that fits.
    """

    batch_size: int
    seconds: float | None = None
    plan: str = ""
    speedup: float | None = None
    simulated_speedup: float | None = None
    split: str | None = None
    baselines: Mapping[str, float | None] = attrs.field(factory=dict)
    aside: str | None = None
    aside_seconds: float | None = None
    fits: bool | None = None
    problem: str = ""


def plan_batch_size(host: Host, experiment: Experiment) -> BatchSizeResult:
    """Run an experiment; what is wrong with it becomes a result, too."""
    batch_size = experiment.run.batch_size
    assert batch_size is not None
    try:
        outcome = optimize(experiment, host=host)
    except TopoplanError as error:
        fits = False if isinstance(error, NoPlanFitsError) else None
        return BatchSizeResult(batch_size=batch_size, fits=fits, problem=str(error))
    record, report, aside = outcome.plan.provenance, dict[str, Any](), outcome.aside
    for of_searcher in record.get("reports", {}).values():
        report.update(of_searcher)
    of_plan = "reports_are_of" not in record
    one_device = report.get("one_device_s")
    return BatchSizeResult(
        batch_size=batch_size,
        seconds=outcome.seconds,
        fits=outcome.fits,
        problem="" if outcome.memory_ignored else outcome.lacks,
        plan=outcome.origin.name,
        speedup=report.get("speedup") if of_plan else None,
        simulated_speedup=one_device / outcome.seconds if one_device and outcome.seconds else None,
        split=report.get("split") if of_plan else None,
        baselines={k: v for k, v in (report.get("baselines") or {}).items() if v is None or isinstance(v, float)},
        aside=None if aside is None else aside.entry.origin.name,
        aside_seconds=None if aside is None else aside.draws.mean,
    )


def plan_batch_sizes(
    experiments: Sequence[Experiment],
    executor: Executor,
    on_progress: Callable[[BatchSizeResult], None] = lambda result: None,
    host: Host | None = None,
) -> tuple[list[BatchSizeResult], bool]:
    """Run experiments and return their results in order, and whether the user stopped: then some are missing.

    Args:
        experiments: with a batch size each.
        executor: where they run.
        on_progress: called with every result as soon as it is there.
        host: where components come from; all installed plugins unless given.

    Raises:
        TopoplanError: a process died.
    """
    results: dict[int, BatchSizeResult] = {}

    def finish(index: int, result: BatchSizeResult) -> None:
        results[index] = result
        on_progress(result)

    names = [f"batch size {experiment.run.batch_size}" for experiment in experiments]
    interrupted = run_jobs(host or Host.discover(), plan_batch_size, experiments, names, executor, finish)
    return [results[index] for index in sorted(results)], interrupted

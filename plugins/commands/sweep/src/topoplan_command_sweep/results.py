"""One experiment for each batch size, each in a worker of its own; finished ones survive an interruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Unpack

import attrs

from topoplan import Host, TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan_engine import Experiment, optimize
from topoplan_engine.executors import Executor, Processes, run_jobs
from topoplan_engine.keywords import Keywords, Model, experiment_of
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.workers import takes_turn

__all__ = ["BatchSizeResult", "SweepResult", "plan_batch_size", "sweep"]


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


@attrs.frozen(kw_only=True)
class SweepResult:
    """What `sweep` returns: the results that are finished, by batch size as given, and whether the user stopped it."""

    rows: tuple[BatchSizeResult, ...]
    interrupted: bool

    def _repr_html_(self) -> str:
        return str(import_module("topoplan_command_sweep.table").sweep_table(self.rows).html("plans by batch size"))


@compilation_announced(is_first=takes_turn)
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


def sweep(
    model: Experiment | Model,
    batch_sizes: Sequence[int],
    *,
    jobs_on: Executor | None = None,
    on_progress: Callable[[BatchSizeResult], None] = lambda result: None,
    host: Host | None = None,
    **options: Unpack[Keywords],
) -> SweepResult:
    """Plan a model for several batch sizes, each from data parallelism on.

    Args:
        model: a frontend, by name or itself; or a whole experiment, which then has all options.
        batch_sizes: samples of an iteration, in the order of the results.
        jobs_on: where plans are made, side by side; one process of this machine for each core unless given.
        on_progress: called with every result as soon as it is there.
        host: where components come from; all installed plugins unless given.
        options: those of `topoplan.optimize`; the searcher is ``pipeline`` unless given.

    Raises:
        TopoplanError: an option is wrong, or a process died.  What is wrong with one batch size is in its result.
    """
    if isinstance(model, Experiment):
        if options:
            raise TopoplanError(f"sweep: {next(iter(options))!r} beside an Experiment (put it in there)")
        experiment = model
    else:
        options.setdefault("searchers", "pipeline")
        experiment = experiment_of(model, **options)
    if (searchers := len(experiment.searchers)) > 1:
        raise TopoplanError(f"--searcher: is given {searchers} times (this command takes one)")
    experiments = [attrs.evolve(experiment, run=attrs.evolve(experiment.run, batch_size=size)) for size in batch_sizes]
    results: dict[int, BatchSizeResult] = {}

    def finish(index: int, result: BatchSizeResult) -> None:
        results[index] = result
        on_progress(result)

    names = [f"batch size {size}" for size in batch_sizes]
    workers = jobs_on or Processes(workers=os.cpu_count() or 1)
    interrupted = run_jobs(host or Host.discover(), plan_batch_size, experiments, names, workers, finish)
    return SweepResult(rows=tuple(results[index] for index in sorted(results)), interrupted=interrupted)

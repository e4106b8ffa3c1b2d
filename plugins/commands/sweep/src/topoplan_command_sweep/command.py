"""``topoplan sweep``: one plan for each batch size."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer

from topoplan import TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan.options import option
from topoplan_command_sweep.plot import plot as figure_of
from topoplan_command_sweep.results import BatchSizeResult
from topoplan_command_sweep.results import sweep as sweep_of
from topoplan_command_sweep.table import as_json as json_of
from topoplan_command_sweep.table import sweep_table
from topoplan_engine.completion import models
from topoplan_engine.executors import executor_from
from topoplan_engine.experiment import experiment_from_options
from topoplan_engine.flags import AsJson, Flags
from topoplan_engine.options import EXECUTOR, LARGEST_BATCH, ClusterOptions, ComponentOptions, RunOptions
from topoplan_engine.reporting.figures import check_figure, write_figure
from topoplan_engine.reporting.progress import parts_shown

__all__ = ["SweepOptions", "sweep"]

#: Those of the example of DAPPLE's planner.
_BATCH_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


@attrs.frozen(kw_only=True)
class SweepOptions:
    """What is swept, and where the result goes."""

    batch_sizes: tuple[int, ...] = option(
        _BATCH_SIZES,
        help="samples per iteration over all devices",
        minimum=1,
        maximum=LARGEST_BATCH,
        metavar="N,...",
    )
    jobs: int | None = option(
        None, help="worker processes; unset: RAYON_NUM_THREADS, as HPGO, or one for each core", minimum=1, short="-j"
    )
    executor: str = option("processes", help=EXECUTOR, metavar="NAME[:KEY=VALUE,...]")
    plot: Path | None = option(None, help="draw what the table shows; SVG, PDF or PNG", metavar="FILE.svg")

    def __attrs_post_init__(self) -> None:
        if not self.batch_sizes:
            raise TopoplanError("--batch-sizes: needs one at least")
        if self.plot is not None:
            check_figure(self.plot, "topoplan-command-sweep")


#: Options of a run that a sweep has not: it plans each batch size once, from data parallelism.
_OF_OPTIMIZE = ("batch_size", "strategy", "strategy_rest", "patience", "chains", "workers", "executor")


def sweep(
    model: Annotated[
        str,
        typer.Argument(help="Frontend that builds the model, e.g. torchgraph.", autocompletion=models),
    ],
    sweep: SweepOptions,
    components: Annotated[ComponentOptions, Flags(defaults={"searcher": ("pipeline",)})],
    cluster: ClusterOptions,
    run: Annotated[
        RunOptions,
        Flags(without=(*_OF_OPTIMIZE, "record")),
    ],
    as_json: AsJson = False,
) -> None:
    """Plan a model for one batch size after the other, in parallel, and compare with the searcher's baselines.

    --plot draws speedups over batch sizes.
    """
    experiment = experiment_from_options(model, components, cluster, run)
    finished = itertools.count(1)
    with parts_shown("planning", len(sweep.batch_sizes), quiet=as_json) as report:
        result = sweep_of(
            experiment,
            sweep.batch_sizes,
            jobs_on=executor_from(sweep.executor, sweep.jobs or _default_jobs()),
            on_progress=lambda row: report(next(finished), f"batch size {row.batch_size}"),
        )
    rows = result.rows
    _show(rows, result.interrupted, as_json=as_json)
    if sweep.plot is not None and rows:
        write_figure(figure_of(rows), sweep.plot)
    if result.interrupted:
        typer.echo(f"interrupted: {len(rows)} of {len(sweep.batch_sizes)} batch sizes are finished", err=True)
        raise typer.Exit(130)


def _default_jobs() -> int:
    """Return how many processes to use: ``RAYON_NUM_THREADS``, by which HPGO is limited, or one for each core.

    Raises:
        TopoplanError: the variable has no number.
    """
    threads = os.environ.get("RAYON_NUM_THREADS", "")
    if threads and not threads.isdecimal():
        raise TopoplanError(f"RAYON_NUM_THREADS={threads}: is not a number (worker processes; 0: one for each core)")
    return int(threads or 0) or os.cpu_count() or 1


def _show(rows: Sequence[BatchSizeResult], interrupted: bool, *, as_json: bool) -> None:
    """Print what is finished.

    Raises:
        TopoplanError: there is no plan for any batch size.
    """
    if rows and all(row.seconds is None for row in rows):
        raise (NoPlanFitsError if rows[0].fits is False else TopoplanError)(rows[0].problem)
    if as_json:
        typer.echo(json.dumps(json_of(rows, interrupted), indent=2))
    elif rows:
        sweep_table(rows).print()
        for row in rows:
            if row.fits is False and row.problem:
                typer.echo(f"global batch {row.batch_size}: {row.problem}", err=True)

"""The words after ``topoplan sweep``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from topoplan import TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan.files import write_file
from topoplan.options import listed, pairs, structure
from topoplan_command_sweep.plot import plot as drawn
from topoplan_command_sweep.table import as_json as json_of
from topoplan_command_sweep.table import cells_of, headers_of
from topoplan_command_sweep.work import Row, rows_of
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions
from topoplan_studies.chart import check_plot

__all__ = ["application"]

#: Seconds between two lines that say how far it is, where there is no terminal.
_EVERY = 60.0

#: Those of the example of DAPPLE's planner.
_BATCH_SIZES = "32,64,128,256,512,1024,2048,4096"


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("sweep")(sweep)
    return app


def sweep(
    model: str = typer.Argument(help="Frontend that builds the model, e.g. torchgraph."),
    option: list[str] = typer.Option([], "-o", "--option", metavar="KEY=VALUE", help="Option of the model."),  # noqa: B008
    batch_sizes: str = typer.Option(_BATCH_SIZES, metavar="N,...", help="Samples per iteration over all devices."),
    searcher: str = typer.Option("pipeline", "-s", "--searcher", help="NAME or NAME:key=value,..."),
    topology: str = typer.Option("bigswitch", "-t", "--topology", help="NAME or NAME:key=value,..."),
    estimator: str = typer.Option(
        None, "-e", "--estimator", help="NAME or NAME:key=value,...; the model's own unless given."
    ),
    simulator: str = typer.Option("fluid", "--simulator", help="NAME or NAME:key=value,..."),
    servers: int = typer.Option(16, help="Number of hosts."),
    gpus_per_server: int = typer.Option(1, help="Devices of each host."),
    devices: str = typer.Option(None, metavar="[END,...]", help="Where each host's devices end, in place of both."),
    inter_gpu_bandwidth_gbps: float = typer.Option(2400.0, help="Between two GPUs of one host."),
    interface_bandwidth_gbps: float = typer.Option(100.0, help="Of one network interface."),
    degree: int = typer.Option(
        None, help="Network interfaces of each host, all used; unless given 1 to a switch, 4 where hosts are wired."
    ),
    latency_us: float = typer.Option(1.0, help="Of one network link, one way."),
    device: str = typer.Option("A100-40", help="Kind of device: a machine that `topoplan plugins` lists."),
    memory_gb: float = typer.Option(None, help="Memory of a device; as its kind has, unless given."),
    budget: int = typer.Option(1000, help="Candidates to price for each batch size."),
    seed: int = typer.Option(0, help="Of all randomness."),
    keep: str = typer.Option(
        "constructed",
        help="Of searchers that construct a plan: the best that they constructed, or (fastest) what simulates fastest.",
    ),
    draws: int = typer.Option(1, help="Draws of equal paths whose mean a candidate costs."),
    precision: str = typer.Option("fp32", help="Of the model: fp32; fp16 or bf16 are mixed precision."),
    precision_speedup: float = typer.Option(
        None, help="How much faster it computes than fp32; for estimators that know times in fp32 only."
    ),
    optimizer: str = typer.Option(
        None, help="adam, momentum or sgd: what memory keeps for each weight; adam, unless the model says otherwise."
    ),
    jobs: int = typer.Option(None, min=1, help="Processes; one for each core unless given."),
    plot: Path = typer.Option(None, metavar="FILE.svg", help="Draw speedups over batch sizes."),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Plan a model for one batch size after the other, in parallel, and compare with the searcher's baselines."""
    cluster: dict[str, Any] = {
        "servers": servers,
        "gpus-per-server": gpus_per_server,
        "inter-gpu-bandwidth-gbps": inter_gpu_bandwidth_gbps,
        "interface-bandwidth-gbps": interface_bandwidth_gbps,
        "degree": degree,
        "latency-us": latency_us,
        "device": device,
        "memory-gb": memory_gb,
    }
    if devices is not None:
        cluster["devices"] = listed(devices)
    name = Choice.parse(model, "model")
    given: dict[str, Any] = {
        "model": Choice(name.name, {**name.options, **pairs(option, "-o")}),
        "cluster": structure(ClusterOptions, cluster, "--"),
        "topology": Choice.parse(topology, "topology"),
        "estimator": None if estimator is None else Choice.parse(estimator, "estimator"),
        "simulator": Choice.parse(simulator, "simulator"),
        "searchers": (Choice.parse(searcher, "searcher"),),
    }
    run = {
        "budget": budget,
        "seed": seed,
        "keep": keep,
        "draws": draws,
        "precision": precision,
        "precision-speedup": precision_speedup,
        "optimizer": optimizer,
    }
    structure(RunOptions, run, "--")  # so that a message about one of these does not name the batch sizes
    experiments = [
        Experiment(**given, run=structure(RunOptions, {**run, "batch-size": size}, "--batch-sizes"))
        for size in listed(batch_sizes)
    ]
    if plot is not None:
        check_plot(plot)
    with _bar(len(experiments), quiet=as_json) as report:
        rows, interrupted = rows_of(experiments, jobs or os.cpu_count() or 1, report)
    _show(rows, interrupted, as_json=as_json)
    if plot is not None and rows:
        write_file(plot, drawn(rows).encode())
    if interrupted:
        typer.echo(f"interrupted: {len(rows)} of {len(experiments)} batch sizes are finished", err=True)
        raise typer.Exit(130)


def _show(rows: Sequence[Row], interrupted: bool, *, as_json: bool) -> None:
    """Print what is finished.

    Raises:
        TopoplanError: there is no plan for any batch size.
    """
    if rows and all(row.seconds is None for row in rows):
        raise (NoPlanFitsError if rows[0].fits is False else TopoplanError)(rows[0].problem)
    if as_json:
        typer.echo(json.dumps(json_of(rows, interrupted), indent=2))
    elif rows:
        from topoplan_studies.columns import print_columns

        print_columns("", headers_of(rows), [cells_of(row, rows) for row in rows], names=("global batch",))
        for row in rows:
            if row.fits is False and row.problem:
                typer.echo(f"global batch {row.batch_size}: {row.problem}", err=True)


@contextmanager
def _bar(total: int, *, quiet: bool) -> Iterator[Callable[[Row], None]]:
    """Show how many batch sizes are finished on standard error: a bar on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, emoji=False)
    columns = (TextColumn("planning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    began = last = time.monotonic()
    finished = 0

    def line(row: Row) -> None:
        nonlocal last, finished
        finished, now = finished + 1, time.monotonic()
        if not quiet and now - last >= _EVERY:
            last = now
            typer.echo(f"planning: {finished} of {total} batch sizes, {now - began:.0f} s", err=True)

    if quiet or not console.is_terminal:
        yield line
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sweep", total=total)
        yield lambda row: bar.update(task, advance=1)

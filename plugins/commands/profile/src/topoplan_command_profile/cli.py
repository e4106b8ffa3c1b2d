"""The words after ``topoplan profile``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from topoplan import TopoplanError
from topoplan.files import check_writable, write_file
from topoplan_command_profile.document import document
from topoplan_command_profile.launch import check_torch, measure_here, measure_joined, started_by_torchrun
from topoplan_command_profile.worker import COLLECTIVES

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_profile)
    app.command("collectives")(collectives)
    return app


def _profile() -> None:
    """Measure this machine, for estimators to read."""


def collectives(
    processes: int = typer.Option(2, help="Processes to start here; torchrun's own are taken where it started this."),
    sizes_mb: str = typer.Option("0.1,1,8,32", metavar="MB,...", help="Bytes of the whole tensor; two sizes at least."),
    repeats: int = typer.Option(10, help="Times that each is measured; the median counts."),
    backend: str = typer.Option(
        "", help="Of torch.distributed: gloo, nccl, ...; nccl where there are GPUs, gloo elsewhere, unless given."
    ),
    output: str = typer.Option(
        "collectives.json", "-o", "--output", help="File to write; -e hidup:file=FILE reads it."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Measure all-gather, reduce-scatter, all-reduce and all-to-all among devices of this machine."""
    sizes = _sizes(sizes_mb)
    if processes < 2:
        raise TopoplanError(f"--processes {processes}: collectives need two at least")
    if repeats < 1:
        raise TopoplanError(f"--repeats {repeats}: at least 1")
    check_writable(Path(output))
    check_torch()
    joined = started_by_torchrun()
    with _bar(len(sizes) * len(COLLECTIVES), quiet=as_json or joined) as report:
        if joined:
            measured, first = measure_joined(sizes, repeats, backend, report)
            if not first:
                return
        else:
            measured = measure_here(processes, sizes, repeats, backend, report)
    found = document(measured)
    write_file(Path(output), json.dumps(found, indent=2).encode() + b"\n")
    if as_json:
        typer.echo(json.dumps({**found, "output": output}, indent=2))
    else:
        _show(found)
        typer.echo(f"written to {output}; -e hidup:file={output} prices collectives with it")


def _sizes(text: str) -> list[int]:
    """Read sizes in MB as bytes, ascending."""
    found = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not 1e-6 <= number < 1e6:
            raise TopoplanError(f"--sizes-mb {text!r}: {word!r} must be a number of MB, more than 0 and below 1000000")
        found.add(round(number * 1e6))
    if len(found) < 2:
        raise TopoplanError(f"--sizes-mb {text!r}: two different sizes at least, to tell latency from bandwidth")
    return sorted(found)


def _show(found: Mapping[str, Any]) -> None:
    """Print the fitted lines and the times."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(
        title=f"{found['world_size']} processes, {found['backend']} on {found['device']}", title_justify="left"
    )
    grid.add_column("collective")
    for header in ("latency", "bandwidth", "smallest", "largest"):
        grid.add_column(header, justify="right")
    for name, line in found["collectives"].items():
        ends = (line["samples"][0], line["samples"][-1])
        grid.add_row(
            name,
            f"{line['latency_s'] * 1e6:.0f} us",
            f"{line['bandwidth_bytes_per_s'] / 1e9:.3f} GB/s",
            *(f"{end['bytes'] / 1e6:.4g} MB in {end['seconds'] * 1e3:.3f} ms" for end in ends),
        )
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(grid)


@contextmanager
def _bar(total: int, *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Show how many measurements are finished on standard error, where it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda finished, name: bar.update(task, completed=finished, description=name)

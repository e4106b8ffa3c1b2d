"""``topoplan share``: several jobs on one cluster, iteration times against load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from topoplan_command_share.plans import NetworkPlan
    from topoplan_command_share.rows import Row

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("share")(share)
    return app


def share(
    file: Path = typer.Argument(metavar="FILE.toml", help="Jobs, networks and loads."),
    prices: Path = typer.Option(
        None, help="Prices of network parts, TOML; those that come with topoplan unless given."
    ),
    measures: Path = typer.Option(None, help="Folder with the measurement files that the models name."),
    catalogue: bool = typer.Option(
        False, "--catalogue", help="Take only parts that the prices list, whole; nothing in between."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    plot: Path = typer.Option(None, metavar="FILE.svg", help="Draw mean and tail over load."),
    write: Path = typer.Option(
        None, metavar="PAGE.md", help="Write a section of a Markdown page, and its plot beside."
    ),
) -> None:
    """Fill a cluster with jobs, and compare how long their iterations take on several networks, shared or partitioned.

    A network that is wired for its job gives every job a partition; on all others jobs share links.
    """
    from topoplan.files import write_file
    from topoplan.plugin.host import Host
    from topoplan_command_share.claims import verdicts
    from topoplan_command_share.page import cost_notes, section
    from topoplan_command_share.plans import plans
    from topoplan_command_share.plot import plot as drawn
    from topoplan_command_share.rows import as_json as json_of
    from topoplan_command_share.rows import measured, rows_of
    from topoplan_command_share.share import share_from
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.report import print_json
    from topoplan_engine.tomlfiles import read_toml
    from topoplan_studies.cells import all_measured
    from topoplan_studies.command import check_pages, old_page
    from topoplan_studies.page import premises, replace_section
    from topoplan_studies.prices import default_prices, read_prices

    shared = share_from(read_toml(file), file.stem, str(file))
    book = default_prices() if prices is None else read_prices(prices)
    book = book.catalogue() if catalogue else book
    check_pages(plot, write, shared.study.name)
    study, options = shared.study, shared.options
    searches = len(study.models) * len(study.networks)
    draws = len(study.networks) * len(options.loads) * options.trials
    try:
        with compilation_announced(), _counted(searches + draws) as report:
            networks = plans(shared, Host.discover(), book, measures, report)
            times = measured(shared, networks, report)
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was written", err=True)
        raise typer.Exit(130) from None
    rows = rows_of(times)
    judged = verdicts(study.claims, rows)
    if as_json:
        print_json({**json_of(shared, networks, times), "claims": [verdict.as_json() for verdict in judged]})
    else:
        _print(study.title, rows, networks)
        for network in networks:
            for model, job in zip(study.models, network.jobs, strict=True):
                if job.lacks:
                    typer.echo(f"DOES NOT FIT: {model.name} on {network.name}: {job.lacks}")
        for line in (*(f"{verdict.claim.says}: {verdict}" for verdict in judged), *cost_notes(networks)):
            typer.echo(line)
    if plot is not None:
        write_file(plot, drawn(rows).encode())
    if write is not None:
        picture = write.with_name(f"{write.stem}-{study.name}.svg")
        page = old_page(write)
        command = f"topoplan share {file} --write {write}"
        known = all_measured(study, measures)
        body = section(shared, networks, rows, told=premises(known, book), command=command, picture=picture.name)
        page = replace_section(page, study.name, body, str(write))
        write_file(picture, drawn(rows).encode())
        write_file(write, page.encode())


@contextmanager
def _counted(total: int) -> Iterator[Callable[[str], None]]:
    """Show how many searches and draws are finished: call with the name of the one that just was."""
    from topoplan_engine.reporting.progress import parts_shown

    with parts_shown("sharing", total) as report:
        numbers = itertools.count(1)
        yield lambda name: report(next(numbers), name)


def _print(title: str, rows: list[Row], networks: list[NetworkPlan]) -> None:
    """Print the table."""
    from topoplan_command_share.page import HEADERS, cells_of
    from topoplan_studies.columns import print_columns

    cells = [cells_of(row, networks) for row in rows]
    print_columns(title, HEADERS, cells, names=("network", "load"), once=("Gbps a host",))

"""What ``topoplan compare`` does with a study: run it with a progress bar, print a table, write files."""

from __future__ import annotations

from pathlib import Path

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.files import check_different, check_writable, read_text, write_file
from topoplan.plugin.host import Host
from topoplan_engine.reporting.progress import parts_shown
from topoplan_engine.reporting.report import print_json
from topoplan_studies.cells import all_measured, cells
from topoplan_studies.chart import check_plot
from topoplan_studies.claims import verdicts
from topoplan_studies.columns import print_columns
from topoplan_studies.notes import notes
from topoplan_studies.page import replace_section, section
from topoplan_studies.plot import plot
from topoplan_studies.prices import Prices, default_prices, read_prices
from topoplan_studies.rows import Row, rows_of
from topoplan_studies.store import Store
from topoplan_studies.study import Study
from topoplan_studies.tables import as_json as json_of
from topoplan_studies.tables import cells_of, headers
from topoplan_studies.work import run_all

__all__ = ["Outputs", "check_pages", "compare_and_report", "old_page"]


@attrs.frozen(kw_only=True)
class Outputs:
    """Files to write; None for those that are not wanted."""

    plot: Path | None
    page: Path | None


def old_page(path: Path | None) -> str:
    """Return the page that a section goes into; empty where there is none yet.

    Raises:
        TopoplanError: it is no text.
    """
    return read_text(path, "a Markdown page") if path is not None and path.exists() else ""


def check_pages(drawing: Path | None, page: Path | None, picture: str) -> None:
    """Raise `TopoplanError` for outputs that are sure not to be written; ``picture`` belongs to the page."""
    given = []
    if drawing is not None:
        check_plot(drawing)
        given.append(("--plot", drawing))
    if page is not None:
        check_writable(page)  # before its name is taken apart: a folder has none
        given += [("--write", page), ("the picture of --write", page.with_name(f"{page.stem}-{picture}.svg"))]
    for _, path in given:
        check_writable(path)
    check_different(given)
    old_page(page)


def compare_and_report(
    study: Study,
    host: Host,
    *,
    prices: Path | None,
    catalogue: bool,
    measures: Path | None,
    runs: Path,
    jobs: int,
    outputs: Outputs,
    as_json: bool,
    command: str,
) -> None:
    """Run all that is not kept yet, print the table or JSON, and write the files; ``command`` is what was typed.

    After Ctrl-C nothing is printed or written but how to go on; the exit status is 130.
    """
    book = default_prices() if prices is None else read_prices(prices)
    book = book.catalogue() if catalogue else book
    if measures is not None and not measures.is_dir():
        raise TopoplanError(f"--measures {measures}: is not a folder")
    check_pages(outputs.plot, outputs.page, study.name)
    todo = cells(study, host, book, measures)
    with parts_shown("comparing", len(todo)) as report:
        done = run_all(todo, host, Store(runs), jobs, report)
    results = [result for result in done.results if result is not None]
    if done.interrupted and len(results) < len(todo):
        typer.echo(
            f"interrupted: {len(results)} of {len(todo)} runs are kept in {runs}; the same command goes on", err=True
        )
        raise typer.Exit(130)
    rows = rows_of(todo, results, book)
    judged = verdicts(study, rows)
    measured = all_measured(study, measures)
    if as_json:
        print_json(json_of(study, rows, judged, book, measured))
    else:
        _print(study, rows, book, measured=measured)
        for row in rows:
            if not row.fits:
                typer.echo(f"DOES NOT FIT: {row.place} on {row.network}: {row.lacks}")
        for verdict in judged:
            typer.echo(f"{verdict.claim.says}: {verdict}")
    if outputs.plot is not None:
        write_file(outputs.plot, plot(study, rows, book.currency).encode())
    if outputs.page is not None:
        picture = outputs.page.with_name(f"{outputs.page.stem}-{study.name}.svg")
        page = old_page(outputs.page)
        body = section(
            study,
            rows,
            judged,
            book,
            command=command,
            measured=measured,
            picture=picture.name,
        )
        page = replace_section(page, study.name, body, str(outputs.page))
        write_file(picture, plot(study, rows, book.currency).encode())
        write_file(outputs.page, page.encode())


def _print(study: Study, rows: list[Row], prices: Prices, *, measured: bool) -> None:
    """Print the table, and what its numbers rest on."""
    print_columns(
        study.title,
        headers(study, prices),
        [cells_of(row) for row in rows],
        names=("model", *study.vary, "network"),
        once=("Gbps a host",),
    )
    told = ["operator times: measured" if measured else "operator times: estimated, not measured"]
    if prices.assumed():
        told.append(f"prices {prices.name} hold assumptions; --prices FILE takes yours")
    typer.echo("; ".join(told))
    for note in notes(rows, prices):
        typer.echo(note)

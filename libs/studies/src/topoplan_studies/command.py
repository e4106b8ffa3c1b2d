"""What ``topoplan compare`` does with a study: run it, print a table, draw a figure, write a section of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.executors import Executor
from topoplan_engine.experiment import Experiment
from topoplan_engine.files import check_different
from topoplan_engine.reporting.figures import check_figure, write_figure
from topoplan_engine.reporting.pages import check_section, picture_of, write_section
from topoplan_engine.reporting.printing import print_json
from topoplan_engine.reporting.progress import parts_shown
from topoplan_engine.reporting.tables import print_line
from topoplan_studies.hypotheses import hypothesis_tests
from topoplan_studies.measure import REFUSED, measure, measure_searchers
from topoplan_studies.notes import notes
from topoplan_studies.page import section
from topoplan_studies.plot import plot as figure_of
from topoplan_studies.prices import default_prices, read_prices
from topoplan_studies.results import network_results
from topoplan_studies.rows import check_rows, write_rows
from topoplan_studies.runner import run_all
from topoplan_studies.runspecs import RunSpec, all_measured, run_specs
from topoplan_studies.store import Store
from topoplan_studies.study import Study
from topoplan_studies.tables import StudyReport, study_table
from topoplan_studies.tables import as_json as json_of

if TYPE_CHECKING:
    from topoplan_studies.searchers.report import SearcherReport

__all__ = ["compare_and_report", "run_searchers_study", "run_study", "searcher_report"]


def compare_and_report(
    study: Study,
    host: Host,
    *,
    prices: Path | None,
    catalogue: bool,
    measures: Path | None,
    runs: Path,
    executor: Executor,
    wait: bool,
    table: Path | None,
    plot: Path | None,
    page: Path | None,
    command: str,
    as_json: bool,
    best: Path | None = None,
) -> None:
    """Run all that is not stored yet, print the table or JSON, and write what files are asked for.

    The section of the page says ``command``, which repeats it.  Gaps of benchmark problems are to the best known plans
    of the set, or of the folder ``best`` where these are better.
    """
    _check_files(study, table, plot, page)
    if study.compares_searchers:
        _compare_searchers(
            study,
            host,
            measures,
            runs,
            executor,
            wait=wait,
            best=best,
            table=table,
            plot=plot,
            page=page,
            command=command,
            as_json=as_json,
        )
        return
    if best is not None:
        raise TopoplanError(f"--best {best}: is for searchers on benchmark problems (--problems)")
    report = run_study(
        study, host, prices=prices, catalogue=catalogue, measures=measures, runs=runs, executor=executor, wait=wait
    )
    if as_json:
        print_json(json_of(report))
    else:
        _print(report)
    if table is not None:
        write_rows(report, table)
    if plot is not None:
        write_figure(figure_of(report), plot)
    if page is not None:
        text = section(report, command, picture_of(page, study.name).name)
        write_section(page, study.name, text, figure_of(report))


def _check_files(study: Study, table: Path | None, plot: Path | None, page: Path | None) -> None:
    """Raise `TopoplanError` unless all files that are asked for can be written, each to a place of its own."""
    named = (("--table", table), ("--plot", plot), ("--write", page))
    check_different((word, path) for word, path in named if path is not None)
    if plot is not None:
        check_figure(plot, "topoplan-command-compare")
    if page is not None:
        check_section(page, study.name, "topoplan-command-compare")
    if table is not None:
        check_rows(table)


def _compare_searchers(
    study: Study,
    host: Host,
    measures: Path | None,
    runs: Path,
    executor: Executor,
    *,
    wait: bool,
    best: Path | None,
    table: Path | None,
    plot: Path | None,
    page: Path | None,
    command: str,
    as_json: bool,
) -> None:
    """Compare the searchers of a study, print tables or JSON, and write what files are asked for."""
    from topoplan_studies.searchers.page import searcher_section
    from topoplan_studies.searchers.plot import plot as searchers_figure
    from topoplan_studies.searchers.report import as_json as searchers_json

    report = run_searchers_study(study, host, measures=measures, runs=runs, executor=executor, wait=wait, best=best)
    if as_json:
        print_json(searchers_json(report))
    else:
        _print_searchers(report)
    if table is not None:
        write_rows(report, table)
    if plot is not None:
        write_figure(searchers_figure(report), plot)
    if page is not None:
        text = searcher_section(report, command, picture_of(page, study.name).name)
        write_section(page, study.name, text, searchers_figure(report))


def run_searchers_study(
    study: Study,
    host: Host,
    *,
    measures: Path | None,
    runs: Path,
    executor: Executor,
    wait: bool = True,
    best: Path | None = None,
) -> SearcherReport:
    """Run all that is not stored yet of a study that compares searchers, and return what came of it.

    Args:
        study: what to run.
        host: where components come from.
        measures: folder with the measurement files that models name.
        runs: folder that stores finished runs.
        executor: where they run.
        wait: for runs that other processes do, which share the folder.
        best: folder of best known plans of one's own.

    Raises:
        TopoplanError: something in the study is wrong, or cannot be run.
        typer.Exit: with status 130 after Ctrl-C; how to go on is printed on standard error.
    """
    if measures is not None and not measures.is_dir():
        raise TopoplanError(f"--measures {measures}: is not a folder")
    specs = run_specs(study, host, default_prices(), measures)
    return searcher_report(study, specs, host, runs, executor, wait=wait, best=best)


def searcher_report(
    study: Study,
    specs: Sequence[RunSpec],
    host: Host,
    runs: Path,
    executor: Executor,
    *,
    wait: bool = True,
    best: Path | None = None,
) -> SearcherReport:
    """Run what is not stored of runs that compare searchers, and return what came of them.

    A searcher that refuses a problem counts as one whose plans do not fit.

    Raises:
        TopoplanError: scipy is not installed; a run cannot be run, whatever the searcher; or all searchers refuse.
        typer.Exit: with status 130 after Ctrl-C; how to go on is printed on standard error.
    """
    from topoplan_studies.problems.best import best_of_all
    from topoplan_studies.searchers.places import comparison, places_of
    from topoplan_studies.searchers.report import SearcherReport
    from topoplan_studies.searchers.statistics import check_scipy

    check_scipy()
    known_rows = {name: (row.seconds, row.bound) for name, row in best_of_all(best).items()}
    values = _finished(specs, host, runs, executor, measure_searchers, wait=wait)
    refused = [value[REFUSED] for value in values if REFUSED in value]
    if len(refused) == len(values):
        raise TopoplanError(refused[0])
    return SearcherReport(study=study, comparison=comparison(places_of(specs, values, known_rows)))


def run_study(
    study: Study,
    host: Host,
    *,
    prices: Path | None,
    catalogue: bool,
    measures: Path | None,
    runs: Path,
    executor: Executor,
    wait: bool = True,
) -> StudyReport:
    """Run all that is not stored yet, and return what came of it.

    Args:
        study: what to run.
        host: where components come from.
        prices: file with prices; None for those that come with this package.
        catalogue: take only parts that the prices list.
        measures: folder with the measurement files that models name.
        runs: folder that stores finished runs.
        executor: where runs run.
        wait: for runs that other processes do, which share the folder.

    Raises:
        TopoplanError: something in the study is wrong, or cannot be run.
        typer.Exit: with status 130 after Ctrl-C, and with 0 if others do what is left; how to go on is printed on
            standard error.
    """
    price_list = default_prices() if prices is None else read_prices(prices)
    price_list = price_list.catalogue() if catalogue else price_list
    if measures is not None and not measures.is_dir():
        raise TopoplanError(f"--measures {measures}: is not a folder")
    specs = run_specs(study, host, price_list, measures)
    values = _finished(specs, host, runs, executor, measure, wait=wait)
    results = network_results(specs, values, price_list)
    return StudyReport(
        study=study,
        results=results,
        tests=hypothesis_tests(study, results),
        prices=price_list,
        measured=all_measured(study, measures),
    )


def _finished(
    specs: Sequence[RunSpec],
    host: Host,
    runs: Path,
    executor: Executor,
    measured: Callable[[Host, Experiment], dict[str, Any]],
    *,
    wait: bool,
) -> list[dict[str, Any]]:
    """Return what came of each run: of those that are stored, and of the others, which are run now."""
    with parts_shown("comparing", len(specs)) as on_progress:
        finished = run_all(specs, host, Store(runs), executor, on_progress, measured=measured, wait=wait)
    values = [result for result in finished.results if result is not None]
    if len(values) < len(specs):
        count = f"{len(values)} of {len(specs)} runs are kept in {runs}"
        if finished.interrupted:
            typer.echo(f"interrupted: {count}; the same command goes on", err=True)
            raise typer.Exit(130)
        typer.echo(f"{count}; other processes do the rest (without --no-wait, this one waits and reports)", err=True)
        raise typer.Exit(0)
    return values


def _print_searchers(report: SearcherReport) -> None:
    """Print the times at each problem, ranks over problems, and what the numbers are."""
    from topoplan_studies.searchers.report import notes as notes_on_searchers
    from topoplan_studies.searchers.report import places_table, ranks_table

    places_table(report).print(report.study.title)
    ranks = ranks_table(report)
    if ranks.rows:
        ranks.print("over all problems")
    for line in notes_on_searchers(report):
        print_line(line)


def _print(report: StudyReport) -> None:
    """Print the table, what its numbers rest on, and what came of the hypotheses."""
    study_table(report).print(report.study.title)
    premises = ["operator times: measured" if report.measured else "operator times: estimated, not measured"]
    if report.prices.assumed():
        premises.append(f"prices {report.prices.name} hold assumptions; --prices FILE takes yours")
    typer.echo("; ".join(premises))
    for note in notes(report.results, report.prices):
        typer.echo(note)
    for result in report.results:
        if not result.fits:
            typer.echo(f"DOES NOT FIT: {result.setting} on {result.network}: {result.lacks}")
    for test in report.tests:
        typer.echo(f"{test.hypothesis.says}: {test}")

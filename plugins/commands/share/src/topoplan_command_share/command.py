"""``topoplan share``: several jobs on one cluster, iteration times against load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from topoplan_engine.flags import AllowCode, AsJson, typed_command
from topoplan_studies.options import StudyFiles

if TYPE_CHECKING:
    from topoplan_command_share.shared_cluster import SharedCluster
    from topoplan_command_share.sharing import ShareReport

__all__ = ["share"]


def share(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="Jobs, networks and loads.")],
    files: StudyFiles,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Fill a cluster with jobs, and compare how long their iterations take on several networks, shared or partitioned.

    A network that is wired for its job gives every job a partition; on all others jobs share links.  --plot draws mean
    and tail over load.
    """
    from topoplan_command_share.results import as_json as json_of
    from topoplan_command_share.shared_cluster import read_shared_cluster
    from topoplan_engine.reporting.figures import check_figure
    from topoplan_engine.reporting.pages import check_section
    from topoplan_engine.reporting.printing import print_json

    shared = read_shared_cluster(file, allow_code=allow_code)
    if files.plot is not None:
        check_figure(files.plot, "topoplan-command-share")
    if files.write is not None:
        check_section(files.write, shared.study.name, "topoplan-command-share")
    report = _shared(shared, files)
    if as_json:
        claims = [test.as_json() for test in report.tests]
        print_json({**json_of(shared, report.networks, report.times), "claims": claims})
    else:
        _print(report)
    _write(files, report, typed_command(context, without=("write", "plot", "as_json")))


def _write(files: StudyFiles, report: ShareReport, command: str) -> None:
    """Draw the figure and write the page's section, where they are wanted."""
    if files.plot is None and files.write is None:
        return
    from topoplan_command_share.page import section
    from topoplan_command_share.plot import plot as figure_of
    from topoplan_engine.reporting.figures import write_figure
    from topoplan_engine.reporting.pages import picture_of, write_section
    from topoplan_studies.page import premises
    from topoplan_studies.runspecs import all_measured

    if files.plot is not None:
        write_figure(figure_of(report.results), files.plot)
    if files.write is not None:
        study = report.shared.study
        text = section(
            report.shared,
            report.networks,
            report.results,
            premises=premises(all_measured(study, files.measures), report.prices),
            command=command,
            picture=picture_of(files.write, study.name).name,
        )
        write_section(files.write, study.name, text, figure_of(report.results))


def _shared(shared: SharedCluster, files: StudyFiles) -> ShareReport:
    """Plan and draw, with progress shown; after Ctrl-C nothing is kept."""
    from topoplan_command_share.sharing import share as share_of
    from topoplan_engine.reporting.notice import compilation_announced

    study, options = shared.study, shared.options
    searches = len(study.models) * len(study.networks)
    draws = len(study.networks) * len(options.loads) * options.trials
    try:
        with compilation_announced(), _counted(searches + draws) as on_progress:
            return share_of(
                shared,
                prices=files.prices,
                catalogue=files.catalogue,
                measures=files.measures,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was written", err=True)
        raise typer.Exit(130) from None


@contextmanager
def _counted(total: int) -> Iterator[Callable[[str], None]]:
    """Show how many searches and draws are finished: call with the name of the one that just was."""
    from topoplan_engine.reporting.progress import parts_shown

    with parts_shown("sharing", total) as report:
        numbers = itertools.count(1)
        yield lambda name: report(next(numbers), name)


def _print(report: ShareReport) -> None:
    """Print the table, which plans do not fit, and what came of the hypotheses."""
    from topoplan_command_share.table import cost_notes, share_table

    study = report.shared.study
    share_table(report.results, report.networks).print(study.title)
    for network in report.networks:
        for model, job in zip(study.models, network.jobs, strict=True):
            if job.lacks:
                typer.echo(f"DOES NOT FIT: {model.name} on {network.name}: {job.lacks}")
    for line in (*(f"{test.hypothesis.says}: {test}" for test in report.tests), *cost_notes(report.networks)):
        typer.echo(line)

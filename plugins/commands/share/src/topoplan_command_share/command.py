"""``topoplan share``: several jobs on one cluster, iteration times against load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topoplan_engine.flags import AsJson, typed_command
from topoplan_studies.options import StudyFiles

if TYPE_CHECKING:
    from topoplan_command_share.hypotheses import LoadTest
    from topoplan_command_share.plans import NetworkPlan
    from topoplan_command_share.results import JobTime, LoadResult
    from topoplan_command_share.shared_cluster import SharedCluster
    from topoplan_studies.prices import Prices

__all__ = ["share"]


def share(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="Jobs, networks and loads.")],
    files: StudyFiles,
    as_json: AsJson = False,
) -> None:
    """Fill a cluster with jobs, and compare how long their iterations take on several networks, shared or partitioned.

    A network that is wired for its job gives every job a partition; on all others jobs share links.  --plot draws mean
    and tail over load.
    """
    from topoplan_command_share.hypotheses import load_tests
    from topoplan_command_share.results import as_json as json_of
    from topoplan_command_share.results import load_results
    from topoplan_command_share.shared_cluster import shared_cluster_from
    from topoplan_engine.reporting.figures import check_figure
    from topoplan_engine.reporting.pages import check_section
    from topoplan_engine.reporting.printing import print_json
    from topoplan_engine.tomlfiles import read_toml
    from topoplan_studies.prices import default_prices, read_prices

    shared = shared_cluster_from(read_toml(Path(file)), Path(file).stem, file)
    if files.plot is not None:
        check_figure(files.plot, "topoplan-command-share")
    if files.write is not None:
        check_section(files.write, shared.study.name, "topoplan-command-share")
    prices = default_prices() if files.prices is None else read_prices(files.prices)
    prices = prices.catalogue() if files.catalogue else prices
    networks, times = _plan_and_draw(shared, prices, files.measures)
    results = load_results(times)
    tests = load_tests(shared.study.hypotheses, results)
    if as_json:
        print_json({**json_of(shared, networks, times), "claims": [test.as_json() for test in tests]})
    else:
        _print(shared, results, tests, networks)
    _write(files, shared, networks, results, prices, typed_command(context, without=("write", "plot", "as_json")))


def _write(
    files: StudyFiles,
    shared: SharedCluster,
    networks: list[NetworkPlan],
    results: list[LoadResult],
    prices: Prices,
    command: str,
) -> None:
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
        write_figure(figure_of(results), files.plot)
    if files.write is not None:
        name = shared.study.name
        text = section(
            shared,
            networks,
            results,
            premises=premises(all_measured(shared.study, files.measures), prices),
            command=command,
            picture=picture_of(files.write, name).name,
        )
        write_section(files.write, name, text, figure_of(results))


def _plan_and_draw(
    shared: SharedCluster, prices: Prices, measures: Path | None
) -> tuple[list[NetworkPlan], list[JobTime]]:
    """Search a plan for each model on each network, and time draws of jobs; after Ctrl-C nothing is kept."""
    from topoplan.plugin.host import Host
    from topoplan_command_share.plans import plans
    from topoplan_command_share.results import job_times
    from topoplan_engine.reporting.notice import compilation_announced

    study, options = shared.study, shared.options
    searches = len(study.models) * len(study.networks)
    draws = len(study.networks) * len(options.loads) * options.trials
    try:
        with compilation_announced(), _counted(searches + draws) as report:
            networks = plans(shared, Host.discover(), prices, measures, report)
            return networks, job_times(shared, networks, report)
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


def _print(
    shared: SharedCluster, results: list[LoadResult], tests: list[LoadTest], networks: list[NetworkPlan]
) -> None:
    """Print the table, which plans do not fit, and what came of the hypotheses."""
    from topoplan_command_share.table import cost_notes, share_table

    share_table(results, networks).print(shared.study.title)
    for network in networks:
        for model, job in zip(shared.study.models, network.jobs, strict=True):
            if job.lacks:
                typer.echo(f"DOES NOT FIT: {model.name} on {network.name}: {job.lacks}")
    for line in (*(f"{test.hypothesis.says}: {test}" for test in tests), *cost_notes(networks)):
        typer.echo(line)

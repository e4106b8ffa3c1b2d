"""``topoplan problems``: list the benchmark problems, check what is known of them, and search for better plans."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import option
from topoplan.plugin.host import Host
from topoplan_engine.flags import AsJson
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.reporting.printing import print_json
from topoplan_engine.reporting.tables import Column, RowTable
from topoplan_studies.listing import seeds_of
from topoplan_studies.problems import BenchmarkProblem, named_problems, standard_problems
from topoplan_studies.problems.best import FOLDER, BestKnown, best_known, best_of_all, check, improve

__all__ = ["ProblemOptions", "problems"]

_WORSE, _INTERRUPTED = 1, 130
#: Where better plans are stored unless the user says where.
_WRITTEN = Path("best")


@attrs.frozen(kw_only=True)
class ProblemOptions:
    """What to do with the problems."""

    check: bool = option(
        False, help="simulate the stored plans and bound the problems again; status 1 unless all is equal to the bit"
    )
    improve: str = option(
        "", help="search, and store plans that are better than the best known", metavar="NAME[:KEY=VALUE,...][+NAME...]"
    )
    budget: int = option(2000, help="candidates to price in each search", minimum=0)
    seeds: str = option("1", help="a search for each, such as 1..10", metavar="N..N")
    folder: Path | None = option(
        None,
        help="of your own, with a table best.csv and plans; unset: that of the standard set, and to write, best",
    )


def problems(
    options: ProblemOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Problems, or placement, spmd or pipeline; unset: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List benchmark problems with their best known times and lower bounds, check these, or search for better ones.

    A lower bound holds for all strategies and all wirings of the interfaces; `topoplan_studies.problems.bounds`
    says what it takes for granted.
    """
    chosen = named_problems(names) if names else standard_problems()
    if options.check and options.improve:
        raise TopoplanError("--check: beside --improve (check what is stored, or search for something better)")
    if options.check:
        with compilation_announced():
            _check(chosen, options.folder or FOLDER, as_json=as_json)
        return
    if options.improve:
        folder = options.folder or _WRITTEN
        with compilation_announced():
            _improve(chosen, options, folder)
        _list(chosen, best_of_all(folder if (folder / "best.csv").exists() else None), as_json=as_json)
        return
    _list(chosen, best_of_all(options.folder), as_json=as_json)


def _check(chosen: tuple[BenchmarkProblem, ...], folder: Path, *, as_json: bool) -> None:
    """Check the problems that have a row in the table; end with status 1 if one is not as it says."""
    host, rows = Host.discover(), best_known(folder)
    checks = [check(problem, host, folder) for problem in chosen if problem.name in rows]
    if not checks:
        raise TopoplanError(f"--check: {folder} has no plan of these problems")
    if as_json:
        print_json({"checks": [{**attrs.asdict(result), "holds": result.holds} for result in checks]})
    else:
        for result in checks:
            verdict = "as stored" if result.holds else "NOT AS STORED"
            typer.echo(
                f"{result.stored.problem}: {result.seconds!r} s, bound {result.bound!r} s: {verdict}"
                + ("" if result.holds else f" ({result.stored.seconds!r} s, bound {result.stored.bound!r} s)")
            )
    if not all(result.holds for result in checks):
        raise typer.Exit(_WORSE)


def _improve(chosen: tuple[BenchmarkProblem, ...], options: ProblemOptions, folder: Path) -> None:
    """Search in every problem with every seed; say on standard error what was better, and where it is stored.

    A plan is stored as soon as its search ends.  Ctrl-C, or an end that the system asks for, ends the search that runs,
    and what that has found is stored, too.
    """
    host = Host.discover()
    seeds = seeds_of(options.seeds, "--seeds")
    if not isinstance(seeds, list):
        seeds = [int(seeds)] if seeds.isdigit() else []
    if not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise TopoplanError(f"--seeds: expected a number or a range such as 1..10, got {options.seeds!r}")
    stored = False
    with _ends_as_ctrl_c():
        for problem, seed in itertools.product(chosen, seeds):
            best, interrupted = improve(
                problem, options.improve, budget=options.budget, seed=seed, host=host, folder=folder
            )
            if best is not None:
                stored = True
                path = folder / "plans" / f"{problem.name}.json.gz"
                typer.echo(f"{problem.name}: {best.seconds * 1e3:.6g} ms, seed {seed}, stored in {path}", err=True)
            if interrupted:
                note = f"what was better is in {folder}" if (folder / "best.csv").exists() else "nothing was better"
                typer.echo(f"interrupted: {note}", err=True)
                raise typer.Exit(_INTERRUPTED)
    if not stored:
        typer.echo(f"nothing was better than what is known: {folder} is as it was", err=True)


@contextmanager
def _ends_as_ctrl_c() -> Iterator[None]:
    """Let an end that the system or `timeout` asks for (SIGTERM) be as Ctrl-C in this block."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@attrs.frozen
class _Row:
    problem: BenchmarkProblem
    best: BestKnown | None


def _list(chosen: tuple[BenchmarkProblem, ...], rows: dict[str, BestKnown], *, as_json: bool) -> None:
    if as_json:
        listed = [
            {
                "problem": problem.name,
                "kind": problem.kind,
                "source": problem.source,
                "large": problem.large,
                "best_known": attrs.asdict(rows[problem.name]) if problem.name in rows else None,
            }
            for problem in chosen
        ]
        print_json({"problems": listed})
        return

    def of_best(text: str, row: _Row) -> str:
        return "-" if row.best is None else text.format(row.best)

    RowTable(
        [
            Column[_Row]("problem", lambda row: row.problem.name, names_rows=True),
            Column[_Row]("kind", lambda row: row.problem.kind),
            Column[_Row]("best (ms)", lambda row: "-" if row.best is None else f"{row.best.seconds * 1e3:.4f}"),
            Column[_Row]("bound (ms)", lambda row: "-" if row.best is None else f"{row.best.bound * 1e3:.4f}"),
            Column[_Row]("above bound", lambda row: "-" if row.best is None else f"{row.best.gap:.1%}"),
            Column[_Row]("found by", lambda row: of_best("{0.searchers}, {0.evaluations}, seed {0.seed}", row)),
        ],
        [_Row(problem, rows.get(problem.name)) for problem in chosen],
    ).print()

"""How far a search is: a bar on a terminal, a line now and then elsewhere; on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from topoplan.run import Progress as SearchProgress

__all__ = ["progress_shown"]

#: Seconds between two lines where there is no terminal.
_EVERY = 60.0

_Report = Callable[[str, SearchProgress], None]


@contextmanager
def progress_shown(
    budget: int,
    *,
    planning: bool,
    quiet: bool,
    say: Callable[[float], str],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[_Report]:
    """Show progress while the context lasts.

    Args:
        budget: candidates at most.
        planning: searchers construct their answer, and end when they have: the budget says nothing of the time left.
        quiet: show nothing.
        say: a time as text.
        clock: seconds, for lines.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    if quiet:
        yield lambda event, progress: None
    elif console.is_terminal:
        with _bar(console, budget, planning=planning, say=say) as report:
            yield report
    else:
        yield _lines(budget, planning=planning, say=say, clock=clock)


@contextmanager
def _bar(console: Console, budget: int, *, planning: bool, say: Callable[[float], str]) -> Iterator[_Report]:
    told = "best {task.fields[best]}  accepted {task.fields[accepted]}  {task.fields[speed]}/s"
    columns: tuple[ProgressColumn, ...]
    if planning:
        columns = (TextColumn("planning, {task.completed} plans simulated, " + told), TimeElapsedColumn())
    else:
        columns = (TextColumn("searching"), BarColumn(), MofNCompleteColumn(), TextColumn(told), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("search", total=budget, best="-", accepted="-", speed="-")

        def report(event: str, progress: SearchProgress) -> None:
            bar.update(
                task,
                completed=progress.evaluations - 1,
                best=say(progress.best),
                accepted="-" if progress.acceptance is None else f"{progress.acceptance:.0%}",
                speed=f"{progress.evaluations / max(progress.elapsed, 1e-9):.0f}",
            )

        yield report


def _lines(budget: int, *, planning: bool, say: Callable[[float], str], clock: Callable[[], float]) -> _Report:
    """Write a line when the last one, or the start, is a minute ago."""
    last = clock()

    def report(event: str, progress: SearchProgress) -> None:
        nonlocal last
        if clock() - last < _EVERY:
            return
        last = clock()
        done = progress.evaluations - 1
        far = f"{done} plans simulated" if planning else f"{done} of {budget}"
        typer.echo(f"searching: {far}, best {say(progress.best)}, {progress.elapsed:.0f} s", err=True)

    return report

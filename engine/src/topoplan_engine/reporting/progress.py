"""How far a search is: a bar on a terminal, a line now and then elsewhere; on standard error."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from topoplan.search.protocol import Progress as SearchProgress

__all__ = ["parts_shown", "progress_shown"]

#: Seconds between two lines where there is no terminal, until the first of them, and between looks for a first result.
_EVERY, _FIRST, _LOOK = 60.0, 5.0, 0.5

_Report = Callable[[str, SearchProgress], None]


@contextmanager
def progress_shown(
    budget: int, seconds: float, *, planning: bool, quiet: bool, say: Callable[[float], str], every: float = _EVERY
) -> Iterator[_Report]:
    """Show progress while the context lasts; lines, where there is no terminal, begin as soon as a plan has a time.

    Args:
        budget: candidates at most.
        seconds: of search at most; infinite without a time limit.
        planning: searchers construct their answer, and end when they have: the budget says nothing of the time left.
        quiet: show nothing.
        say: a time as text.
        every: seconds between two lines.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    if quiet:
        yield lambda event, progress: None
    elif console.is_terminal:
        with _bar(console, budget, seconds, planning=planning, say=say) as report:
            yield report
    else:
        with _lines(budget, seconds, planning=planning, say=say, every=every) as report:
            yield report


@contextmanager
def _bar(
    console: Console, budget: int, seconds: float, *, planning: bool, say: Callable[[float], str]
) -> Iterator[_Report]:
    # Imported here: most commands that scripts call show no bar.
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text = "best {task.fields[best]}  accepted {task.fields[accepted]}  {task.fields[speed]}/s"
    columns: tuple[ProgressColumn, ...]
    if planning:
        columns = (TextColumn("planning, {task.completed} plans simulated, " + text), TimeElapsedColumn())
    else:
        columns = (
            TextColumn("{task.fields[doing]}"),
            BarColumn(),
            TextColumn("{task.fields[extent]}"),
            TextColumn(text),
            TimeRemainingColumn(),
        )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("search", total=1.0, doing="searching", extent="", best="-", accepted="-", speed="-")

        def report(event: str, progress: SearchProgress) -> None:
            count = progress.evaluations - 1
            bar.update(
                task,
                doing=_doing(event),
                completed=count if planning else max(count / max(budget, 1), progress.elapsed / seconds),
                extent=_extent(count, budget, progress.elapsed, seconds),
                best=_best(progress, say),
                accepted="-" if progress.acceptance is None else f"{progress.acceptance:.0%}",
                speed=f"{progress.evaluations / max(progress.elapsed, 1e-9):.0f}",
            )

        yield report


def _doing(event: str) -> str:
    """Say what a search does: a planner that takes its turn is named."""
    return event if event.startswith("planning") else "searching"


def _best(progress: SearchProgress, say: Callable[[float], str]) -> str:
    """Say how fast the best plan is, and where it comes from."""
    return say(progress.best) + (f" ({progress.origin})" if progress.origin else "")


def _extent(count: int, budget: int, elapsed: float, seconds: float) -> str:
    """Say how far a search is: in candidates, and in seconds where the time is limited."""
    if seconds == math.inf:
        return f"{count} of {budget}"
    return f"{count} candidates, {elapsed:.0f} of {seconds:.0f} s"


@contextmanager
def _lines(
    budget: int, seconds: float, *, planning: bool, say: Callable[[float], str], every: float
) -> Iterator[_Report]:
    """Write a line now and then, from a thread of its own: a planner may be silent for minutes.

    The first one comes after some seconds, or then as soon as a plan has a time.
    """
    began, ended = time.monotonic(), threading.Event()
    last: tuple[str, SearchProgress] | None = None

    def report(event: str, progress: SearchProgress) -> None:
        nonlocal last
        last = _doing(event), progress

    def write() -> None:
        last_time = began
        wait = min(every, _FIRST)
        while not ended.wait(wait):
            now = time.monotonic()
            if last is None and now - last_time < every:
                wait = min(every, _LOOK)
                continue
            last_time, wait = now, every
            passed = f"{time.monotonic() - began:.0f} s"
            if last is None:
                typer.echo(f"planning, {passed}" if planning else f"searching, {passed}", err=True)
                continue
            doing, progress = last
            count = progress.evaluations - 1
            extent = (
                f"planning: {count} plans simulated"
                if planning
                else f"{doing}: {_extent(count, budget, progress.elapsed, seconds)}"
            )
            typer.echo(f"{extent}, best {_best(progress, say)}, {passed}", err=True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()


@contextmanager
def parts_shown(
    what: str, total: int, *, quiet: bool = False, every: float = _EVERY
) -> Iterator[Callable[[int, str], None]]:
    """Show how many parts of a work are finished while the context lasts: call with their number and a name.

    Args:
        what: is done, e.g. ``comparing``.
        total: number of parts.
        quiet: show nothing.
        every: seconds between two lines where there is no terminal; they are written when parts are finished.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    if quiet:
        yield lambda finished, name: None
    elif console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        name_column = TextColumn("{task.fields[last]}", markup=False)
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), name_column, TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total, last="")
            yield lambda finished, name: bar.update(task, completed=finished, last=name)
    else:
        last = began = time.monotonic()

        def report(finished: int, name: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= every:
                last = now
                typer.echo(f"{what}: {finished} of {total}, {name}, {now - began:.0f} s", err=True)

        yield report

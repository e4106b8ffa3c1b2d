"""How many measurements are finished: a bar on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar_shown"]


@contextmanager
def bar_shown(total: int, *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Show how many measurements are finished on standard error, where it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda finished, name: bar.update(task, completed=finished, description=name)

"""How commands print: a table for people, one JSON object for programs, and how they end."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import typer

from topoplan.errors import printable
from topoplan_engine.exporting import Written
from topoplan_engine.reporting.tables import printable_lines

__all__ = ["exit_after", "json_values", "print_json", "spelled_time", "table"]


#: Items of the longest list of integers that is printed line by line, and what stands for longer ones meanwhile.
_LONG, _MARK = 1000, re.compile(r'"\\u0000(\d+)"')


def exit_after(outputs: Written, *, interrupted: bool = False) -> None:
    """Tell on standard error which outputs were refused, and end with the exit status that says so, if any were."""
    for why in outputs.refused.values():
        typer.echo(f"error: {why}", err=True)
    if interrupted:
        raise typer.Exit(130)
    if outputs.refused:
        raise typer.Exit(2)


def table(title: str, rows: list[tuple[str, str]], *, align: Literal["left", "right"] = "right") -> None:
    """Print a two-column table; numbers are aligned right, texts left."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=printable(title), show_header=False, title_justify="left")
    grid.add_column()
    grid.add_column(justify=align, overflow="fold")
    for row in rows:
        grid.add_row(*map(printable_lines, row))
    Console(markup=False, emoji=False).print(grid)


def print_json(value: dict[str, Any]) -> None:
    """Print one strict JSON object on standard output; a long list of numbers, as of devices, is one line."""
    long_lists: list[list[Any]] = []
    text = json.dumps(_shortened(json_values(value), long_lists), indent=2, default=_plain)
    sys.stdout.write(_MARK.sub(lambda mark: json.dumps(long_lists[int(mark[1])]), text) + "\n")


def spelled_time(seconds: float) -> str:
    """Return seconds as tables show them."""
    if not math.isfinite(seconds):
        return "infeasible"
    return f"{seconds * 1e3:.4f} ms" if seconds < 10 else f"{seconds:.4f} s"


def json_values(value: Any) -> Any:
    """Return what JSON can say: nothing in place of numbers that are not finite, and plain numbers and texts."""
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))  # lists of devices are long
        if kinds <= {int, str} or (kinds == {float} and all(map(math.isfinite, value))):
            return list(value)
        return [json_values(item) for item in value]
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        return None
    return _plain(value) if isinstance(value, np.generic | Path) else value


def _shortened(value: Any, long_lists: list[list[Any]]) -> Any:
    """Return JSON with a mark in the place of each long list of integers, which is appended: indented it takes long."""
    if isinstance(value, dict):
        return {key: _shortened(item, long_lists) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= _LONG or set(map(type, value)) != {int}:
        return [_shortened(item, long_lists) for item in value]
    long_lists.append(value)
    return f"\0{len(long_lists) - 1}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")

"""The tables beside this file: facts that other programs gave, each with its source in ``sources.toml``."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

__all__ = ["rows"]


@cache
def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table: name of a column -> text."""
    with (Path(__file__).parent / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))

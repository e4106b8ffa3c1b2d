"""Rows as a table for people and as an object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from topoplan_command_sweep.work import Row

__all__ = ["as_json", "baselines_of", "cells_of", "headers_of"]


def baselines_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of all baselines, in the order in which they are reported."""
    return list(dict.fromkeys(name for row in rows for name in row.baselines))


def headers_of(rows: Sequence[Row]) -> list[str]:
    """Return the headers of the table."""
    return [
        "global batch",
        *(name.replace("_", " ") for name in baselines_of(rows)),
        "best hybrid",
        "plan",
        "iteration",
    ]


def cells_of(row: Row, names: Sequence[str]) -> list[str]:
    """Return a row as text, under `headers_of`; ``names`` are those of all baselines."""
    values = [*(row.baselines.get(name) for name in names), row.speedup]
    cells = [str(row.batch_size), *("-" if value is None else f"{value:.3f}" for value in values)]
    if row.seconds is None:
        return [*cells, row.problem if row.fits is None else "DOES NOT FIT", "-"]
    told = f"{row.seconds * 1e3:.2f} ms" + (" (DOES NOT FIT)" if row.problem else "")
    return [*cells, row.split or "-", told]


def as_json(rows: Sequence[Row], interrupted: bool) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {"rows": [attrs.asdict(row) for row in rows], "interrupted": interrupted}

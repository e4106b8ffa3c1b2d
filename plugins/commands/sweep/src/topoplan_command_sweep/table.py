"""Rows as a table for people and as an object for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from topoplan_command_sweep.work import Row

__all__ = ["as_json", "baselines_of", "cells_of", "headers_of"]


def baselines_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of all baselines, in the order in which they are reported."""
    return list(dict.fromkeys(name for row in rows for name in row.baselines))


def headers_of(rows: Sequence[Row]) -> list[str]:
    """Return the headers of the table: speedups as the searcher estimates them, and what was simulated."""
    return [
        "global batch",
        *(name.replace("_", " ") for name in baselines_of(rows)),
        *(["best hybrid, as planned", "as simulated"] if _simulated(rows) else ["best hybrid"]),
        "plan",
        "iteration",
        *(["beside it"] if _beside(rows) else []),
    ]


def _simulated(rows: Sequence[Row]) -> bool:
    """Whether a searcher's own speedups are not what was simulated."""
    told = [(row.speedup, row.simulated_speedup) for row in rows if row.simulated_speedup is not None]
    return any(own is None or not math.isclose(own, simulated, rel_tol=1e-9) for own, simulated in told if simulated)


def _beside(rows: Sequence[Row]) -> bool:
    return any(row.aside is not None for row in rows)


def cells_of(row: Row, rows: Sequence[Row]) -> list[str]:
    """Return a row, one of ``rows``, as text, under `headers_of`."""
    values = [*(row.baselines.get(name) for name in baselines_of(rows)), row.speedup]
    values += [row.simulated_speedup] if _simulated(rows) else []
    cells = [str(row.batch_size), *("-" if value is None else f"{value:.3f}" for value in values)]
    beside = [] if row.aside is None else [f"{row.aside}: {_milliseconds(row.aside_seconds)}"]
    if _beside(rows):
        beside = beside or ["-"]
    if row.seconds is None:
        return [*cells, row.problem if row.fits is None else "DOES NOT FIT", "-", *beside]
    told = _milliseconds(row.seconds) + (" (DOES NOT FIT)" if row.problem else "")
    return [*cells, row.split or row.plan or "-", told, *beside]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


def as_json(rows: Sequence[Row], interrupted: bool) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {"rows": [attrs.asdict(row) for row in rows], "interrupted": interrupted}

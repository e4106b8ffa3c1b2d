"""Results as a table for people and as an object for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from topoplan_command_sweep.results import BatchSizeResult
from topoplan_engine.reporting.tables import Column, RowTable

__all__ = ["as_json", "baselines_of", "sweep_table"]


def baselines_of(results: Sequence[BatchSizeResult]) -> list[str]:
    """Return the names of all baselines, in the order in which they are reported."""
    return list(dict.fromkeys(name for result in results for name in result.baselines))


def sweep_table(results: Sequence[BatchSizeResult]) -> RowTable[BatchSizeResult]:
    """Return a row for each batch size: speedups as the searcher estimates them, and what was simulated."""

    def baseline(name: str) -> Column[BatchSizeResult]:
        return Column(name.replace("_", " "), lambda result: _speedup(result.baselines.get(name)))

    simulated = any(_differs(result) for result in results)
    columns = [
        Column[BatchSizeResult]("global batch", lambda result: str(result.batch_size), names_rows=True),
        *map(baseline, baselines_of(results)),
        Column("best hybrid, as planned" if simulated else "best hybrid", lambda result: _speedup(result.speedup)),
    ]
    if simulated:
        columns.append(Column("as simulated", lambda result: _speedup(result.simulated_speedup)))
    columns += [Column("plan", _plan), Column("iteration", _iteration)]
    if any(result.aside is not None for result in results):
        columns.append(Column("beside it", _aside))
    return RowTable(columns, results)


def _differs(result: BatchSizeResult) -> bool:
    """Say whether the searcher's own speedup is not what was simulated."""
    if not result.simulated_speedup:
        return False
    return result.speedup is None or not math.isclose(result.speedup, result.simulated_speedup, rel_tol=1e-9)


def _speedup(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plan(result: BatchSizeResult) -> str:
    if result.seconds is None:
        return result.problem if result.fits is None else "DOES NOT FIT"
    return result.split or result.plan or "-"


def _iteration(result: BatchSizeResult) -> str:
    if result.seconds is None:
        return "-"
    return _milliseconds(result.seconds) + (" (DOES NOT FIT)" if result.problem else "")


def _aside(result: BatchSizeResult) -> str:
    return "-" if result.aside is None else f"{result.aside}: {_milliseconds(result.aside_seconds)}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


def as_json(results: Sequence[BatchSizeResult], interrupted: bool) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {"rows": [attrs.asdict(result) for result in results], "interrupted": interrupted}

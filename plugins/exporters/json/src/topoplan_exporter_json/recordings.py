"""Checks of what a file says was recorded: columns of one length, and indices of what the plan has."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan import Plan, TopoplanError
from topoplan.model.recording import Cause, MemoryKind

__all__ = ["check_recordings"]

#: Columns that may hold any number.
_FREE = ("current", "best")


def check_recordings(plan: Plan, name: str) -> None:
    """Raise `TopoplanError` unless the tables of a plan fit each other and the plan; nothing where it has none."""
    tasks, links, devices = plan.taskgraph.n_tasks, plan.fabric.links.n_links, plan.cluster.n_devices
    if (recording := plan.recording) is not None:
        where = f"{name}: $.recording"
        _check(recording.links, f"{where}.links", {"link": links, "task": tasks})
        _check(recording.critical, f"{where}.critical", {"task": tasks, "cause": len(Cause)}, minima={"by": -1})
        _check(recording.memory, f"{where}.memory", {"device": devices, "kind": len(MemoryKind)})
    if plan.history is not None:
        _check(plan.history, f"{name}: $.history", {"accepted": 2})


def _check(table: Any, where: str, limits: dict[str, int], minima: dict[str, int] | None = None) -> None:
    """Raise unless columns are equally long, those of ``limits`` indices below them, and no other negative."""
    columns = {field.name: getattr(table, field.name) for field in attrs.fields(type(table))}
    rows = len(next(iter(columns.values())))
    for key, column in columns.items():
        if column.ndim != 1 or len(column) != rows:
            raise TopoplanError(f"{where}.{key}: {column.size} values (expected {rows})")
        low = (minima or {}).get(key, 0)
        limit = limits.get(key)
        wrong = column[~(column >= low) | (column >= (np.inf if limit is None else limit))]
        if key not in _FREE and len(wrong):
            right = "must not be negative" if limit is None else f"expected {low} to {limit - 1}"
            raise TopoplanError(f"{where}.{key}: {wrong[0]} ({right})")

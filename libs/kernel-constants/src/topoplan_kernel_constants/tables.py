"""Measured kernels of a kind of device: tables that packages contain, their ``bench.json`` says whence."""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from topoplan.arrays import F64, f64

__all__ = ["bench", "column", "has", "names", "table"]

Rows = dict[str, list[str]]


def has(device: str, name: str) -> bool:
    """Whether a table was measured on a device."""
    return files(__package__).joinpath(device, f"{name}.csv").is_file()


@cache
def table(device: str, name: str) -> Rows:
    """Return the columns of a table, as text.

    >>> sorted(table("h100", "steps"))
    ['elements', 'kind', 'mode', 'tensors', 'us']
    """
    text = files(__package__).joinpath(device, f"{name}.csv").read_text()
    head, *rows = csv.reader(text.splitlines())
    return {word: [row[k] for row in rows] for k, word in enumerate(head)}


def names(device: str, table_name: str, word: str) -> list[str]:
    """Return a column of words."""
    return table(device, table_name)[word]


def column(device: str, table_name: str, word: str) -> F64:
    """Return a column of numbers; what was not measured is NaN."""
    return f64(np.array([float(cell or "nan") for cell in table(device, table_name)[word]]))


@cache
def bench(device: str) -> dict[str, Any]:
    """Return what was measured on, when, and what launches took there."""
    return dict(json.loads(files(__package__).joinpath(device, "bench.json").read_text()))

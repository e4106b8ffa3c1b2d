"""Times that FlexNet's authors published, as tables of this package.

``profiles.csv`` has a row for each operator and cut, ``sources.toml`` says for each profile with which batch size and
for how many devices it was measured, where it was published, and the SHA-256 of the file that its figures are from.
"""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_estimator_measured.reading import Measurements, collect

__all__ = ["names", "profile", "rows"]


def names() -> list[str]:
    """Return the names of all profiles."""
    return list(_sources())


def profile(name: str) -> Measurements:
    """Return the times of a profile.

    Raises:
        TopoplanError: there is no such profile.
    """
    if name not in _sources():
        raise TopoplanError(f"estimator measured: profile: no {shown(name)}{nearest(name, names())}")
    about = _sources()[name]
    return collect(f"profile {name}", about["batch-size"], about["devices"], map(_parsed, rows(name)))


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a profile as they stand in the table."""
    return [row for row in _table() if row["profile"] == name]


def _parsed(row: dict[str, str]) -> tuple[str, tuple[int, ...], float, float, float]:
    degrees = tuple(map(int, row["degrees"].split("x")))
    forward, backward, memory = (float(row[column]) for column in ("forward_ms", "backward_ms", "memory_bytes"))
    return row["operator"], degrees, forward, backward, memory


@cache
def _sources() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("sources.toml").read_text("utf-8"))


@cache
def _table() -> list[dict[str, str]]:
    return list(csv.DictReader(files(__package__).joinpath("profiles.csv").read_text("utf-8").splitlines()))

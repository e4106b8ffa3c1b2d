"""Layer profiles that DAPPLE's authors published, as tables of this package.

``profiles.csv`` has a row for each layer (milliseconds and bytes of the profiled batch, positions of its parents),
``sources.toml`` says for each profile which batch was profiled, where it was published, and the SHA-256 of the file
that its figures are from.
"""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_frontend_torchgraph.reading import LayerProfile, Node

__all__ = ["batch_size", "names", "profile", "rows"]


def names() -> list[str]:
    """Return the names of all profiles."""
    return list(_sources())


def profile(name: str) -> LayerProfile:
    """Return the layers of a profile.

    Raises:
        TopoplanError: there is no such profile.
    """
    batch_size(name)
    layers = rows(name)
    return LayerProfile(
        nodes=tuple(
            Node(
                name=row["layer"],
                description=row["kind"],
                forward=float(row["forward_ms"]),
                backward=float(row["backward_ms"]),
                activations=float(row["activation_bytes"]),
                parameters=float(row["parameter_bytes"]),
            )
            for row in layers
        ),
        edges=tuple((int(parent), child) for child, row in enumerate(layers) for parent in row["parents"].split()),
    )


def batch_size(name: str) -> int:
    """Return how many samples were profiled.

    Raises:
        TopoplanError: there is no such profile.
    """
    if name not in _sources():
        raise TopoplanError(f"frontend torchgraph: profile: no {shown(name)}{nearest(name, names())}")
    samples: int = _sources()[name]["batch-size"]
    return samples


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a profile as they stand in the table."""
    return [row for row in _table() if row["profile"] == name]


@cache
def _sources() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("sources.toml").read_text("utf-8"))


@cache
def _table() -> list[dict[str, str]]:
    return list(csv.DictReader(files(__package__).joinpath("profiles.csv").read_text("utf-8").splitlines()))

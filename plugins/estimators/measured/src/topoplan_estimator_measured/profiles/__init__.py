"""Times that FlexNet's authors published, as tables of this package.

``profiles.csv`` has a row for each operator and cut, ``sources.toml`` says for each profile with which batch size and
for how many devices it was measured, where it was published, and the SHA-256 of the file that its figures are from.
"""

from __future__ import annotations

from topoplan_engine.published import PublishedProfiles
from topoplan_estimator_measured.reading import Measurements, collect

__all__ = ["names", "profile", "rows"]

_PROFILES = PublishedProfiles(__name__, "estimator measured")
names, rows = _PROFILES.names, _PROFILES.rows


def profile(name: str) -> Measurements:
    """Return the times of a profile.

    Raises:
        TopoplanError: there is no such profile.
    """
    source = _PROFILES.source(name)
    return collect(f"profile {name}", source["batch-size"], source["devices"], map(_parsed, rows(name)))


def _parsed(row: dict[str, str]) -> tuple[str, tuple[int, ...], float, float, float]:
    degrees = tuple(map(int, row["degrees"].split("x")))
    forward, backward, memory = (float(row[column]) for column in ("forward_ms", "backward_ms", "memory_bytes"))
    return row["operator"], degrees, forward, backward, memory

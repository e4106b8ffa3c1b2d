"""Measured collectives: the file that ``topoplan profile collectives`` writes.

    {"format": "topoplan-collectives", "version": 1, "world_size": 8,
     "collectives": {"all_gather": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9, ...}, "all_reduce": ..., ...}}

Other fields are ignored; they are for human readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan.model.taskgraph import Collective
from topoplan_engine.files import read_file

__all__ = ["Line", "read"]

FORMAT, VERSION = "topoplan-collectives", 1
#: Seconds of the longest latency, and bytes/s of the fastest network.
_LONGEST, _FASTEST = 1e3, 1e15
#: In the order in which HiDup draws noise.
KINDS = (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


@attrs.frozen
class Line:
    """Seconds of a collective, and its bytes/s, in whole bytes of the whole tensor."""

    latency: float
    bandwidth: int


def read(path: Path, n_devices: int) -> dict[Collective, Line]:
    """Return latency and bandwidth of each collective.

    Raises:
        TopoplanError: the file cannot be read, is no such file, or is for another number of devices.
    """
    try:
        document = json.loads(read_file(path))
    except (ValueError, RecursionError):
        raise TopoplanError(f"{path}: is not JSON (topoplan profile collectives writes such a file)") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TopoplanError(f'{path}: format: holds no collectives (expected "{FORMAT}")')
    if document.get("version") != VERSION:
        raise TopoplanError(f"{path}: version: {document.get('version')!r:.40} cannot be read (expected {VERSION})")
    if document.get("world_size") != n_devices:
        raise TopoplanError(
            f"{path}: world_size: measured with {document.get('world_size')!r:.40} devices, the cluster has "
            f"{n_devices} (bandwidths of collectives are those of one number of devices)"
        )
    table = document.get("collectives")
    if not isinstance(table, dict):
        raise TopoplanError(f"{path}: collectives: missing (expected latency and bandwidth of each)")
    names = {kind: kind.name.lower() for kind in KINDS}
    return {kind: _line(table.get(name), f"{path}: collectives.{name}") for kind, name in names.items()}


def _line(entry: Any, context: str) -> Line:
    if not isinstance(entry, dict):
        raise TopoplanError(f"{context}: missing (expected latency_s and bandwidth_bytes_per_s)")
    return Line(
        latency=_number(entry.get("latency_s"), 0.0, _LONGEST, f"{context}.latency_s"),
        bandwidth=int(_number(entry.get("bandwidth_bytes_per_s"), 1.0, _FASTEST, f"{context}.bandwidth_bytes_per_s")),
    )


def _number(value: Any, minimum: float, most: float, context: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= most:
        raise TopoplanError(f"{context}: {shown(value, 40)} (expected a number, {minimum:g} to {most:g})")
    return float(value)

"""Rates and latencies of links, with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan.model.fabric import FASTEST, LONGEST_LATENCY, SLOWEST

__all__ = ["RATES", "TIMES", "Defaults", "latency", "rate"]

#: bytes/s of a unit of rate, and how many units of time a second has.  Bits have a small b, bytes a large B.
RATES: Mapping[str, float] = {
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "bps": 1 / 8,
    "kbps": 1e3 / 8,
    "Mbps": 1e6 / 8,
    "Gbps": 1e9 / 8,
    "Tbps": 1e12 / 8,
    "bit/s": 1 / 8,
    "kbit/s": 1e3 / 8,
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
    "Tbit/s": 1e12 / 8,
}
TIMES: Mapping[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9, "ps": 1e12}


@attrs.frozen
class Defaults:
    """What holds where a file does not say: bytes/s of one cable, seconds, and equal shortest paths of a pair."""

    bandwidth: float
    latency: float
    max_paths: int = 1


def rate(value: object, where: str) -> float:
    """Return bytes/s: a number, or a text with a unit such as ``400 Gbps`` or ``50 GB/s``.

    Raises:
        TopoplanError: it is neither, the unit is unknown, or it is no rate that a link can have.
    """
    return _quantity(value, RATES, SLOWEST, FASTEST, where, "bytes/s", "400 Gbps")


def latency(value: object, where: str) -> float:
    """Return seconds: a number, or a text with a unit such as ``500 ns``.

    Raises:
        TopoplanError: it is neither, the unit is unknown, or it is no latency that a link can have.
    """
    return _quantity(value, TIMES, 0.0, LONGEST_LATENCY, where, "seconds", "500 ns")


def _quantity(
    value: object, units: Mapping[str, float], low: float, high: float, where: str, unit: str, example: str
) -> float:
    number, right = value, f"a number of {unit}, or a text such as {example!r}"
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([-+]?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?)\s*(\S*)\s*", value)
        if match is None:
            raise TopoplanError(f"{where} is {shown(value)} (expected {right})")
        if match[2] and match[2] not in units:
            what = f"unknown unit {shown(match[2])} (expected {', '.join(units)})"
            raise TopoplanError(f"{where} is {shown(value)}: {what}")
        scale = units.get(match[2], 1.0)
        number = float(match[1]) / scale if units is TIMES else float(match[1]) * scale  # exact for powers of ten
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TopoplanError(f"{where} is {shown(value)} (expected {right})")
    if isinstance(number, float) and not math.isfinite(number):  # which an integer beyond all floats cannot be asked
        raise TopoplanError(f"{where} is {shown(value)} (expected {right})")
    if not low <= number <= high:
        raise TopoplanError(f"{where} is {shown(value)} (expected {low:g} to {high:g} {unit})")
    return float(number)

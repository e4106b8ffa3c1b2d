"""Reads FlexNet's measurement files (JSON) into a checked table in seconds and bytes.

A file is an object ``{batch_size, ngpus, measurements: [{name, pc_str, fw_time, bw_time, mem_req}]}`` with
times in ms and memory in bytes, both of one part.  ``pc_str`` is the number of axes of the operator's
output and its degrees along them, *innermost axis first*: ``4-1-1-1-8`` cuts the samples of an image
tensor into eight.  Inside, degrees stand outermost axis first, like the axes of a tensor.

FlexNet's conventions apply if numbers depend on them: times are rounded to float32, and of two entries with one key the
later counts.  FlexNet writes -1 as a time if a part does not fit its workspace.  Such entries are stored in ``failed``
with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan_engine.files import read_file
from topoplan_operator_times.flexnet import Cut

__all__ = ["Entry", "Measurements", "collect", "measurements_of", "read", "read_json"]

#: Upper limits: milliseconds of a time (eleven days), and bytes of memory.
_LONGEST_MS, _MOST_BYTES = 1e9, 2.0**50


@attrs.frozen
class Entry:
    """Measured costs of one part: seconds, seconds, bytes."""

    forward: float
    backward: float
    memory: float


@attrs.frozen
class Measurements:
    """The measurements of one model.

    Attributes:
        where: the file, or the profile, for messages.
        batch_size: samples of one iteration.
        ngpus: devices of the measured cluster; the entries do not depend on it.
        entries: name of the kind of operator -> degrees -> costs; names in file order.
        failed: name of the kind of operator -> degrees without a time -> the reason.
    """

    where: str
    batch_size: int
    ngpus: int
    entries: dict[str, dict[Cut, Entry]]
    failed: dict[str, dict[Cut, str]]

    @property
    def names(self) -> list[str]:
        """Every kind of operator that the file mentions."""
        return list(dict.fromkeys([*self.entries, *self.failed]))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        TopoplanError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{path}: is not JSON ({error}); expected a measurement file of FlexNet") from None


def read(path: Path) -> Measurements:
    """Read and check a measurement file.

    Raises:
        TopoplanError: it cannot be read, is not JSON, or a field is missing or wrong; the message names
            the file, the field, its value and the expected value.
    """
    return measurements_of(read_json(path), path)


def measurements_of(content: Any, path: Path) -> Measurements:
    """Check the content of a measurement file; see `read`."""
    if not isinstance(content, dict):
        raise TopoplanError(f"{path}: expected an object with batch_size, ngpus and measurements, got {_show(content)}")
    rows = _field(content, "measurements", str(path))
    if not isinstance(rows, list) or not rows:
        raise TopoplanError(f"{path}: measurements: expected a list of entries, got {_show(rows)}")
    return collect(
        str(path),
        _count(content, "batch_size", path),
        _count(content, "ngpus", path),
        (_row(row, f"{path}: measurements[{index}]") for index, row in enumerate(rows)),
    )


def collect(
    where: str, batch_size: int, ngpus: int, rows: Iterable[tuple[str, Cut, float, float, float]]
) -> Measurements:
    """Build a table from rows of name, degrees, forward and backward milliseconds, and bytes."""
    entries: dict[str, dict[Cut, Entry]] = {}
    failed: dict[str, dict[Cut, str]] = {}
    for name, cut, forward, backward, memory in rows:
        reason = _no_time(forward) or _no_time(backward)
        if reason:
            failed.setdefault(name, {})[cut] = reason
            entries.get(name, {}).pop(cut, None)
        else:
            failed.get(name, {}).pop(cut, None)
            entries.setdefault(name, {})[cut] = Entry(_seconds(forward), _seconds(backward), memory)
    return Measurements(
        where=where,
        batch_size=batch_size,
        ngpus=ngpus,
        entries={name: table for name, table in entries.items() if table},
        failed={name: table for name, table in failed.items() if table},
    )


def _row(row: Any, context: str) -> tuple[str, Cut, float, float, float]:
    """Check one measurement of a file."""
    if not isinstance(row, dict):
        raise TopoplanError(f"{context}: expected an object, got {_show(row)}")
    name = _field(row, "name", context)
    if not isinstance(name, str) or not name:
        raise TopoplanError(f"{context}: name: expected text, got {_show(name)}")
    cut = _cut(_field(row, "pc_str", context), context)
    forward, backward = _number(row, "fw_time", context), _number(row, "bw_time", context)
    memory = _number(row, "mem_req", context)
    if not (_no_time(forward) or _no_time(backward) or 0 <= memory <= _MOST_BYTES):
        raise TopoplanError(f"{context}: mem_req: expected bytes, 0 to {_MOST_BYTES:g}, got {memory:g}")
    return name, cut, forward, backward, memory


def _no_time(ms: float) -> str:
    if ms < 0:
        return f"measured as {ms:g} (did not fit the workspace)"
    return "" if ms <= _LONGEST_MS else f"measured as {ms} (not a time)"


def _seconds(ms: float) -> float:
    """FlexNet holds times as float32 milliseconds."""
    return float(np.float32(ms)) / 1000


def _cut(text: Any, context: str) -> Cut:
    """Parse ``pc_str`` and turn it outermost axis first."""
    numbers = text.split("-") if isinstance(text, str) else []
    if not all(number.isdecimal() and number.isascii() and len(number) < 10 for number in numbers):
        numbers = []
    count, *degrees = [int(number) for number in numbers] or [0]
    if count < 1 or count != len(degrees) or min(degrees) < 1:
        raise TopoplanError(
            f"{context}: pc_str: expected the number of axes and that many degrees (as 2-1-16), got {_show(text)}"
        )
    return tuple(reversed(degrees))


def _field(row: dict[str, Any], key: str, context: str) -> Any:
    if key not in row:
        raise TopoplanError(f"{context}: {key} is missing (has: {', '.join(map(str, row)) or 'nothing'})")
    return row[key]


def _number(row: dict[str, Any], key: str, context: str) -> float:
    value = _field(row, key, context)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TopoplanError(f"{context}: {key}: expected a number, got {_show(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _count(content: dict[str, Any], key: str, path: Path) -> int:
    value = _field(content, key, str(path))
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise TopoplanError(f"{path}: {key}: expected a whole number, 1 to 2147483647, got {_show(value)}")
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

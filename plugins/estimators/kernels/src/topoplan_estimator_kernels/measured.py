"""How far predictions of training runs of language models were off, by kind of device: what a plan says of its own.

``measured.csv`` is what ``topoplan validate llm --by-device FILE.csv`` writes of all public rows, in the run that
writes docs/validation.md: a line for each device, quantity, group of rows and stack.  `measured_errors` adds up those
of a device.  Times there have constants of the software that ran, which a plan has only if options say them.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

__all__ = ["measured_errors"]


class _Line(NamedTuple):
    group: str
    rows: int
    mape: float
    left_out: float
    too_low: float
    too_high: float
    fewest: int
    most: int
    precisions: tuple[str, ...]
    products: float


@functools.cache
def _lines() -> dict[tuple[str, str], list[_Line]]:
    """Return the lines of the table by device and quantity."""
    text = files(__package__).joinpath("measured.csv").read_text(encoding="utf-8")
    lines: dict[tuple[str, str], list[_Line]] = {}
    for row in csv.DictReader(text.splitlines()):
        line = _Line(
            group=row["group"],
            rows=int(row["rows"]),
            mape=float(row["mape_percent"]),
            left_out=float(row["left_out_percent"] or "nan"),
            too_low=float(row["too_low_percent"]),
            too_high=float(row["too_high_percent"]),
            fewest=int(row["fewest"]),
            most=int(row["most"]),
            precisions=tuple(row["precisions"].split()),
            products=float(row["products"]),
        )
        lines.setdefault((row["device"], row["quantity"]), []).append(line)
    return lines


def measured_errors(device: str, gpus: int, precision: str, products: float) -> dict[str, Any]:
    """Return how far predicted times and bytes of measured runs on a kind of device were off, as plans record it.

    Args:
        device: kind of device, in small letters.
        gpus: devices of the plan: that no run had so few or so many is said.
        precision: of the plan, such as ``bf16``: likewise.
        products: the plan's constant of this name, which is said beside those of the stacks that were measured.

    Returns:
        ``text``, a line for people; ``time`` and ``memory``, None where nothing was measured, with ``rows``,
        ``groups``, ``mape_percent``, ``left_out_percent`` (by constants fitted without the model; None where not
        known), ``too_low_percent``, ``too_high_percent``, ``fewest_devices``, ``most_devices``, ``precisions``.

    Examples:
        >>> measured_errors("mi300x", 64, "bf16", 1.0)["text"]
        'no measured run on MI300X, neither time nor memory (docs/validation.md)'
    """
    time, memory = (_sum(_lines().get((device, quantity), [])) for quantity in ("time", "memory"))
    name = device.upper()
    if time is None and memory is None:
        text = f"no measured run on {name}, neither time nor memory (docs/validation.md)"
    else:
        of_times = _lines().get((device, "time"), [])
        parts = [
            _text("time", time, name, _beyond(time, gpus, precision)) + _software(of_times, products),
            _text("memory", memory, name, _beyond(memory, gpus, precision)),
        ]
        text = f"{'; '.join(parts)} (docs/validation.md)"
    return {"text": text, "time": time, "memory": memory}


def _sum(lines: Sequence[_Line]) -> dict[str, Any] | None:
    """Return the errors of lines together."""
    if not lines:
        return None
    rows = sum(line.rows for line in lines)
    left_out = sum(line.rows * line.left_out for line in lines) / rows
    return {
        "rows": rows,
        "groups": sorted({line.group for line in lines}),
        "mape_percent": sum(line.rows * line.mape for line in lines) / rows,
        "left_out_percent": None if math.isnan(left_out) else left_out,
        "too_low_percent": max(line.too_low for line in lines),
        "too_high_percent": max(line.too_high for line in lines),
        "fewest_devices": min(line.fewest for line in lines),
        "most_devices": max(line.most for line in lines),
        "precisions": sorted({word for line in lines for word in line.precisions}),
    }


def _beyond(errors: dict[str, Any] | None, gpus: int, precision: str) -> str:
    """Say what of a plan no run had: so many devices, or its precision."""
    if errors is None:
        return ""
    within = errors["fewest_devices"] <= gpus <= errors["most_devices"]
    missing = [] if within else [f"of {gpus:,}"]
    missing += [] if precision in errors["precisions"] else [f"in {precision}"]
    return f", none {' or '.join(missing)}" if missing else ""


def _text(quantity: str, errors: dict[str, Any] | None, device: str, beyond: str) -> str:
    if errors is None:
        return f"{quantity}: no measured run on {device}"
    fewest, most = errors["fewest_devices"], errors["most_devices"]
    sizes = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    worst = f"-{errors['too_low_percent']:.2g} % to +{errors['too_high_percent']:.2g} %"
    runs = f"{errors['rows']} run{'s' * (errors['rows'] != 1)}"
    by_others = "" if errors["left_out_percent"] is None else f" ({errors['left_out_percent']:.2g} % left out)"
    mean = f"{errors['mape_percent']:.2g} %{by_others}"
    return f"{quantity}: mean {mean}, {worst}, {runs} on {sizes} {device}{beyond}"


def _software(lines: Sequence[_Line], products: float) -> str:
    """Say that times had constants, whether fitted to them, of which the plan has that of products.

    Constants that were fitted have errors of what was left out.
    """
    if not lines:
        return ""
    used = [line.products for line in lines]
    source = "from elsewhere" if all(math.isnan(line.left_out) for line in lines) else "fitted to them"
    smallest, largest = min(used), max(used)
    values = f"{smallest:.3g}" if smallest == largest else f"{smallest:.3g} to {largest:.3g}"
    return f", by constants {source} (products {values}; here {products:.3g})"

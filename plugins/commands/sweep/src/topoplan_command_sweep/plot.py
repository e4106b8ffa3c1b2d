"""Speedup over batch size as SVG: a line for the plans, and a dashed one for each baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan_command_sweep.table import baselines_of
from topoplan_command_sweep.work import Row
from topoplan_studies.chart import Line, line_chart

__all__ = ["plot"]


def plot(rows: Sequence[Row]) -> str:
    """Return the SVG; batch sizes are on a logarithmic axis, speedups start at zero."""
    low, high = (math.log2(end([row.batch_size for row in rows])) for end in (min, max))
    place = [(math.log2(row.batch_size) - low) / (high - low) if high > low else 0.5 for row in rows]

    def line(name: str, speedups: Sequence[float | None], *, dashed: bool) -> Line:
        known = [(at, value) for at, value in zip(place, speedups, strict=True) if value is not None]
        return Line(name, known, dashed=dashed)

    lines = [line("best hybrid", [row.speedup for row in rows], dashed=False)]
    for name in baselines_of(rows):
        lines.append(line(name.replace("_", " "), [row.baselines.get(name) for row in rows], dashed=True))
    axis = [(at, str(row.batch_size)) for at, row in zip(place, rows, strict=True)]
    return line_chart("speedup over one device, by global batch size", axis, lines)

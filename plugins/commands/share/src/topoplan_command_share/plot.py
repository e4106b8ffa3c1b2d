"""Iteration time over load as SVG: for each network a solid line for the mean and a dashed one for the tail."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan_command_share.rows import Row
from topoplan_studies.chart import Line, line_chart

__all__ = ["plot"]


def plot(rows: Sequence[Row]) -> str:
    """Return the SVG; both axes are linear and time starts at zero."""
    lines = []
    for name in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == name]
        lines.append(Line(name, [(row.load / 100, row.mean * 1e3) for row in own]))
        lines.append(Line(name, [(row.load / 100, row.p99 * 1e3) for row in own], dashed=True))
    axis = [(load / 100, f"{load} %") for load in sorted({row.load for row in rows})]
    return line_chart("iteration time (ms) over load; dashed: 99th percentile", axis, lines)

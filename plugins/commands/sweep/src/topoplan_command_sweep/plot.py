"""Speedup over batch size as SVG: a line for the plans, and a dashed one for each baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from topoplan_command_sweep.table import baselines_of
from topoplan_command_sweep.work import Row

__all__ = ["plot"]

#: Colours that people of all kinds of sight tell apart (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT, _LEFT, _LINE = 560, 320, 50, 18


def plot(rows: Sequence[Row]) -> str:
    """Return the SVG; batch sizes are on a logarithmic axis, speedups start at zero."""
    names = baselines_of(rows)
    lines = [("best hybrid", [(row.batch_size, row.speedup) for row in rows])]
    lines += [(name.replace("_", " "), [(row.batch_size, row.baselines.get(name)) for row in rows]) for name in names]
    points = [(name, [(batch, value) for batch, value in line if value is not None]) for name, line in lines]
    head = _LINE * (len(points) + 1) + 12
    left, right, top, bottom = _LEFT, _WIDTH - 24, head, head + _HEIGHT - 30
    most = max((value for _, line in points for _, value in line), default=1.0)
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100, 200) if most / step <= 9), 500)
    ticks = max(1, math.ceil(most / step))
    batches = [row.batch_size for row in rows]
    low, high = math.log2(min(batches)), math.log2(max(batches))

    def x(batch: int) -> float:
        return left + (right - left) * ((math.log2(batch) - low) / (high - low) if high > low else 0.5)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / (ticks * step)

    size = f'width="{_WIDTH}" height="{head + _HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="{_LINE}" font-weight="bold">speedup over one device, by global batch size</text>',
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#999"/>',
    ]
    for tick in range(ticks + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{tick * step}</text>')
    parts += [f'<text x="{x(b):.1f}" y="{bottom + 15}" text-anchor="middle">{b}</text>' for b in batches]
    for number, (name, line) in enumerate(points):
        colour, key = _COLOURS[number % len(_COLOURS)], _LINE * (number + 2)
        style = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="5 3"' if number else "")
        parts.append(f'<line x1="12" x2="44" y1="{key - 4}" y2="{key - 4}" {style}/>')
        parts.append(f'<text x="52" y="{key}">{escape(name)}</text>')
        path = " ".join(f"{x(batch):.1f},{y(value):.1f}" for batch, value in line)
        parts.append(f'<polyline points="{path}" fill="none" {style}/>')
        parts += [f'<circle cx="{x(b):.1f}" cy="{y(v):.1f}" r="2.5" fill="{colour}"/>' for b, v in line]
    return "\n".join([*parts, "</svg>"]) + "\n"

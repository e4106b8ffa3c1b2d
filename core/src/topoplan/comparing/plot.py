"""A figure as SVG: a panel for each model, iteration time over what varies, a line for each network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from topoplan.chart import COLOURS
from topoplan.comparing.figure import Figure, number
from topoplan.comparing.rows import Row

__all__ = ["plot"]

_DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4")
_COLUMNS, _WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 3, 300, 240, 56, 26, 18


def plot(figure: Figure, rows: Sequence[Row]) -> str:
    """Return the SVG.

    The last thing that varies is the x axis, every value at the same distance; each combination of the others has
    panels of its own.  Times are medians on a logarithmic axis; a bar from the least to the most shows the seeds.
    """
    axis = list(figure.vary)[-1] if figure.vary else ""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        others = [f"{key} {number(value)}" for key, value in row.at.items() if key != axis]
        panels.setdefault(", ".join([row.model, *others]), []).append(row)
    networks = [network.name for network in figure.networks]
    count = len(panels)
    width = min(_COLUMNS, count) * _WIDTH
    head = _LINE * (1 + len(networks)) + 8
    height = head + math.ceil(count / _COLUMNS) * _HEIGHT
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="{_LINE}" font-weight="bold">iteration time (ms){f" over {axis}" if axis else ""}</text>',
    ]
    for i, name in enumerate(networks):
        y = _LINE * (i + 2)
        parts += [_line(i, f"12,{y - 4} 44,{y - 4}"), f'<text x="52" y="{y}">{escape(name)}</text>']
    for i, (title, found) in enumerate(panels.items()):
        x, y = (i % _COLUMNS) * _WIDTH, head + (i // _COLUMNS) * _HEIGHT
        parts += _panel(title, found, networks, axis, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, rows: Sequence[Row], networks: Sequence[str], axis: str, x0: float, y0: float) -> list[str]:
    left, right = x0 + _LEFT, x0 + _WIDTH - 12
    top, bottom = y0 + _TOP, y0 + _HEIGHT - 30
    values = list(dict.fromkeys(row.at.get(axis, 0.0) for row in rows))
    low = math.log10(min(row.time.least for row in rows) * 1e3)
    high = math.log10(max(row.time.most for row in rows) * 1e3)
    margin = max(0.05 * (high - low), 0.02)
    low, high = low - margin, high + margin

    def x(value: float) -> float:
        return left + (right - left) * (values.index(value) + 0.5) / len(values)

    def y(seconds: float) -> float:
        return bottom - (bottom - top) * (math.log10(seconds * 1e3) - low) / (high - low)

    parts = [
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#999"/>',
    ]
    for tick in _ticks(low, high):
        at = y(tick / 1e3)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in values if axis else ():
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 15}" text-anchor="middle">{number(value)}</text>')
    for i, name in enumerate(networks):
        own = [row for row in rows if row.network == name]
        points = [(x(row.at.get(axis, 0.0)), y(row.time.median)) for row in own]
        if len(points) > 1:
            parts.append(_line(i, " ".join(f"{a:.1f},{b:.1f}" for a, b in points)))
        colour = COLOURS[i % len(COLOURS)]
        for row, (a, b) in zip(own, points, strict=True):
            ends = f'y1="{y(row.time.least):.1f}" y2="{y(row.time.most):.1f}"'
            parts.append(f'<line x1="{a:.1f}" x2="{a:.1f}" {ends} stroke="{colour}" stroke-width="4" opacity="0.4"/>')
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>')
    return parts


def _line(index: int, points: str) -> str:
    colour, dash = COLOURS[index % len(COLOURS)], _DASHES[index % len(_DASHES)]
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers of milliseconds between two exponents: 1, 2, 5 of each decade, or two ends if too few."""
    steps = [digit * 10.0**decade for decade in range(math.floor(low), math.ceil(high) + 1) for digit in (1, 2, 5)]
    inside = [step for step in steps if low <= math.log10(step) <= high]
    if len(inside) >= 2:
        return inside
    return [float(f"{10**end:.3g}") for end in (low + 0.1 * (high - low), high - 0.1 * (high - low))]

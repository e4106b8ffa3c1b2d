"""A study as SVG: a panel for each model, iteration time over what varies, a line (or a bar) for each network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from html import escape

from topoplan_studies.bars import HEIGHT, WIDTH, bars, costs
from topoplan_studies.chart import COLOURS
from topoplan_studies.rows import Row
from topoplan_studies.study import Study, number

__all__ = ["plot"]

_DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4")
_COLUMNS, _LEFT, _TOP, _LINE = 3, 56, 26, 18


def plot(study: Study, rows: Sequence[Row], currency: str) -> str:
    """Return the SVG.

    The last thing that takes several values is the x axis, every value at the same distance; each combination of the
    others has panels of its own.  Times are medians on a logarithmic axis; a bar from the least to the most shows the
    seeds.  Where nothing does, networks have bars instead of lines, and stand beside their costs in ``currency``.
    """
    varying = [key for key in study.vary if len({row.at[key] for row in rows}) > 1]
    axis = varying[-1] if varying else ""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        others = [f"{key} {number(value)}" for key, value in row.at.items() if key in varying[:-1]]
        panels.setdefault(", ".join([row.model, *others]), []).append(row)
    networks = [network.name for network in study.networks]
    if axis:
        drawn = [partial(_panel, title, found, networks, axis) for title, found in panels.items()]
    else:
        drawn = [partial(bars, title, found, networks) for title, found in panels.items()]
        priced = {title: found for title, found in panels.items() if any(row.cost for row in found)}
        drawn += [partial(costs, f"{title}: over cost", found, networks, currency) for title, found in priced.items()]
    width = min(_COLUMNS, len(drawn)) * WIDTH
    head = _LINE * (1 + len(networks)) + 8
    height = head + math.ceil(len(drawn) / _COLUMNS) * HEIGHT
    size = f'width="{width}" height="{height}"'
    over = f" over {axis}" if axis else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="{_LINE}" font-weight="bold">iteration time (ms){over}</text>',
    ]
    for i, name in enumerate(networks):
        y = _LINE * (i + 2)
        colour = COLOURS[i % len(COLOURS)]
        key = _line(i, f"12,{y - 4} 44,{y - 4}")
        swatch = f'<rect x="12" y="{y - 10}" width="32" height="10" fill="{colour}"/>'
        parts += [key if axis else swatch, f'<text x="52" y="{y}">{escape(name)}</text>']
    for i, panel in enumerate(drawn):
        parts += panel((i % _COLUMNS) * WIDTH, head + (i // _COLUMNS) * HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, rows: Sequence[Row], networks: Sequence[str], axis: str, x0: float, y0: float) -> list[str]:
    left, right = x0 + _LEFT, x0 + WIDTH - 12
    top, bottom = y0 + _TOP, y0 + HEIGHT - 30
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

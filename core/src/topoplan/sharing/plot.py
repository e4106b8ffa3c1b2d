"""Iteration time over load as SVG: for each network a solid line for the mean and a dashed one for the tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from topoplan.sharing.rows import Row

__all__ = ["plot"]

#: Colours that people of all kinds of sight tell apart (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT, _LEFT, _LINE = 560, 320, 60, 18


def plot(rows: Sequence[Row]) -> str:
    """Return the SVG; both axes are linear and time starts at zero."""
    networks = list(dict.fromkeys(row.network for row in rows))
    loads = sorted({row.load for row in rows})
    head = _LINE * (len(networks) + 1) + 12
    left, right, top, bottom = _LEFT, _WIDTH - 24, head, head + _HEIGHT - 30
    step = _step(max(row.p99 for row in rows) * 1e3)
    ticks = math.ceil(max(row.p99 for row in rows) * 1e3 / step)

    def x(load: int) -> float:
        return left + (right - left) * load / 100

    def y(milliseconds: float) -> float:
        return bottom - (bottom - top) * milliseconds / (ticks * step)

    size = f'width="{_WIDTH}" height="{head + _HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="{_LINE}" font-weight="bold">iteration time (ms) over load; dashed: 99th percentile</text>',
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#999"/>',
    ]
    for tick in range(ticks + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    parts += [f'<text x="{x(load):.1f}" y="{bottom + 15}" text-anchor="middle">{load} %</text>' for load in loads]
    for number, name in enumerate(networks):
        colour = _COLOURS[number % len(_COLOURS)]
        own = [row for row in rows if row.network == name]
        key = _LINE * (number + 2)
        parts.append(f'<line x1="12" x2="44" y1="{key - 4}" y2="{key - 4}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="52" y="{key}">{escape(name)}</text>')
        for dash, points in (
            ("", [(x(row.load), y(row.mean * 1e3)) for row in own]),
            ("5 3", [(x(row.load), y(row.p99 * 1e3)) for row in own]),
        ):
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            parts.append(f'<polyline points="{line}" {style}/>')
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>' for a, b in points]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _step(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, such that some five of it reach ``most``."""
    power = 10.0 ** math.floor(math.log10(most / 5)) if most > 0 else 1.0
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power * 5 >= most or digit == 10)

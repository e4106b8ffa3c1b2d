"""Panels for networks at one place, as SVG: a bar for each iteration time, and times against costs.

A network is worth its money where no other one is both cheaper and faster: those lie on the dashed line of the second
panel (the Pareto front).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from topoplan_studies.chart import COLOURS
from topoplan_studies.rows import Row

__all__ = ["HEIGHT", "WIDTH", "bars", "costs", "front"]

#: Width and height of a panel, and what its axes and title take.
WIDTH, HEIGHT = 300, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 26, 30


def front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no other one beats in time and cost, by rising cost."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.cost, row.time.median)):
        if not found or row.time.median < found[-1].time.median:
            found.append(row)
    return found


def bars(title: str, rows: Sequence[Row], networks: Sequence[str], x0: float, y0: float) -> list[str]:
    """Return a panel with a bar for each row, in milliseconds from zero; a line shows the spread of its seeds."""
    step, most = _scale(max(row.time.most for row in rows) * 1e3)
    left, right, top, bottom = _frame(x0, y0)
    parts = _axes(title, "", x0, y0)
    for tick in range(round(most / step) + 1):
        parts += _level(f"{tick * step:g}", bottom - (bottom - top) * tick * step / most, x0)
    room = (right - left) / len(rows)
    for place, row in enumerate(rows):
        middle = left + room * (place + 0.5)
        heights = [
            bottom - (bottom - top) * time * 1e3 / most for time in (row.time.least, row.time.median, row.time.most)
        ]
        colour = _colour(row, networks)
        size = f'width="{0.7 * room:.1f}" height="{bottom - heights[1]:.1f}"'
        parts.append(
            f'<rect class="bar" x="{middle - 0.35 * room:.1f}" y="{heights[1]:.1f}" {size} fill="{colour}">'
            f"<title>{escape(row.network)}</title></rect>"
        )
        if row.time.most > row.time.least:
            ends = f'y1="{heights[0]:.1f}" y2="{heights[2]:.1f}"'
            parts.append(f'<line x1="{middle:.1f}" x2="{middle:.1f}" {ends} stroke="#333"/>')
        text = f"{row.time.median * 1e3:.3g}"
        parts.append(
            f'<text x="{middle:.1f}" y="{heights[2] - 4:.1f}" text-anchor="middle" font-size="10">{text}</text>'
        )
    return parts


def costs(title: str, rows: Sequence[Row], networks: Sequence[str], currency: str, x0: float, y0: float) -> list[str]:
    """Return a panel with a point for each row: its cost, and its milliseconds; both axes begin at zero."""
    step, most = _scale(max(row.time.median for row in rows) * 1e3)
    unit, letter = (1e6, "M") if max(row.cost for row in rows) >= 1e6 else (1e3, "k")
    money, dearest = _scale(max(row.cost for row in rows) / unit)
    left, right, top, bottom = _frame(x0, y0)
    parts = _axes(title, f"cost ({currency})", x0, y0)
    for tick in range(round(most / step) + 1):
        parts += _level(f"{tick * step:g}", bottom - (bottom - top) * tick * step / most, x0)
    for tick in range(round(dearest / money) + 1):
        at = left + (right - left) * tick * money / dearest
        parts.append(f'<text x="{at:.1f}" y="{bottom + 13}" text-anchor="middle">{tick * money:g}{letter}</text>')

    def place(row: Row) -> tuple[float, float]:
        x = left + (right - left) * row.cost / unit / dearest
        return x, bottom - (bottom - top) * row.time.median * 1e3 / most

    line = " ".join("{:.1f},{:.1f}".format(*place(row)) for row in front(rows))
    parts.append(f'<polyline class="front" points="{line}" fill="none" stroke="#666" stroke-dasharray="4 3"/>')
    for row in rows:
        x, y = place(row)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_colour(row, networks)}">'
            f"<title>{escape(row.network)}</title></circle>"
        )
    return parts


def _frame(x0: float, y0: float) -> tuple[float, float, float, float]:
    """Return left, right, top and bottom of the area of a panel."""
    return x0 + _LEFT, x0 + WIDTH - _RIGHT, y0 + _TOP, y0 + HEIGHT - _BOTTOM


def _axes(title: str, below: str, x0: float, y0: float) -> list[str]:
    left, right, top, bottom = _frame(x0, y0)
    size = f'width="{right - left}" height="{bottom - top}"'
    return [
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" {size} fill="none" stroke="#999"/>',
        f'<text x="{(left + right) / 2:.1f}" y="{bottom + 26}" text-anchor="middle">{escape(below)}</text>',
    ]


def _level(text: str, y: float, x0: float) -> list[str]:
    """Return a line across the area, and its label."""
    left, right, _, _ = _frame(x0, 0)
    return [
        f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>',
        f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{text}</text>',
    ]


def _scale(most: float) -> tuple[float, float]:
    """Return a step of 1, 2 or 5 times a power of ten, and the multiple of it that leaves some room above ``most``."""
    if most <= 0:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power * 4 >= most or digit == 10)
    return step, step * math.ceil(1.1 * most / step)


def _colour(row: Row, networks: Sequence[str]) -> str:
    return COLOURS[networks.index(row.network) % len(COLOURS)]

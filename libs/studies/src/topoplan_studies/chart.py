"""Lines over an axis, as SVG: what commands draw where one panel is enough; and where such a picture may be put."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from topoplan.errors import TopoplanError
from topoplan.files import check_writable

__all__ = ["COLOURS", "Line", "check_plot", "line_chart"]

#: Colours that people of all kinds of sight tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT, _LEFT, _KEY = 560, 320, 60, 18


def check_plot(path: Path, flag: str = "--plot") -> None:
    """Raise `TopoplanError` where no picture can be written, or one of another format is asked for."""
    if path.suffix.lower() != ".svg":
        raise TopoplanError(f"{flag} {path}: pictures are SVG (name a file that ends in .svg)")
    check_writable(path)


class Line(NamedTuple):
    """One line; those of one name have one colour and one entry in the key.

    Attributes:
        name: in the key.
        points: (place on the axis from 0 to 1, value of at least 0) each.
        dashed: in the key, too, if it is the first of its name.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def line_chart(title: str, axis: Sequence[tuple[float, str]], lines: Sequence[Line]) -> str:
    """Return the SVG; values are on a linear axis that starts at zero.

    Args:
        title: says what the values are, and over what.
        axis: places from 0 to 1 and their labels.
        lines: what to draw.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    head = _KEY * (len(names) + 1) + 12
    left, right, top, bottom = _LEFT, _WIDTH - 24, head, head + _HEIGHT - 30
    most = max((value for line in lines for _, value in line.points), default=1.0)
    step = _step(most)
    ticks = max(1, math.ceil(most / step))

    def x(place: float) -> float:
        return left + (right - left) * place

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / (ticks * step)

    size = f'width="{_WIDTH}" height="{head + _HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect {size} fill="white"/>',
        f'<text x="8" y="{_KEY}" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#999"/>',
    ]
    for tick in range(ticks + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    parts += [
        f'<text x="{x(place):.1f}" y="{bottom + 15}" text-anchor="middle">{escape(label)}</text>'
        for place, label in axis
    ]
    for number, name in enumerate(names):
        colour, key = COLOURS[number % len(COLOURS)], _KEY * (number + 2)
        own = [line for line in lines if line.name == name]
        styles = [
            f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="5 3"' if line.dashed else "") for line in own
        ]
        parts.append(f'<line x1="12" x2="44" y1="{key - 4}" y2="{key - 4}" {styles[0]}/>')
        parts.append(f'<text x="52" y="{key}">{escape(name)}</text>')
        for line, style in zip(own, styles, strict=True):
            points = [(x(place), y(value)) for place, value in line.points]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(f'<polyline points="{path}" fill="none" {style}/>')
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>' for a, b in points]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _step(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, such that some five of it reach ``most``."""
    power = 10.0 ** math.floor(math.log10(most / 5)) if most > 0 else 1.0
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power * 5 >= most or digit == 10)

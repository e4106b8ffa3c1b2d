"""Times of operators that move bytes: curves of what was measured, for each kind over elements and lengths of rows.

A curve is a straight line between measured points, in logarithms of elements and seconds; above the largest, time grows
as the elements do, and below the smallest it stays.  Between two lengths of a row, curves are averaged likewise.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

import attrs
import numpy as np

from topoplan_kernel_constants.tables import column, names

__all__ = ["Curves"]

#: (logarithm of elements, logarithm of seconds) of one length, in order of elements.
_Curve = list[tuple[float, float]]
#: Seconds that stand for no kernel.
_NOTHING = 1e-9


@attrs.frozen(eq=False)
class Curves:
    """Curves by mode, kind and direction, then by length of a row.

    Attributes:
        curves: of all passes.
        smallest: median over kinds of the seconds of the fewest elements.
    """

    curves: Mapping[tuple[str, str, str], Mapping[int, _Curve]]
    smallest: float

    @classmethod
    def of(cls, device: str, faster: float = 1.0) -> Curves:
        """Return the curves of a device, or of one whose memory is ``faster`` by a factor.

        What the fewest elements take is the launch, and stays.
        """
        curves: dict[tuple[str, str, str], dict[int, _Curve]] = {}
        rows, row = column(device, "passes", "rows"), column(device, "passes", "row")
        for direction in ("forward", "backward"):
            seconds = column(device, "passes", f"{direction}_us") / 1e6
            words = zip(names(device, "passes", "mode"), names(device, "passes", "kind"), strict=True)
            for k, (mode, kind) in enumerate(words):
                point = math.log(rows[k] * row[k]), math.log(max(seconds[k], _NOTHING))
                curves.setdefault((mode, kind, direction), {}).setdefault(int(row[k]), []).append(point)
        in_order = {
            key: {row: _at_speed(sorted(curve), faster) for row, curve in sorted(of.items())}
            for key, of in curves.items()
        }
        least_seconds = [next(iter(of.values()))[0][1] for (_, _, way), of in in_order.items() if way == "forward"]
        return cls(in_order, math.exp(float(np.median(least_seconds))))

    def kinds(self) -> set[str]:
        """Return the kinds that were measured."""
        return {kind for _, kind, _ in self.curves}

    def seconds(self, mode: str, kind: str, direction: str, rows: float, row: float) -> float:
        """Return the seconds of one pass.

        Args:
            mode: ``fp32`` or ``bf16``.
            kind: of the table.
            direction: ``forward`` or ``backward``.
            rows, row: number of rows, and elements of each.
        """
        of = self.curves[mode, kind, direction]
        lengths = [*of]
        position = math.log(max(rows * row, 1))
        right = min(max(bisect_left(lengths, row), 1), len(lengths) - 1) if len(lengths) > 1 else 0
        if not right:
            return _seconds(_at(of[lengths[0]], position))
        low, high = lengths[right - 1], lengths[right]
        share = min(max(math.log(row / low) / math.log(high / low), 0.0), 1.0)
        return _seconds((1 - share) * _at(of[low], position) + share * _at(of[high], position))


def _seconds(log: float) -> float:
    seconds = math.exp(log)
    return seconds if seconds > 10 * _NOTHING else 0.0


def _at_speed(curve: _Curve, faster: float) -> _Curve:
    """Return the curve of a faster memory."""
    launch = min(math.exp(log) for _, log in curve)
    return [(position, math.log(launch + (math.exp(log) - launch) / faster)) for position, log in curve]


def _at(curve: _Curve, position: float) -> float:
    """Return the logarithm of seconds at a logarithm of elements."""
    (last, value) = curve[-1]
    if position >= last:
        return value + (position - last) * (value > math.log(10 * _NOTHING))
    return float(np.interp(position, [point[0] for point in curve], [point[1] for point in curve]))

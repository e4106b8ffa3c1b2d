"""Costs of one kind of operator as a function of the number of samples of a part.

Between two measured batch cuts a time follows a power law: log(time) is linear in log(samples).  Outside the measured
range the line of the last two points is extended.  Its slope is limited to 0 .. 1 (at most proportional to the samples,
never decreasing), so that noise is not amplified.  Memory is linear: a constant (weights) plus a part proportional to
the samples (activations).  Only the number of samples is interpolated, not cuts along other axes.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from topoplan_estimator_measured.reading import Entry

__all__ = ["interpolate"]


def interpolate(points: dict[float, Entry], samples: float) -> Entry:
    """Return the costs of a part of ``samples`` samples.

    Args:
        points: samples of a part -> its measured costs; at least two.
        samples: of the part that was not measured.
    """
    order = sorted(points)
    right = min(max(bisect_left(order, samples), 1), len(order) - 1)
    a, b = order[right - 1], order[right]
    inside = a <= samples <= b
    low, high = points[a], points[b]
    ref = a if samples < a else b
    slope = (high.memory - low.memory) / (b - a)
    memory = low.memory + slope * (samples - a) if inside else points[ref].memory + max(slope, 0) * (samples - ref)
    return Entry(
        forward=_time(a, b, low.forward, high.forward, samples),
        backward=_time(a, b, low.backward, high.backward, samples),
        memory=max(memory, 0.0),
    )


def _time(a: float, b: float, low: float, high: float, samples: float) -> float:
    """Return the time at ``samples`` of the power law through (a, low) and (b, high)."""
    if low <= 0 or high <= 0:  # has no logarithm: a straight line, level outside
        share = min(max((samples - a) / (b - a), 0.0), 1.0)
        return low + share * (high - low)
    slope = math.log(high / low) / math.log(b / a)
    if a <= samples <= b:
        return low * math.pow(samples / a, slope)
    ref, time = (a, low) if samples < a else (b, high)
    return time * math.pow(samples / ref, min(max(slope, 0.0), 1.0))

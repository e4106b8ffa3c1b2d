"""Costs of one kind of operator as a function of how many samples a part has.

Between two measured batch cuts a time follows a power law, that is a straight line of log(time) over
log(samples); beyond the outermost ones the line of the last two goes on, but no steeper than
proportional to the samples and never falling with them, so that noise at the ends cannot run away.
Memory is a constant (weights) plus a share of the samples (activations): a straight line.
Only the samples are interpolated; how a cut along another axis changes a kernel is not guessed.
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

"""TotientPerms and SelectPermutations: which steps the rings of an all-reduce group take.

A group of g hosts at stride b = n/g is visited once by every ring that walks ``k b`` at a time where k has
no divisor in common with g (TopoOpt, NSDI'23, section 4.2).  Among these, steps of very different lengths
make short routes for everything else, as the fingers of Chord do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["group_sizes", "ring_steps", "select_paper", "select_released"]


def group_sizes(n: int) -> list[int]:
    """Return the sizes of groups that can be evenly spaced over ``n`` hosts: its divisors from 2, ascending."""
    low = [g for g in range(1, math.isqrt(n) + 1) if n % g == 0]
    return sorted({*low, *(n // g for g in low)} - {1})


def ring_steps(n: int, g: int) -> list[int]:
    """Return every step, ascending, that visits all members of an evenly spaced group of ``g`` of ``n`` hosts."""
    return [n // g * k for k in range(1, g + 1) if math.gcd(g, k) == 1]


def select_paper(steps: Sequence[int], count: int) -> list[int]:
    """Choose steps of two-way rings near a geometric progression.

    A step and its reverse are one two-way ring, so only the lower half is looked at.  The targets are
    1, x, x^2, ... times the smallest step with x = g^(1/count), g the members of the group; each takes the
    step nearest in ratio that is not taken.  When all are taken they are used again (parallel links).

    Args:
        steps: of `ring_steps`; their first and last add up to n.
        count: how many rings.
    """
    around, base = steps[0] + steps[-1] if len(steps) > 1 else 2 * steps[0], steps[0]
    half = [step for step in steps if 2 * step <= around]
    ratio = (around / base) ** (1 / max(1, min(count, len(half))))
    chosen: list[int] = []
    for i in range(min(count, len(half))):
        target = base * ratio**i
        candidates = [step for step in half if step not in chosen]
        chosen.append(min(candidates, key=lambda step: (abs(math.log(step / target)), -step)))
    chosen.sort()
    return [chosen[i % len(chosen)] for i in range(count)]


def select_released(steps: Sequence[int], count: int) -> list[int]:
    """Choose steps as FlexNet does (``choose_n_geo``).

    The targets start at the first step and grow by (last / first)^(1/count); each takes the first step that
    is not smaller and not taken.  FlexNet reads past the end of the list when there are too few; here the
    largest that is left is taken, and all are used again when none is left.
    """
    if count == 1:
        return [steps[0]]
    ratio = (steps[-1] / steps[0]) ** (1 / count)
    chosen: list[int] = []
    target = float(steps[0])
    for _ in range(min(count, len(steps))):
        candidates = [step for step in steps if step not in chosen]
        chosen.append(next((step for step in candidates if step >= target), candidates[-1]))
        target *= ratio
    chosen.sort()
    return [chosen[i % len(chosen)] for i in range(count)]

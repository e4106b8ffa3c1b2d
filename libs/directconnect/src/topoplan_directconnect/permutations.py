"""TotientPerms and SelectPermutations: the steps of the rings of an all-reduce group.

A ring with the step ``k b`` visits a group of g hosts at stride b = n/g once, if k and g are coprime (TopoOpt, NSDI'23,
section 4.2).  Steps of very different lengths give short routes for all other traffic, like the fingers of Chord.
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

    A step and its reverse are one two-way ring, so only the lower half is considered.  The targets are 1, x, x^2, ...
    times the smallest step with x = g^(1/count), where g is the size of the group.  Each target takes the unused step
    nearest in ratio.  If all are used, they are used again (parallel links).

    Args:
        steps: of `ring_steps`; the sum of the first and the last is n.
        count: number of rings.
    """
    around, base = steps[0] + steps[-1] if len(steps) > 1 else 2 * steps[0], steps[0]
    half = [step for step in steps if 2 * step <= around]
    ratio = (around / base) ** (1 / max(1, min(count, len(half))))
    selection: list[int] = []
    for i in range(min(count, len(half))):
        target = base * ratio**i
        candidates = [step for step in half if step not in selection]
        selection.append(min(candidates, key=lambda step: (abs(math.log(step / target)), -step)))
    selection.sort()
    return [selection[i % len(selection)] for i in range(count)]


def select_released(steps: Sequence[int], count: int) -> list[int]:
    """Choose steps as in FlexNet (``choose_n_geo``).

    The targets start at the first step and grow by (last / first)^(1/count).  Each target takes the first unused step
    that is not smaller.  If there is none, FlexNet reads past the end of the list; here the largest unused step is
    taken.  If all are used, they are used again.
    """
    if count == 1:
        return [steps[0]]
    ratio = (steps[-1] / steps[0]) ** (1 / count)
    selection: list[int] = []
    target = float(steps[0])
    for _ in range(min(count, len(steps))):
        candidates = [step for step in steps if step not in selection]
        selection.append(next((step for step in candidates if step >= target), candidates[-1]))
        target *= ratio
    selection.sort()
    return [selection[i % len(selection)] for i in range(count)]

"""Sides of a torus for a number of hosts: those that were given, checked, or the nearest to a cube."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from topoplan import TopoplanError

__all__ = ["chosen_sides"]

#: Numbers of hosts around the cluster's that are tried for one that makes a torus.
_NEAR = 4096


def chosen_sides(
    hosts: int,
    *,
    sides: tuple[int, ...],
    dimensions: int | None,
    most_dimensions: int,
    twisted: bool,
    multiple: int,
) -> tuple[int, ...]:
    """Return the sides of the torus.

    Args:
        hosts: of the cluster.
        sides: those of the user; none given where empty.
        dimensions: how many sides; where absent at most ``most_dimensions``, and as many of these as the hosts allow.
        most_dimensions: see there.
        twisted: sides are k and 2k.
        multiple: of which every side is a multiple.

    Raises:
        TopoplanError: the hosts make no such torus; names numbers of hosts that do.

    >>> chosen_sides(48, sides=(), dimensions=3, most_dimensions=2, twisted=False, multiple=1)
    (3, 4, 4)
    """
    if sides:
        return _checked(hosts, sides, dimensions, twisted, multiple)
    dimension_counts = [dimensions] if dimensions is not None else list(range(most_dimensions, 0, -1))
    if multiple > 1 and dimensions is None:
        dimension_counts = [3]
    if twisted:
        dimension_counts = [max(count, 2) for count in dimension_counts[:1]]
    even_sides = _nearest_to_cube(hosts, dimension_counts, twisted, multiple)
    if even_sides is not None:
        return even_sides
    choices = [
        next((n for n in numbers if _nearest_to_cube(n, dimension_counts, twisted, multiple)), None)
        for numbers in (range(hosts - 1, max(hosts - _NEAR, 0), -1), range(hosts + 1, hosts + _NEAR))
    ]
    what = f"{'twisted ' * twisted}torus of {dimension_counts[0]} dimensions" + f" and cubes of {multiple}" * (
        multiple > 1
    )
    numbers = " or ".join(str(n) for n in choices if n is not None)
    right = f"{numbers} hosts do" if numbers else "use fewer dimensions"
    raise TopoplanError(f"topology torus: {hosts} hosts make no {what} ({right})")


def _checked(
    hosts: int, sides: tuple[int, ...], dimensions: int | None, twisted: bool, multiple: int
) -> tuple[int, ...]:
    """Return the sides of the user, or raise."""
    text, product = "-".join(map(str, sides)), math.prod(sides)
    if dimensions is not None and dimensions != len(sides):
        raise TopoplanError(f"topology torus: dimensions {dimensions} with sides {text} (leave dimensions out)")
    if twisted and not (len(set(sides)) == 2 and max(sides) == 2 * min(sides) and min(sides) > 1):
        raise TopoplanError(f"topology torus: sides {text} of a twisted torus (must be k and 2k, as in 4-4-8 or 4-8-8)")
    odd = next((side for side in sides if side % multiple), None)
    if odd is not None:
        raise TopoplanError(
            f"topology torus: sides {text}: {odd} is no multiple of the cube's edge {multiple} (sides must be)"
        )
    if product != hosts:
        other_side = None if twisted or multiple > 1 else _nearest_to_cube(hosts, [len(sides)], twisted, multiple)
        instead = f"sides={'-'.join(map(str, other_side))}, or " if other_side else ""
        fitting = f"{instead}a plan for {product} hosts: optimize --servers {product}"
        raise TopoplanError(f"topology torus: sides {text} are {product} hosts, the cluster has {hosts} ({fitting})")
    return sides


def _nearest_to_cube(hosts: int, dimension_counts: list[int], twisted: bool, multiple: int) -> tuple[int, ...] | None:
    """Return the sides of least sum, of the first number of dimensions for which there are any; the longest last."""
    for dimensions in dimension_counts:
        shapes = [
            shape
            for shape in (_of_k_and_2k(hosts, dimensions) if twisted else _factors(hosts, dimensions, 2))
            if not any(side % multiple for side in shape)
        ]
        if shapes:
            return min(shapes, key=lambda shape: (sum(shape), shape))
    return (1,) if hosts == 1 and not twisted and multiple == 1 else None


def _factors(number: int, count: int, least_value: int) -> Iterator[tuple[int, ...]]:
    """Go through ascending factors of a number, so many of them, each at least ``least``."""
    if count == 1:
        if number >= least_value:
            yield (number,)
        return
    for factor in _divisors(number):
        if factor**count > number:
            break
        if factor >= least_value:
            yield from ((factor, *remainder) for remainder in _factors(number // factor, count - 1, factor))


@functools.cache
def _divisors(number: int) -> tuple[int, ...]:
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    return (*small, *(number // factor for factor in reversed(small) if factor * factor != number))


def _of_k_and_2k(hosts: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    """Go through the sides of twisted tori."""
    for short in range(1, dimensions):
        power, remainder = divmod(hosts, 2 ** (dimensions - short))
        k = round(power ** (1 / dimensions))
        if not remainder and k > 1 and k**dimensions == power:
            yield (k,) * short + (2 * k,) * (dimensions - short)

"""Shapes in which optical circuit switches join cubes, and which of them suits a demand.

The estimate is bytes times links crossed, over shortest paths: transfers between their hosts, and all-reduces around a
ring of their hosts in ascending order.  On a torus all hosts have equally many links, so that fewer crossings leave
more bandwidth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from topoplan import Demand
from topoplan.arrays import F64, I64

__all__ = ["Shape", "fewest_crossings", "shapes"]

#: Hosts of the largest torus whose shapes are compared.
_MOST_HOSTS = 1024
#: Sides, and whether the wraps of short ones are shifted.
Shape = tuple[tuple[int, ...], bool]


def shapes(usual: Shape, cube: int, dimensions: int | None) -> list[Shape]:
    """Return the shapes of as many hosts, whose sides are multiples of a cube's edge: the usual one first.

    Hosts are numbered row by row in each, so that the order of sides matters to groups of them.

    >>> shapes(((4, 4, 8), False), 4, None)[:3]
    [((4, 4, 8), False), ((4, 4, 8), True), ((4, 8, 4), False)]
    """
    sides, count = usual[0], dimensions or len(usual[0])
    cubes = math.prod(sides) // cube**count
    factors = [number for number in range(1, cubes + 1) if cubes % number == 0]
    every = [
        tuple(cube * part for part in parts)
        for parts in itertools.product(factors, repeat=count)
        if math.prod(parts) == cubes
    ]
    able = [(each, False) for each in every] + [(each, True) for each in every if _may_twist(each)]
    return [usual, *sorted(shape for shape in able if shape != usual)]


def _may_twist(sides: tuple[int, ...]) -> bool:
    return len({*sides}) == 2 and max(sides) == 2 * min(sides)


def fewest_crossings(demand: Demand, wirings: Sequence[I64]) -> int:
    """Return the number of the wiring on which the bytes of a demand cross the fewest links; the first of equals.

    Args:
        demand: between hosts.
        wirings: (k, 2) hosts that are joined, of each.
    """
    exchanged = _exchanged(demand)
    if len(exchanged) > _MOST_HOSTS:
        return 0
    crossings = [float((exchanged * _distances(len(exchanged), pairs)).sum()) for pairs in wirings]
    limit = min(crossings) * (1 + 1e-9)
    return next(number for number, value in enumerate(crossings) if value <= limit)


def _exchanged(demand: Demand) -> F64:
    """(H, H) bytes from host to host: transfers, and what all-reduces send around a ring of their hosts."""
    matrix = demand.matrix.astype(np.float64)
    for group in range(demand.n_groups):
        members = demand.members(group)
        sent = 2.0 * (len(members) - 1) / len(members) * demand.group_bytes[group]
        np.add.at(matrix, (members, np.roll(members, -1)), sent)
    return matrix


def _distances(n: int, pairs: I64) -> I64:
    """(n, n) links of the shortest path between two hosts."""
    links = np.zeros((n, n), dtype=np.float32)
    links[pairs[:, 0], pairs[:, 1]] = links[pairs[:, 1], pairs[:, 0]] = 1.0
    distance = np.full((n, n), n, dtype=np.int64)
    frontier = np.eye(n, dtype=np.float32)
    np.fill_diagonal(distance, 0)
    for hops in range(1, n):
        frontier = ((frontier @ links) > 0).astype(np.float32)
        new = (frontier > 0) & (distance > hops)
        if not new.any():
            break
        distance[new] = hops
    return distance

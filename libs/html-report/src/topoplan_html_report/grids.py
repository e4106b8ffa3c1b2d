"""Tori and meshes among hosts: their sides, found from links, and where the hosts of a grid stand.

Hosts are numbered row by row, the last axis being the fastest.  A link joins neighbours along one axis, or is the wrap
of an axis: from its last place to its first one, in a twisted torus shifted along other axes, equally for all wraps of
the axis.

The two longest axes are the rows and columns of the picture.  Hosts that differ along the others stand side by side
within the cell of their row and column, off both directions, so that no line lies on another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.fabric import Fabric

__all__ = ["Grid", "grid_of", "places"]

#: Axes of the largest grid: two, and two within their cells.
_AXES = 4
#: Part of a cell that its hosts take, where there are more than two axes; the rest is between cells.
_CELL = 0.62
#: Links that rule out most sides, before all are looked at.
_FEW = 256


@attrs.frozen
class Grid:
    """The sides of a grid, and whether the wraps of an axis are shifted along another one."""

    sides: tuple[int, ...]
    twisted: bool


def grid_of(links: Fabric) -> Grid | None:
    """Return the grid of two to four axes whose links these are, if any: one that is not twisted, of few axes, even.

    Args:
        links: a fabric without switches.
    """
    if not links.n_links:
        return None
    few = slice(None, None, max(links.n_links // _FEW, 1))
    grids = []
    for sides in _factors(links.n_hosts, _AXES):
        if len(sides) < 2 or _twist(links.link_src[few], links.link_dst[few], sides) is None:
            continue
        twisted = _twist(links.link_src, links.link_dst, sides)
        if twisted is not None:
            grids.append(Grid(sides, twisted))
    return min(grids, key=lambda grid: (grid.twisted, *_unevenness(grid.sides)), default=None)


def _unevenness(sides: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    return len(sides), max(sides) - min(sides), sides


def _factors(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a product of at most so many factors above 1, in every order."""
    if number > 1:
        yield (number,)
    if most > 1:
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                yield from ((first, *factors) for factors in _factors(number // first, most - 1))


def _twist(source: I32, target: I32, sides: tuple[int, ...]) -> bool | None:
    """Return whether wraps of a grid are shifted; None where links are not those of a grid of such sides."""
    side = np.array(sides)[:, None]
    step = np.array(np.unravel_index(target, sides)) - np.array(np.unravel_index(source, sides))
    step = step[:, np.abs(step).sum(axis=0) > 1]  # all others join neighbours
    wraps = np.abs(step) == side - 1
    if not wraps.any(axis=0).all():
        return None
    axis = wraps.argmax(axis=0)
    link = np.arange(len(axis))
    shift = np.where(step[axis, link] < 0, step, -step)  # from the last place to the first
    shift[axis, link] = 0
    shift %= side
    twisted = False
    for number in np.unique(axis).tolist():
        of_axis = shift[:, axis == number]
        if (of_axis != of_axis[:, :1]).any():
            return None
        twisted |= bool(of_axis.any())
    return twisted


def places(sides: tuple[int, ...]) -> F64:
    """Return (N, 2) where hosts stand, from 0 to 1, across and down.

    >>> places((2, 2)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    place = np.array(np.unravel_index(np.arange(math.prod(sides)), sides), dtype=np.float64)
    longest = sorted(range(len(sides)), key=lambda axis: (sides[axis], axis))[-2:]
    column, row = max(longest), min(longest)
    within = [axis for axis in range(len(sides)) if axis not in longest]
    position = np.stack([place[column], place[row]], axis=1)
    extent = np.array([sides[column], sides[row]], dtype=np.float64) - 1
    if within:  # each host of a cell has a line across and one down of its own there, all as far apart
        first, second = place[within[0]], place[within[-1]] if len(within) > 1 else 0.0
        of_cell = math.prod(sides[axis] for axis in within)
        across, down = first * (of_cell // sides[within[0]]) + second, first + second * sides[within[0]]
        position += _CELL * np.stack([across, down], axis=1) / (of_cell - 1)
        extent += _CELL
    return position / extent

"""Links for the heaviest demands first, without rings: the heuristic that TopoOpt was measured against.

FlexNet's ``DemandHeuristicNetworkOptimizer`` (``network.cc``; released beside TopoOpt, not run by it), put right: its
look-ups of demands in the step that joins components miss, so that any link may go; here the one of least
demand goes, and never one whose loss would part its component where that would not help.
"""

from __future__ import annotations

import itertools

import numpy as np

from topoplan.arrays import F64, I64

__all__ = ["add_heaviest", "join_components"]


def add_heaviest(count: I64, free: I64, demand: F64) -> None:
    """Link the pair of largest demand, halve its demand, and go on, while two hosts with demand have free interfaces.

    Args:
        count: (n, n) two-way links, changed in place.
        free: (n,) free interfaces, changed in place.
        demand: (n, n) bytes; the larger one of two directions counts.
    """
    remaining = np.triu(np.maximum(demand, demand.T), 1)
    remaining[free < 1], remaining[:, free < 1] = 0, 0
    while remaining.any():
        a, b = divmod(int(remaining.argmax()), len(remaining))
        _link(count, free, a, b, 1)
        remaining[a, b] /= 2
        for host in (a, b):
            if free[host] < 1:
                remaining[host], remaining[:, host] = 0, 0


def join_components(count: I64, free: I64, demand: F64) -> bool:
    """Connect all hosts; say whether that was possible.

    Two components are joined by a link where both have a free interface, else by crossing a link of the one
    with a link of the other, those of least demand, at least one of which lies on a cycle.

    Args:
        count: (n, n) two-way links, changed in place.
        free: (n,) free interfaces, changed in place.
        demand: (n, n) bytes.
    """
    weight = demand + demand.T
    while len(parts := _components(count)) > 1:
        spare = [part[free[part] > 0] for part in parts]
        having = [hosts for hosts in spare if len(hosts)]
        if len(having) > 1:
            _link(count, free, int(having[0][0]), int(having[1][0]), 1)
            continue
        joint = next((pair for pair in itertools.combinations(parts, 2) if _cross(count, free, weight, *pair)), None)
        if joint is None:
            return False
    return True


def _cross(count: I64, free: I64, weight: F64, left_part: I64, right_part: I64) -> bool:
    """Join two components by crossing two of their links; False where either has none or both are trees."""
    sides = []
    for part in (left_part, right_part):
        a, b = np.nonzero(np.triu(count))
        inside = np.isin(a, part)
        order = np.argsort(weight[a[inside], b[inside]], kind="stable")
        sides.append(list(zip(a[inside][order].tolist(), b[inside][order].tolist(), strict=True)))
    for first, second in (sides, sides[::-1]):
        cycle = next((link for link in first if not _bridge(count, *link)), None)
        if cycle is not None and second:
            (a, b), (c, d) = cycle, second[0]
            for u, v, change in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
                _link(count, free, u, v, change)
            return True
    return False


def _bridge(count: I64, a: int, b: int) -> bool:
    """Say whether the ends of a link lose each other without it."""
    if count[a, b] > 1:
        return False
    without = count.copy()
    without[a, b] = without[b, a] = 0
    return not any(a in part and b in part for part in _components(without))


def _components(count: I64) -> list[I64]:
    """Return the hosts of each connected component, ascending, in the order of their first hosts."""
    unvisited, parts = np.ones(len(count), dtype=bool), []
    while unvisited.any():
        component = np.zeros(len(count), dtype=bool)
        edge = np.zeros(len(count), dtype=bool)
        edge[int(unvisited.argmax())] = True
        while edge.any():
            component |= edge
            edge = (count[edge] > 0).any(axis=0) & ~component
        parts.append(np.flatnonzero(component))
        unvisited &= ~component
    return parts


def _link(count: I64, free: I64, a: int, b: int, change: int) -> None:
    count[a, b] += change
    count[b, a] += change
    free[a] -= change
    free[b] -= change

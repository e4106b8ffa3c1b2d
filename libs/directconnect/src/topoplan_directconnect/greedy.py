"""Links for the heaviest demands first, without rings: a heuristic that TopoOpt's authors compare with.

This is FlexNet's ``DemandHeuristicNetworkOptimizer`` (``network.cc``; released with TopoOpt, not called by it) with a
correction.  When FlexNet joins components, its look-ups of demands fail, so that it may remove any link.  Here the link
with the least demand is removed, and never a bridge if its removal does not help.
"""

from __future__ import annotations

import itertools

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_directconnect.matching import bridges

__all__ = ["add_heaviest", "join_components"]


def add_heaviest(count: I64, free: I64, demand: F64) -> None:
    """Repeat: link the pair of largest demand and halve its demand, while two hosts with demand have free interfaces.

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
    """Connect all hosts; return whether that was possible.

    Two components are joined by a link if both have a free interface.  Otherwise a link of one and a link of the other
    exchange ends: those of least demand, at least one of which is on a cycle.

    Args:
        count: (n, n) two-way links, changed in place.
        free: (n,) free interfaces, changed in place.
        demand: (n, n) bytes.
    """
    weight = demand + demand.T
    while len(parts := _components(count)) > 1:
        free_hosts = [part[free[part] > 0] for part in parts]
        candidates = [hosts for hosts in free_hosts if len(hosts)]
        if len(candidates) > 1:
            _link(count, free, int(candidates[0][0]), int(candidates[1][0]), 1)
            continue
        joint = next((pair for pair in itertools.combinations(parts, 2) if _cross(count, free, weight, *pair)), None)
        if joint is None:
            return False
    return True


def _cross(count: I64, free: I64, weight: F64, left_part: I64, right_part: I64) -> bool:
    """Join two components by exchanging the ends of two links; False if either has none or both are trees."""
    sides, held_by = [], bridges(count)
    for part in (left_part, right_part):
        a, b = np.nonzero(np.triu(count))
        inside = np.isin(a, part)
        order = np.argsort(weight[a[inside], b[inside]], kind="stable")
        sides.append(list(zip(a[inside][order].tolist(), b[inside][order].tolist(), strict=True)))
    for first, second in (sides, sides[::-1]):
        cycle = next((link for link in first if frozenset(link) not in held_by), None)
        if cycle is not None and second:
            (a, b), (c, d) = cycle, second[0]
            for u, v, change in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
                _link(count, free, u, v, change)
            return True
    return False


def _components(count: I64) -> list[I64]:
    """Return the hosts of each connected component, ascending, in the order of their first hosts."""
    import networkx as nx

    return [np.array(sorted(part)) for part in nx.connected_components(nx.from_numpy_array(count > 0))]


def _link(count: I64, free: I64, a: int, b: int, change: int) -> None:
    count[a, b] += change
    count[b, a] += change
    free[a] -= change
    free[b] -= change

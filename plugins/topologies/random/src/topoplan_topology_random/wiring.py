"""Connected random multigraphs with given degrees.

A random cycle through all hosts with two interfaces or more connects them; hosts with one interface are
hung on free ones; all interfaces that remain are paired at random (the configuration model of Bollobás),
and links from a host to itself, then parallel links, are mended by exchanging ends with random other
links.  The cycle is never exchanged, so the graph stays connected.

Every interface is used, except one where their number is odd.  For equal degrees this always succeeds: if a
host ``a`` of r remaining interfaces has a link to itself, at most r-2 of the others' remaining ends meet
``a``, the other hosts have at least (n-1) r - 1 > r-2 ends, so some link avoids ``a`` and can be exchanged.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from topoplan import TopoplanError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["connected_graph"]

Edge = tuple[int, int]

#: Random exchanges tried for each parallel link.
_TRIES = 50


def connected_graph(degrees: list[int], rng: np.random.Generator) -> list[Edge]:
    """Return the two-way links of a connected random multigraph.

    Args:
        degrees: interfaces of each host, at least 1.
        rng: source of randomness.

    Raises:
        TopoplanError: too few interfaces to connect all hosts.
    """
    n = len(degrees)
    if n == 1:
        return []
    inner = [host for host in rng.permutation(n).tolist() if degrees[host] >= 2]
    leaves = [host for host in range(n) if degrees[host] == 1]
    if not inner and n == 2:
        return [(0, 1)]
    room = sum(degrees[host] for host in inner) - 2 * (len(inner) - 1)
    if not inner or len(leaves) > room:
        raise TopoplanError(
            f"topology random: {len(leaves)} of {n} hosts have one interface and the others have "
            f"{max(room, 0)} to spare; they cannot all be connected (give hosts 2 or more)"
        )
    tree_edges = list(itertools.pairwise(inner))
    if not leaves and n > 1:
        tree_edges.append((inner[-1], inner[0]))
    free = list(degrees)
    for a, b in tree_edges:
        free[a] -= 1
        free[b] -= 1
    ends = [host for host in inner for _ in range(free[host])]
    ends = [ends[i] for i in rng.permutation(len(ends)).tolist()]
    for leaf in leaves:
        tree_edges.append((leaf, ends.pop()))
    edges = list(zip(ends[0:-1:2], ends[1::2], strict=True))
    edges = _mend_loops(edges, rng)
    _spread_parallel(tree_edges, edges, rng)
    return tree_edges + edges


def _mend_loops(edges: list[Edge], rng: np.random.Generator) -> list[Edge]:
    """Exchange ends until no link joins a host to itself; drop those that cannot be mended."""
    loops = [i for i, (a, b) in enumerate(edges) if a == b]
    removed_edges = set()
    for i in loops:
        a, b = edges[i]
        if a != b:
            continue  # mended as the partner of another loop
        partners = [j for j, edge in enumerate(edges) if a not in edge and j not in removed_edges]
        if not partners:
            removed_edges.add(i)
            continue
        j = partners[int(rng.integers(len(partners)))]
        c, d = edges[j]
        edges[i], edges[j] = (a, c), (a, d)
    return [edge for i, edge in enumerate(edges) if i not in removed_edges]


def _spread_parallel(tree_edges: list[Edge], edges: list[Edge], rng: np.random.Generator) -> None:
    """Exchange ends of parallel links with random others where that leaves fewer parallel links; in place."""
    count = Counter(tuple(sorted(edge)) for edge in tree_edges + edges)
    for i in range(len(edges)):
        for _ in range(_TRIES):
            a, b = edges[i]
            if count[_key(a, b)] < 2:
                break
            j = int(rng.integers(len(edges)))
            c, d = edges[j] if rng.random() < 0.5 else edges[j][::-1]
            if len({a, b, c, d}) < 4 or count[_key(a, c)] or count[_key(b, d)]:
                continue
            for old in ((a, b), (c, d)):
                count[_key(*old)] -= 1
            for new in ((a, c), (b, d)):
                count[_key(*new)] += 1
            edges[i], edges[j] = (a, c), (b, d)


def _key(a: int, b: int) -> Edge:
    return (a, b) if a < b else (b, a)

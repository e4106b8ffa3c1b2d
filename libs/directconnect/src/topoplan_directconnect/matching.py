"""Direct links for point-to-point traffic, and the use of interfaces that remain.

The functions change a symmetric matrix (n, n) of counts of two-way links in place, together with the numbers of free
interfaces of the hosts.
"""

from __future__ import annotations

import numpy as np
import rustworkx

from topoplan.arrays import F64, I64

__all__ = ["add_matchings", "bridges", "fill_free", "heaviest_matching", "hops"]


def heaviest_matching(weight: F64, allowed: I64, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return a maximum-weight matching (Edmonds 1965; Galil 1986), pairs ascending.

    Weights are not negative, so it weighs as much as the heaviest perfect matching (one host left over where their
    number is odd): pairs of weight 0 make up the difference, and these are left to `fill_free`.

    Weights are compared after rounding to 2^-30 of the largest; ties are broken by ``rng``, so that the
    optimum is unique and the result does not depend on how the matching is computed.

    Args:
        weight: (n, n) symmetric, not negative; pairs of weight 0 are never matched.
        allowed: (m,) hosts that may be matched.
        rng: breaks ties.
    """
    rows, columns = np.triu_indices(len(allowed), 1)
    a, b = allowed[rows], allowed[columns]
    values = weight[a, b]
    keep = values > 0
    if not keep.any():
        return []
    rows, columns, values = rows[keep], columns[keep], values[keep]
    scaled = np.maximum(1, np.rint(values / values.max() * 2**30)).astype(np.int64).tolist()
    noise = rng.integers(0, 2**32, len(scaled)).tolist()
    graph = rustworkx.PyGraph()  # no pair is given twice; a graph that sees to it looks at all edges of a host for each
    graph.add_nodes_from(range(len(allowed)))
    weights = [(value << 44) + tie for value, tie in zip(scaled, noise, strict=True)]
    graph.extend_from_weighted_edge_list(list(zip(rows.tolist(), columns.tolist(), weights, strict=True)))
    matched = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((int(allowed[min(pair)]), int(allowed[max(pair)])) for pair in matched)


def add_matchings(count: I64, free: I64, demand: F64, rng: np.random.Generator, *, detours: bool = False) -> None:
    """Add heaviest matchings of the demand until no two hosts with demand have free interfaces.

    A link serves both directions, so the bytes of both count.  The demand of a matched pair is halved for
    the next round (TopoOpt, NSDI'23, section 4.2: returns diminish).

    Args:
        count: (n, n) two-way links, changed in place.
        free: (n,) free interfaces, changed in place.
        demand: (n, n) bytes.
        rng: breaks ties.
        detours: weigh bytes by the hops that a direct link would save on the links so far, at most 9; a pair
            that has one already counts a quarter.  Good for traffic among all, less so for a few partners.
    """
    remaining = demand + demand.T
    np.fill_diagonal(remaining, 0)
    while True:
        weight = remaining * np.clip(hops(count) - 1, 0.25, 9) if detours else remaining
        matched = heaviest_matching(weight, np.flatnonzero(free > 0), rng)
        if not matched:
            return
        for a, b in matched:
            _link(count, free, a, b)
            remaining[a, b] /= 2
            remaining[b, a] /= 2


def fill_free(count: I64, free: I64, fixed: I64, demand: F64, rng: np.random.Generator) -> None:
    """Link hosts that still have free interfaces, those far apart first, to shorten routes.

    Afterwards at most one interface is free where links are two-way: pairs are linked while two hosts have
    one; a host alone with two of them goes in between the ends of another link, the one with the least
    demand, and never one of the rings.

    Args:
        count: (n, n) two-way links, changed in place.
        free: (n,) free interfaces, changed in place.
        fixed: (n, n) links of rings, which stay.
        demand: (n, n) bytes.
        rng: breaks ties.
    """
    while len(hosts := np.flatnonzero(free > 0)) > 1:
        rows, columns = np.triu_indices(len(hosts), 1)
        a, b = hosts[rows], hosts[columns]
        order = np.lexsort((rng.random(len(a)), -hops(count)[a, b], -(free[a] + free[b])))
        matched: set[int] = set()
        for node in order.tolist():
            u, v = int(a[node]), int(b[node])
            if u not in matched and v not in matched:
                _link(count, free, u, v)
                matched |= {u, v}
                if len(matched) >= len(hosts) - 1:
                    break
    for host in np.flatnonzero(free > 1).tolist():
        while free[host] > 1:
            a, b = np.nonzero(np.triu(count - fixed, 1) > 0)
            away = (a != host) & (b != host)
            if not away.any():
                break
            a, b = a[away], b[away]
            node = int(np.argmin(demand[a, b] + demand[b, a]))
            _link(count, free, int(a[node]), int(b[node]), -1)
            _link(count, free, int(a[node]), host)
            _link(count, free, int(b[node]), host)


def hops(count: I64) -> I64:
    """Return (n, n) links on a shortest path, n where there is none.

    By rustworkx, as searchers ask after every change of a wiring: networkx takes a hundred times as long.
    """
    graph = rustworkx.PyDiGraph.from_adjacency_matrix(count.astype(np.float64))
    return rustworkx.digraph_distance_matrix(graph, null_value=float(len(count))).astype(np.int64)


def bridges(count: I64) -> set[frozenset[int]]:
    """Return the pairs of hosts that lose each other without the one link between them.

    Args:
        count: (n, n) two-way links, symmetric.
    """
    import networkx as nx

    return {frozenset(pair) for pair in nx.bridges(nx.from_numpy_array(count > 0)) if count[pair] == 1}


def _link(count: I64, free: I64, a: int, b: int, change: int = 1) -> None:
    count[a, b] += change
    count[b, a] += change
    free[a] -= change
    free[b] -= change

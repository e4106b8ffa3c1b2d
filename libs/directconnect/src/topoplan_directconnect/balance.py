"""Load-aware routes: the k shortest paths of every communicating pair, and the share of traffic on each.

Paths: the first link is any link of the source, and the rest is a shortest path, if the whole path has at most one link
more than the shortest.  No path visits a host twice, and the paths of a pair differ in their first link.  The ``k``
shortest remain.

Shares: they minimize the sum of the ``p``-th powers of all links' times, with rings, which approximates the time of the
busiest link for a large ``p``.  The method is flow deviation (Fratta, Gerla, Kleinrock, Networks 3, 1973; also
Frank-Wolfe): each iteration moves a part of every pair's traffic to its cheapest path at the current marginal costs.

Data flow: input is a fabric, a matrix of bytes, and the bytes of rings on links; output is `Routes`.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Demand, Fabric, Routes
from topoplan.arrays import F64, I64
from topoplan_engine.csr import indptr
from topoplan_engine.network.routing import paths

__all__ = ["balanced_routes", "ring_load"]

_POWER = 6
_ROUNDS = 16
#: A smaller share is not worth a path.
_LEAST_SHARE = 0.01


def balanced_routes(fabric: Fabric, matrix: F64, background: F64) -> Routes | None:
    """Return routes of all pairs with bytes, up to ``fabric.max_paths`` for each; None if there are no bytes.

    Args:
        fabric: direct links among hosts, without routes of its own.
        matrix: (n, n) bytes from row to column host.
        background: (L,) bytes of other traffic on each link.
    """
    pairs = np.argwhere(matrix > 0)
    if not len(pairs):
        return None
    pair, first, sub = _candidates(fabric, pairs)
    reachable = np.diff(sub.pair_ptr) > 0
    length = np.where(reachable, np.append(np.diff(sub.path_ptr), 0)[sub.pair_ptr[:-1]], 0) + 1
    direct = fabric.link_dst[first] == pairs[pair, 1]
    length[~direct & ~reachable] = fabric.n_hosts  # there is no way from there
    shortest = np.full(len(pairs), fabric.n_hosts)
    np.minimum.at(shortest, pair, length)
    order = np.lexsort((first, length, pair))
    order = order[length[order] <= np.minimum(shortest[pair[order]] + 1, fabric.n_hosts - 1)]
    rank = np.arange(len(order)) - np.searchsorted(pair[order], pair[order])
    order = order[rank < fabric.max_paths]
    pair, first, length = pair[order], first[order], length[order]
    path_ptr = indptr(length)
    links = np.empty(path_ptr[-1], dtype=np.int64)
    links[path_ptr[:-1]] = first
    inner = np.ones(len(links), dtype=bool)
    inner[path_ptr[:-1]] = False
    offset = np.repeat(sub.path_ptr[sub.pair_ptr[order]], length - 1)
    within = np.arange(len(offset)) - np.repeat(path_ptr[:-1] - np.arange(len(order)), length - 1)
    links[inner] = sub.links[offset + within]
    short = (length == shortest[pair]).astype(np.float64)
    share = short / np.bincount(pair, short, len(pairs))[pair]
    pair_bytes = matrix[pairs[:, 0], pairs[:, 1]]
    share = _shares(share, pair, path_ptr, links, pair_bytes, fabric.link_bandwidth, background)
    keep = share >= _LEAST_SHARE
    pair, share, length, path_index = pair[keep], share[keep], length[keep], np.repeat(keep, length)
    return Routes(
        pairs=pairs,
        pair_ptr=indptr(np.bincount(pair, minlength=len(pairs))),
        path_ptr=indptr(length),
        links=links[path_index],
        weight=share / np.bincount(pair, share, len(pairs))[pair],
    )


def ring_load(fabric: Fabric, demand: Demand) -> F64:
    """Return the (L,) bytes that the all-reduces of evenly spaced groups send over each link on the fabric's rings.

    A member sends 2 (g-1)/g of the sum's bytes, in equal parts over the rings of its group's size; a ring of
    several hops is walked with the second hop first and the first one last, as simulators do.
    """
    n, load = fabric.n_hosts, np.zeros(fabric.n_links)
    for group, total in enumerate(demand.group_bytes.tolist()):
        members = demand.members(group).astype(np.int64)
        size = len(members)
        rings = fabric.rings.get(size, ())
        if size < 2 or n % size or (np.diff(members) != n // size).any() or not rings:
            continue
        for ring in rings:
            hosts = members
            for hop in (*ring[1:], ring[0]):
                link = fabric.link_rows(hosts, (hosts + hop) % n)
                np.add.at(load, link[link >= 0], 2 * (size - 1) / size * total / len(rings))
                hosts = (hosts + hop) % n
    return load


def _candidates(fabric: Fabric, pairs: I64):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Return for every pair and link out of its source: the pair, the link, and a shortest path from its end on."""
    by_source = np.argsort(fabric.link_src, kind="stable")
    start = np.searchsorted(fabric.link_src[by_source], np.arange(fabric.n_hosts + 1))
    out = np.diff(start)[pairs[:, 0]]
    pair = np.repeat(np.arange(len(pairs)), out)
    first = by_source[np.arange(len(pair)) - np.repeat(np.cumsum(out) - out - start[pairs[:, 0]], out)]
    plain = attrs.evolve(fabric, routes=None, max_paths=1)
    return pair, first, paths(plain, fabric.link_dst[first], pairs[pair, 1])


def _shares(share: F64, pair: I64, path_ptr: I64, links: I64, pair_bytes: F64, bandwidth: F64, background: F64) -> F64:
    """Return the share of each path in its pair's bytes, moved towards least cost from ``share``."""
    start = np.searchsorted(pair, np.arange(len(pair_bytes)))
    hops = np.diff(path_ptr)
    best, lowest = share, np.inf
    for turn in range(_ROUNDS + 1):
        path_bytes = np.repeat(share * pair_bytes[pair], hops)
        time = (background + np.bincount(links, path_bytes, len(bandwidth))) / bandwidth
        if time.max() < lowest:
            best, lowest = share, float(time.max())
        price = (time / time.max()) ** (_POWER - 1) / bandwidth
        cost = np.add.reduceat(price[links], path_ptr[:-1])
        cheapest = np.minimum.reduceat(cost, start)
        is_cheapest = cost <= cheapest[pair] * (1 + 1e-12)
        target = is_cheapest / np.add.reduceat(is_cheapest.astype(np.float64), start)[pair]
        share = share + (target - share) * 2 / (turn + 4)
    return best

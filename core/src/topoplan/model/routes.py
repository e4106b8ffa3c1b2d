"""Links and routes by their nodes: which link joins two nodes, and `Routes` from paths written as lists of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from topoplan.arrays import I64
from topoplan.csr import indptr
from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric, Routes

__all__ = ["link_index", "routes_from_nodes"]


def link_index(fabric: Fabric, src: ArrayLike, dst: ArrayLike) -> I64:
    """Return the link row of each ordered pair of *nodes*, -1 where there is none.  Any equal shapes."""
    have = fabric.link_src.astype(np.int64) * fabric.n_nodes + fabric.link_dst
    order = np.argsort(have, kind="stable")
    want = np.asarray(src, dtype=np.int64) * fabric.n_nodes + np.asarray(dst, dtype=np.int64)
    if not len(have):
        return np.full(want.shape, -1, dtype=np.int64)
    row = order[np.minimum(np.searchsorted(have, want, sorter=order), len(have) - 1)]
    return np.where(have[row] == want, row, -1)


def routes_from_nodes(
    fabric: Fabric,
    node_paths: Mapping[tuple[int, int], Sequence[Sequence[int]]],
    weights: Mapping[tuple[int, int], Sequence[float]] | None = None,
) -> Routes:
    """Make `Routes` from paths written as lists of nodes, both ends included.

    Args:
        fabric: the links; its own routes are not looked at.  Add the result with ``attrs.evolve``.
        node_paths: (source, destination) -> its paths; no paths where it cannot be reached.
        weights: share of each path, per pair; equal where absent.

    Raises:
        TopoplanError: a path that does not join its pair or uses a link that is not there, or weights that
            do not sum to 1.
    """
    pairs = sorted(node_paths)
    flat = [(pair, path) for pair in pairs for path in node_paths[pair]]
    for pair, path in flat:
        if len(path) < 2 or (path[0], path[-1]) != pair:
            raise TopoplanError(f"fabric {fabric.name!r}: path {list(path)} does not lead from {pair[0]} to {pair[1]}")
    tails = np.array([node for _, path in flat for node in path[:-1]], dtype=np.int64)
    heads = np.array([node for _, path in flat for node in path[1:]], dtype=np.int64)
    links = link_index(fabric, tails, heads)
    if (links < 0).any():
        at = int(np.argmin(links))
        raise TopoplanError(f"fabric {fabric.name!r}: a path crosses {tails[at]} -> {heads[at]}, which is no link")
    share: list[float] = []
    for pair in pairs:
        count = len(node_paths[pair])
        given = list((weights or {}).get(pair, [1.0 / count] * count if count else []))
        if len(given) != count or (count and abs(sum(given) - 1.0) > 1e-9):
            raise TopoplanError(f"fabric {fabric.name!r}: weights {given} of pair {pair} (one per path, sum 1)")
        share += given
    return Routes(
        pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        pair_ptr=indptr(np.array([len(node_paths[pair]) for pair in pairs], dtype=np.int64)),
        path_ptr=indptr(np.array([len(path) - 1 for _, path in flat], dtype=np.int64)),
        links=links,
        weight=share,
    )

"""`Routes` from paths written as lists of nodes, for tests of fabrics with routes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from topoplan import Fabric, Routes, TopoplanError
from topoplan_engine.csr import indptr


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
    links = fabric.link_rows(tails, heads)
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

"""How much every ring loads each link: one compiled pass over the paths of all flows of all rings."""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["LOAD", "MOST_DRAWN", "ring_loads", "sort_links"]

#: Units of load of one flow on a link.  A power of two, so that n flows share a bandwidth C as exactly C/n.
LOAD = 1 << 20
#: Flows of the largest ring that draws paths; larger ones load all paths.
MOST_DRAWN = 1024


def ring_loads(
    rows: I32,
    flows: I64,
    row_ptr: I64,
    path_ptr: I64,
    links: I32,
    cumulative_weight: F64,
    n_links: int,
    share: F64 | None = None,
) -> tuple[I64, I32, I64]:
    """Return, as CSR, the links that the flows of each ring cross, ascending, and the units of load on each of them.

    A flow with several paths loads each by its weight.

    Args:
        rows: row of paths of each flow, ring by ring.
        flows: (rings,) how many flows each ring has.
        row_ptr, path_ptr, links, cumulative_weight: columns of paths, see `PathColumns`.
        n_links: how many links there are.
        share: load of each flow on its links; 1 unless given.
    """
    ring_ptr = indptr(flows)
    links_of_rows = path_ptr[row_ptr[rows + 1]] - path_ptr[row_ptr[rows]]
    most = int(np.minimum(np.add.reduceat(links_of_rows, ring_ptr[:-1]), n_links).sum())
    load_ptr = np.zeros(len(flows) + 1, np.int64)
    loaded, load = np.empty(most, np.int32), np.empty(most, np.int64)
    total = np.zeros(n_links)
    share = np.ones(len(rows)) if share is None else share
    _sum_loads(rows, share, ring_ptr, row_ptr, path_ptr, links, cumulative_weight, total, load_ptr, loaded, load)
    return load_ptr, loaded[: load_ptr[-1]], load[: load_ptr[-1]]


@kernel
def _sum_loads(
    rows: I32,
    share: F64,
    ring_ptr: I64,
    row_ptr: I64,
    path_ptr: I64,
    links: I32,
    cumulative_weight: F64,
    total: F64,
    load_ptr: I64,
    loaded: I32,
    load: I64,
) -> None:
    """Fill the last three columns; ``total`` (E,) is room, all 0."""
    end = 0
    for ring in range(len(ring_ptr) - 1):
        for flow in range(ring_ptr[ring], ring_ptr[ring + 1]):
            before = 0.0
            for path in range(row_ptr[rows[flow]], row_ptr[rows[flow] + 1]):
                weight = (cumulative_weight[path] - before) * share[flow]
                before = cumulative_weight[path]
                for k in range(path_ptr[path], path_ptr[path + 1]):
                    if total[links[k]] == 0.0 and weight != 0.0:
                        loaded[end] = links[k]
                        end += 1
                    total[links[k]] += weight
        sort_links(loaded, load_ptr[ring], end, total)
        for place in range(load_ptr[ring], end):
            link = loaded[place]
            load[place] = max(1, int(np.rint(total[link] * LOAD)))
            total[link] = 0.0
        load_ptr[ring + 1] = end


@inline_kernel
def sort_links(loaded: I32, first: int, end: int, total: Any) -> None:
    """Sort the links of a ring, which are those that ``total`` (E,) is not 0 of: by insertion where they are few."""
    if (end - first) ** 2 > len(total):
        place = first
        for link in range(len(total)):
            if total[link] != 0.0:
                loaded[place] = link
                place += 1
        return
    for place in range(first + 1, end):
        link = loaded[place]
        while place > first and loaded[place - 1] > link:
            loaded[place] = loaded[place - 1]
            place -= 1
        loaded[place] = link

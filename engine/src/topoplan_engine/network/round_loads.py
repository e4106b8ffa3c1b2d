"""Bytes that the messages of a round put on links: one compiled pass over the paths of pairs, which lists no entries.

Thousands of members in many groups have some ten million links on their paths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.network.ring_loads import sort_links
from topoplan_engine.network.tables import PathColumns

__all__ = ["bytes_on_links", "longest_delays"]


def bytes_on_links(rows: NDArray[np.int32], nbytes: F64, paths: PathColumns) -> tuple[I64, F64]:
    """Return the cells (group x links + link) that carry something, ascending, and how many bytes.

    Args:
        rows: (G, pairs) of paths.
        nbytes: (pairs,) bytes that each pair sends, over its paths by their shares.
        paths: of the network.
    """
    groups, n_links = len(rows), len(paths.bandwidth)
    active = np.flatnonzero(nbytes)
    some = np.ascontiguousarray(rows[:, active])
    entries = paths.path_ptr[paths.row_ptr[some + 1]] - paths.path_ptr[paths.row_ptr[some]]
    most = int(np.minimum(entries.sum(axis=1), n_links).sum())
    links, load, ptr = np.empty(most, np.int32), np.empty(most), np.zeros(groups + 1, np.int64)
    columns = paths.row_ptr, paths.path_ptr, paths.links, paths.cumulative_weight
    _sum_bytes(some, nbytes[active], *columns, np.zeros(n_links), ptr, links, load)
    group = np.repeat(np.arange(groups), np.diff(ptr))
    return group * n_links + links[: ptr[-1]], load[: ptr[-1]].copy()


@kernel
def _sum_bytes(
    rows: NDArray[np.int32],
    nbytes: F64,
    row_ptr: I64,
    path_ptr: I64,
    links: I32,
    cumulative_weight: F64,
    total: F64,
    ptr: I64,
    loaded: I32,
    load: F64,
) -> None:
    """Fill the last three columns; ``total`` (E,) is room, all 0 between two groups."""
    end = 0
    for group in range(len(rows)):
        for pair in range(len(nbytes)):
            before = 0.0
            for path in range(row_ptr[rows[group, pair]], row_ptr[rows[group, pair] + 1]):
                sent = nbytes[pair] * (cumulative_weight[path] - before)
                before = cumulative_weight[path]
                if sent == 0.0:
                    continue
                for entry in range(path_ptr[path], path_ptr[path + 1]):
                    if total[links[entry]] == 0.0:
                        loaded[end] = links[entry]
                        end += 1
                    total[links[entry]] += sent
        sort_links(loaded, ptr[group], end, total)
        for place in range(ptr[group], end):
            load[place] = total[loaded[place]]
            total[loaded[place]] = 0.0
        ptr[group + 1] = end


def longest_delays(rows: NDArray[np.int32], paths: PathColumns) -> F64:
    """Return the seconds of the longest path of each of (n,) rows."""
    longest = np.zeros(len(rows))
    _longest(rows, paths.row_ptr, paths.delay, longest)
    return longest


@kernel
def _longest(rows: I32, row_ptr: I64, delay: F64, longest: F64) -> None:
    """Write the last column, all 0."""
    for number in range(len(rows)):
        for path in range(row_ptr[rows[number]], row_ptr[rows[number] + 1]):
            longest[number] = max(longest[number], delay[path])

"""Sums along paths, and the links that rows of paths cross.

Data flow: `topoplan_engine.network.tables` appends paths as CSR; `sum_paths` sums over the links of each of them,
`cross` marks the links that transfers can take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import kernel

__all__ = ["cross", "sum_paths"]

Bools = NDArray[np.bool_]


@kernel
def sum_paths(lengths: I64, links: I32, latency: F64, bandwidth: F64, delay: F64, per_byte: F64, slowest: F64) -> None:
    """Write latency, seconds per byte and smallest bandwidth of every path.

    Args:
        lengths, links: (P,) links of each path, and these links, path by path.
        latency, bandwidth: (E,) of every link.
        delay, per_byte, slowest: (P,) written.
    """
    first = 0
    for path in range(len(lengths)):
        delay[path], per_byte[path], slowest[path] = 0.0, 0.0, np.inf
        for link in links[first : first + lengths[path]]:
            delay[path] += latency[link]
            per_byte[path] += 1.0 / bandwidth[link]
            slowest[path] = min(slowest[path], bandwidth[link])
        first += lengths[path]


@kernel
def cross(rows: I32, visited: Bools, row_ptr: I64, path_ptr: I64, links: I32, crossed: Bools) -> None:
    """Mark the links of rows that are not ``visited`` as ``crossed``, and these rows as visited.

    Args:
        rows: of paths.
        visited: (R,) marks of rows.
        row_ptr, path_ptr, links: see `topoplan_engine.network.tables.PathColumns`.
        crossed: (E,) marks of links.
    """
    for row in rows:
        if not visited[row]:
            visited[row] = True
            for link in links[path_ptr[row_ptr[row]] : path_ptr[row_ptr[row + 1]]]:
                crossed[link] = True

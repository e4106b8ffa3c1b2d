"""Sums along paths, and the links that rows of paths cross.

Data flow: `topoplan_engine.network.tables` appends paths as compressed rows; `sum_paths` says what a message meets on
each of them, `cross` which links transfers can take.
"""

from __future__ import annotations

import numpy as np

from topoplan_engine.kernels.jit import kernel

__all__ = ["cross", "sum_paths"]


@kernel
def sum_paths(lengths, links, latency, bandwidth, delay, per_byte, slowest) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Write latency, seconds per byte and smallest bandwidth of every path."""
    at = 0
    for path in range(len(lengths)):
        delay[path], per_byte[path], slowest[path] = 0.0, 0.0, np.inf
        for link in links[at : at + lengths[path]]:
            delay[path] += latency[link]
            per_byte[path] += 1.0 / bandwidth[link]
            slowest[path] = min(slowest[path], bandwidth[link])
        at += lengths[path]


@kernel
def cross(rows, moved, row_ptr, path_ptr, links, met) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Mark the links of rows that are not marked as ``moved``, and mark these."""
    for row in rows:
        if not moved[row]:
            moved[row] = True
            for link in links[path_ptr[row_ptr[row]] : path_ptr[row_ptr[row + 1]]]:
                met[link] = True

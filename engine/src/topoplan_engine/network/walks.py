"""Sums along paths, and the links that rows of paths cross.

Data flow: `topoplan_engine.network.tables` appends paths as compressed rows; `sum_paths` says what a message meets on
each of them, `cross` which links transfers can take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I64, i64
from topoplan_engine.kernels.jit import kernel

__all__ = ["cross", "joined", "ranges", "sum_paths"]


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


def ranges(first: I64, last: I64) -> I64:
    """Return ``first[0] .. last[0]-1, first[1] .. last[1]-1, ...``."""
    lengths = last - first
    return i64(np.arange(int(lengths.sum())) + np.repeat(first - np.cumsum(lengths) + lengths, lengths))


def joined(old: NDArray[Any], *new: NDArray[Any]) -> NDArray[Any]:
    """Append to a column; the result is read-only, as `topoplan.arrays` wants it, without a second copy."""
    column = np.concatenate([old, *new], dtype=old.dtype, casting="same_kind")
    column.setflags(write=False)
    return column

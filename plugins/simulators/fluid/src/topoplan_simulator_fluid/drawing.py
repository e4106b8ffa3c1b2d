"""Which of its paths a message takes: drawn by pair of hosts and number, so that no draw depends on another pair's."""

from __future__ import annotations

from topoplan.arrays import I64
from topoplan_engine.kernels.hashing import uniform
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.network.tables import PathColumns

__all__ = ["draw_path"]


@inline_kernel
def draw_path(paths: PathColumns, draws: I64, row: int, seed: int) -> int:
    """Return the path of a row, drawn by the weights if there are several.

    ``draws`` counts, for each row, the paths that it has drawn.
    """
    path = paths.row_ptr[row]
    if paths.row_ptr[row + 1] - path > 1:
        draw = uniform(seed, paths.pair[row], draws[row])
        draws[row] += 1
        while paths.cumulative_weight[path] <= draw:
            path += 1
    return int(path)

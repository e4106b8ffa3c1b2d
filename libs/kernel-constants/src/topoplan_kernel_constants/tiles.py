"""The model of products: tiles of the output run in waves on the multiprocessors, at a measured ceiling.

An output of m x n is cut into tiles.  A multiprocessor makes one tile at a time, so that tiles run in waves: a last
wave that is not full takes as long as any other.  A long inner dimension may be cut as well (split-k), whose partial
results are then summed through memory.  The library chooses among tiles and splits; here, the fastest one.  The time is
that of arithmetic or that of memory, whichever is longer, a share of the other, and a floor for the launch.  Modelled
after NVIDIA's Matrix Multiplication Background User's Guide (tile and wave quantization).
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64

__all__ = ["Products", "seconds_of", "start"]

#: Tiles of the output that libraries have kernels for.
TILES = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)),
    *((192, 128), (128, 192), (64, 256), (256, 64), (32, 64), (64, 32)),
)
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Steps along the inner dimension, and the shortest slice of it.
_STEP, _SHORTEST = 64, 128
#: Bytes of a partial result.
_PARTIAL = 4
_HEAD = 4


@attrs.frozen(eq=False)
class Products:
    """(n,) each: batch, m, n, k; bytes that are read and written; the number of the rate (which kernel)."""

    batch: F64
    m: F64
    n: F64
    k: F64
    nbytes: F64
    kind: np.ndarray[tuple[int], np.dtype[np.int64]]

    def choose(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Products:
        """Return some of them."""
        return Products(*(column[rows] for column in attrs.astuple(self, recurse=False)))


def start(flops: float, bandwidth: float, kinds: int) -> F64:
    """Return constants that a fit begins with.

    They are logarithms: of bandwidth, floor, steps that fill the pipeline, and the share of the shorter of arithmetic
    and memory; then of a loss for each tile, and of a rate for each kind.
    """
    losses = np.linspace(0.05, 0.8, len(TILES))
    head = np.log([0.75 * bandwidth, 3e-6, 100.0, 0.15])
    return np.concatenate([head, losses, np.full(kinds, np.log(0.7 * flops))])


def seconds_of(constants: F64, work: Products, processors: int) -> F64:
    """Return the (n,) seconds of products.

    Args:
        constants: as `start` has them.
        work: the products.
        processors: multiprocessors of the device.
    """
    bandwidth, floor, fill, share = np.exp(constants[:_HEAD])
    losses = np.exp(np.abs(constants[_HEAD : _HEAD + len(TILES)]))
    rate = np.exp(constants[_HEAD + len(TILES) :])[work.kind] / processors
    fastest = np.full(len(work.m), np.inf)
    splits = [split for split in SPLITS if split == 1 or split * _SHORTEST <= work.k.max(initial=1)]
    for (rows, columns), loss in zip(TILES, losses, strict=True):
        tiles = np.ceil(work.m / rows) * np.ceil(work.n / columns) * work.batch
        for split in splits:
            waves = np.ceil(tiles * split / processors)
            inner = np.ceil(work.k / split / _STEP) * _STEP + fill
            seconds = waves * (2.0 * rows * columns * loss) * inner / rate
            if split > 1:
                seconds = seconds + work.m * work.n * work.batch * (_PARTIAL * split) / bandwidth
                seconds = np.where(work.k < split * _SHORTEST, np.inf, seconds)
            np.minimum(fastest, seconds, out=fastest)
    moving = work.nbytes / bandwidth
    return np.asarray(floor + np.maximum(fastest, moving) + share * np.minimum(fastest, moving))

"""The model of attention that keeps its scores on chip (Dao, FlashAttention-2, 2023), and of attention that does not.

A block of queries of one head is a tile, and tiles run in waves.  A pass forward makes two products over the pairs that
attend; the pass backward makes them once more, and four others: 2.5 times the FLOPs.  Short heads reach less: a tile
has work beside its products.  Where heads share keys and the precision has no such kernel, PyTorch writes the scores.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64

__all__ = ["Attention", "seconds_of", "start"]

#: Queries of a tile.
_TILE = 128
_BACKWARD = 2.5
#: Channels of a head beside which the other work of a tile is counted.
_CHANNELS = 64.0


@attrs.frozen(eq=False)
class Attention:
    """(n,) each: samples, heads, heads of keys, queries, keys, channels of a head, 1 where it is causal.

    Then bytes of an element, and 1 for the pass backward.
    """

    samples: F64
    heads: F64
    kv_heads: F64
    queries: F64
    keys: F64
    channels: F64
    causal: F64
    itemsize: F64
    backward: F64

    def choose(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Attention:
        """Return some of them."""
        return Attention(*(column[rows] for column in attrs.astuple(self, recurse=False)))

    def shapes(self) -> F64:
        """Return the coordinates for neighbours."""
        sizes = (self.samples * self.heads, self.queries, self.keys, self.channels, self.heads / self.kv_heads)
        return np.stack([np.log2(x) for x in sizes] + [self.causal], axis=1)


def start(flops: float, bandwidth: float) -> F64:
    """Return constants that a fit begins with: logarithms of bandwidth, floor, rate, other work, passes over scores."""
    return np.log([0.7 * bandwidth, 6e-6, 0.6 * flops, 0.5, 0.01])


def seconds_of(constants: F64, work: Attention, processors: int) -> F64:
    """Return the (n,) seconds of attention.

    Args:
        constants: as `start` has them.
        work: what attends to what.
        processors: multiprocessors of the device.
    """
    bandwidth, floor, rate, other_rate, written = np.exp(constants)
    pairs = np.where(work.causal > 0, 0.5 * (1 + _TILE / np.maximum(work.keys, _TILE)), 1.0) * work.keys
    blocks = work.samples * work.heads * np.ceil(work.queries / _TILE)
    # Tiles of unequal length are balanced, unless there are few: then the last wave is not full.
    waves = np.maximum(np.ceil(blocks / processors), blocks / processors)
    times = np.where(work.backward > 0, _BACKWARD, 1.0)
    tile = 4.0 * _TILE * pairs * (work.channels + other_rate * _CHANNELS) * times
    arithmetic = waves * tile / (rate / processors)
    elements = 2 * work.samples * work.channels * (work.heads * work.queries + work.kv_heads * work.keys) * times
    scores = work.samples * work.heads * work.queries * work.keys * written
    return np.asarray(floor + arithmetic + work.itemsize * (elements + scores) / bandwidth)

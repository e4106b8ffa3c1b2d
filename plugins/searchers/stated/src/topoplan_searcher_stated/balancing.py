"""Layers of chunks of which none takes long: the balance that a pipeline has unless its plan says layers.

seconds of each layer, and of sending behind it ─► `balance` ─► how many layers each chunk has
"""

from __future__ import annotations

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["balance"]

#: Halvings of the range in which the seconds of the slowest chunk lie.
_HALVINGS = 40


@inline_kernel
def _fill_chunks(seconds: F64, n_layers: int, most: float, counts: I64) -> bool:
    """Give chunks layers that take ``most`` seconds at most, from the last one; whether that goes."""
    position = n_layers
    for chunk in range(len(counts) - 1, -1, -1):
        took, count = seconds[n_layers] if chunk == len(counts) - 1 else 0.0, 0
        while position > chunk and (count == 0 or took + seconds[position - 1] <= most):
            position -= 1
            took += seconds[position]
            count += 1
        if took > most:
            return False
        counts[chunk] = count
    return position == 0


@inline_kernel
def _fill_within(layers: F64, n_layers: int, most: float, widest: float, room: F64, counts: I64) -> bool:
    """Do the same where what a chunk sends takes ``widest`` seconds at most; see `balance`."""
    seconds, nbytes, per_byte, chunks = layers[0], layers[1], layers[2], len(counts)
    room[:] = 0.0  # (chunks, L + 1) whether the chunks before one can have so many layers
    room[0, 0] = 1.0
    for chunk in range(1, chunks):
        took, start = 0.0, -1
        for end in range(1, n_layers + 1):
            if room[chunk - 1, end - 1] > 0:
                took, start = 0.0, end - 1
            took += seconds[end - 1]
            if start >= 0 and took <= most and nbytes[end - 1] * per_byte[chunk - 1] <= widest:
                room[chunk, end] = 1.0
    end = n_layers
    for chunk in range(chunks - 1, -1, -1):
        took = seconds[n_layers] if chunk == chunks - 1 else 0.0
        start, first = end, end
        while first > 0 and took + seconds[first - 1] <= most:
            first -= 1
            took += seconds[first]
            if room[chunk, first] > 0:
                start = first
        if start == end:
            return False
        counts[chunk], end = end - start, start
    return True


@inline_kernel
def _least_seconds(layers: F64, n_layers: int, low: float, high: float, widest: float, room: F64, counts: I64) -> float:
    """Return the least seconds of the slowest chunk where none sends for longer than that or ``widest``."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _fill_within(layers, n_layers, middle, max(middle, widest), room, counts):
            high = middle
        else:
            low = middle
    return high


@inline_kernel
def _longest_border(layers: F64, counts: I64) -> float:
    """Return the most seconds that a chunk takes to send what it makes."""
    end, longest = 0, 0.0
    for chunk in range(len(counts) - 1):
        end += counts[chunk]
        longest = max(longest, layers[1, end - 1] * layers[2, chunk])
    return longest


@kernel  # type: ignore[untyped-decorator]
def balance(layers: F64, n_layers: int, room: F64, counts: I64) -> None:
    """Say how many layers each chunk has, at least one, so that the slowest chunk takes the least time.

    Where there is a choice, later chunks have more: activations of theirs are kept for a shorter time.  Where a chunk
    sends for longer than the slowest one takes, the longest of all of that is least first.

    Args:
        layers: (3, L + 1) seconds of each layer, and of what is behind the last one, in the last chunk; bytes that each
            layer makes; seconds per byte that each chunk sends.
        n_layers: L, no fewer than chunks.
        room: (at least chunks, L + 1) to work in.
        counts: (chunks,) gets the layers of each.
    """
    total = 0.0
    for layer in range(n_layers + 1):
        total += layers[0, layer]
    low, high = 0.0, 2 * total + 1e-9
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _fill_chunks(layers[0], n_layers, middle, counts):
            high = middle
        else:
            low = middle
    _fill_chunks(layers[0], n_layers, high, counts)
    most = _longest_border(layers, counts)
    if most <= high:
        return
    widest = _least_seconds(layers, n_layers, high, most, 0.0, room, counts)
    most = _least_seconds(layers, n_layers, 0.0, widest, widest, room, counts)
    _fill_within(layers, n_layers, most, widest, room, counts)

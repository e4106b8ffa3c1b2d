"""How many layers each chunk of a pipeline has, so that the slowest one is fastest."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["balanced_layers"]

#: Halvings of the range in which the seconds of the slowest chunk lie.
_HALVINGS = 40


def balanced_layers(seconds: Sequence[float], tail: float, chunks: int) -> tuple[int, ...]:
    """Return how many layers each chunk has, at least one, so that the slowest chunk takes the least time.

    Where there is a choice, later chunks have more: activations of theirs are kept for a shorter time.

    Args:
        seconds: (L,) of each layer.
        behind: of what comes behind the last layer, in the last chunk.
        chunks: no more than there are layers.

    Examples:
        >>> balanced_layers([1.0] * 7, 1.0, 4)
        (2, 2, 2, 1)
        >>> balanced_layers([3.0, 1.0, 1.0, 1.0, 1.0], 0.0, 2)
        (1, 4)
    """
    low, high = 0.0, 2 * (sum(seconds) + tail) + 1e-9
    best = _filled(seconds, tail, chunks, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        layers = _filled(seconds, tail, chunks, middle)
        if layers is None:
            low = middle
        else:
            best, high = layers, middle
    assert best is not None
    return best


def _filled(seconds: Sequence[float], tail: float, chunks: int, most: float) -> tuple[int, ...] | None:
    """Return layers of chunks that take ``most`` seconds at most, filled from the last one; None if there are none."""
    layers, position = [], len(seconds)
    for chunk in range(chunks - 1, -1, -1):
        took, count = tail if chunk == chunks - 1 else 0.0, 0
        while position > chunk and (count == 0 or took + seconds[position - 1] <= most):
            position -= 1
            took += seconds[position]
            count += 1
        if took > most:
            return None
        layers.append(count)
    return tuple(reversed(layers)) if position == 0 else None

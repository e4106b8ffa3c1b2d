"""The numbers of a random generator in less time.

A chain draws several numbers for every proposal, and a call of a `numpy.random.Generator` takes longer than what is
drawn from it.  `Draws` takes thousands of 64-bit numbers at once and makes of them what the generator would, bit for
bit: floats of the 53 highest bits; integers of 32 bits, the lower half first, by Lemire's method ("Fast Random Integer
Generation in an Interval", ACM TOMACS 29, 2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Draws", "quick_draws"]

#: Numbers that are taken at once.
_MANY = 4096
_LOWER_HALF = (1 << 32) - 1
_UNIT = 1.0 / (1 << 53)


def quick_draws(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues ``rng``, which must not be used any more, with the same numbers.

    That is so for ``random()`` and ``integers(n)``; what is drawn in another way comes from further on.
    """
    return Draws(rng.bit_generator) if isinstance(rng.bit_generator, np.random.PCG64) else rng


class Draws(np.random.Generator):
    """Draws from numbers of a PCG64 that are taken many at once; see the module."""

    def __init__(self, bits: np.random.BitGenerator) -> None:
        super().__init__(bits)
        state: Any = bits.state
        self._half = int(state["uinteger"]) if state["has_uint32"] else -1  # what is left of a number of 64 bits
        self._numbers: list[int] = []  # the next one last

    def random(self, *shape: Any, **options: Any) -> Any:
        """Draw a float from [0, 1)."""
        if shape or options:
            return super().random(*shape, **options)
        return ((self._numbers or self._more()).pop() >> 11) * _UNIT

    def integers(self, low: Any, *more: Any, **options: Any) -> Any:
        """Draw an integer from 0 to ``low - 1``."""
        if more or options or not isinstance(low, int) or not 1 < low <= _LOWER_HALF:
            return 0 if low == 1 and not (more or options) else super().integers(low, *more, **options)
        product = self._next_half() * low
        if product & _LOWER_HALF < low:
            threshold = (_LOWER_HALF - low + 1) % low
            while product & _LOWER_HALF < threshold:
                product = self._next_half() * low
        return product >> 32

    def _next_half(self) -> int:
        half = self._half
        if half >= 0:
            self._half = -1
            return half
        bits = (self._numbers or self._more()).pop()
        self._half = bits >> 32
        return bits & _LOWER_HALF

    def _more(self) -> list[int]:
        raw: Any = self.bit_generator.random_raw(_MANY)  # type: ignore[attr-defined]
        self._numbers = raw[::-1].tolist()
        return self._numbers

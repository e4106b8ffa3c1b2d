"""Mixing of bits, random numbers that need no state, and a hash table, for kernels.

The mixing function is the output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).  The hash table has linear
probing (Knuth, The Art of Computer Programming, 6.4); it is two columns, whose length is a power of two:

* ``keys``: the key in each slot, undefined where the slot is free.
* ``numbers``: (int32) what is known of the key, not negative; -1 marks a free slot.  At least one slot must be free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan_engine.kernels.jit import inline_kernel

__all__ = ["GOLDEN", "fraction", "mix", "mix_briefly", "slot_of", "uniform"]

#: 2^64 / golden ratio: the step of SplitMix64, and a factor that spreads numbers that follow each other.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inline_kernel
def mix(bits: Any) -> Any:
    """Mix 64 bits: the output function of SplitMix64."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@inline_kernel
def mix_briefly(bits: Any) -> Any:
    """Mix 64 bits in one round instead of two: for colours, which are mixed again and again."""
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return bits ^ (bits >> np.uint64(29))


@inline_kernel
def fraction(bits: Any) -> float:
    """Return mixed bits as a number in [0, 1): the 53 highest of them."""
    return float(bits >> np.uint64(11)) / 9007199254740992.0


@inline_kernel
def uniform(seed: int, stream: int, number: int) -> float:
    """Draw number ``number`` of a stream from [0, 1).

    Every stream is a SplitMix64 that begins at a mix of seed and stream: what one stream draws does not depend on
    when, and how often, others do.
    """
    start = mix(np.uint64(seed) + np.uint64(stream + 1) * GOLDEN)
    return float(fraction(mix(start + np.uint64(number + 1) * GOLDEN)))


@inline_kernel
def slot_of(keys: Any, numbers: Any, key: Any) -> int:
    """Slot of the hash table that has a key; where none has, the free slot that it belongs into."""
    mask = np.int64(len(numbers) - 1)
    slot = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & mask
    while numbers[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return int(slot)

"""A table of host pairs: what is known of each, in memory proportional to the pairs that were asked.

A square of hosts by hosts would take 17 GB for 65,536 hosts, of which a ring asks one pair per host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.kernels.jit import kernel

__all__ = ["PairTable"]


class PairTable:
    """Numbers by key, in a hash table with linear probing that is at most half full."""

    def __init__(self) -> None:
        self._slots = np.full(16, -1, dtype=np.int64)
        self._values = np.zeros(16, dtype=np.int32)
        self._count = 0

    def get(self, keys: I64) -> I32:
        """(k,) value of each key (not negative); 0 where none was put."""
        place = _places(keys, self._slots, False)
        return np.where(place < 0, 0, self._values[place])

    def put(self, keys: I64, values: I32) -> None:
        """Give each of these keys, all of them different, its value."""
        if 2 * (self._count + len(keys)) > len(self._slots):
            known = np.flatnonzero(self._slots >= 0)
            slots, held = self._slots[known], self._values[known]
            size = 1 << (4 * (len(known) + len(keys))).bit_length()
            self._slots = np.full(size, -1, dtype=np.int64)
            self._values = np.zeros(size, dtype=np.int32)
            self._values[_places(slots, self._slots, True)] = held
        self._values[_places(keys, self._slots, True)] = values
        self._count = int((self._slots >= 0).sum())


def _places(keys: I64, slots: I64, take: bool) -> I64:
    places = np.empty(len(keys), dtype=np.int64)
    _find(keys, slots, take, places)
    return places


@kernel
def _find(keys: Any, slots: Any, take: bool, places: Any) -> None:
    """Write the place of each key in ``slots``, -1 where it is not; one that is not takes a free place if told to.

    Keys are spread by multiplication with 2^64 / golden ratio (Knuth, The Art of Computer Programming, 6.4).
    """
    mask = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        spread = np.uint64(keys[i]) * np.uint64(0x9E3779B97F4A7C15)
        at = np.int64((spread >> np.uint64(32)) & mask)
        while slots[at] >= 0 and slots[at] != keys[i]:
            at = np.int64(np.uint64(at + 1) & mask)
        found = take or slots[at] >= 0
        if take:
            slots[at] = keys[i]
        places[i] = at if found else -1

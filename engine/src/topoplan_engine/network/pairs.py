"""A table of host pairs: what is known of each, in memory proportional to the pairs that were asked.

A square of hosts by hosts would take 17 GB for 65,536 hosts, of which a ring asks one pair per host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.kernels.hashing import slot_of
from topoplan_engine.kernels.jit import kernel

__all__ = ["PairTable"]


class PairTable:
    """Numbers by key, in a hash table (`topoplan_engine.kernels.hashing`) that is at most half full."""

    def __init__(self) -> None:
        self._keys, self._numbers = _free(16)
        self._count = 0

    @property
    def columns(self) -> tuple[I64, I32]:
        """The hash table, to be read by kernels."""
        return self._keys, self._numbers

    def get(self, keys: I64) -> I32:
        """(k,) number of each key (not negative); 0 where none was put."""
        numbers = np.empty(len(keys), dtype=np.int32)
        _look_up(self._keys, self._numbers, keys, numbers)
        return numbers

    def put(self, keys: I64, numbers: I32) -> None:
        """Give each of these keys, all of them different, its number (not negative)."""
        if 2 * (self._count + len(keys)) > len(self._keys):
            used = np.flatnonzero(self._numbers >= 0)
            old_keys, old_numbers = self._keys[used], self._numbers[used]
            self._keys, self._numbers = _free(1 << (2 * (len(used) + len(keys))).bit_length())
            _enter(self._keys, self._numbers, old_keys, old_numbers)
        _enter(self._keys, self._numbers, keys, numbers)
        self._count = int((self._numbers >= 0).sum())


def _free(size: int) -> tuple[I64, I32]:
    """Return an empty table of ``size`` slots, a power of two."""
    return np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int32)


@kernel
def _look_up(table_keys: Any, table_numbers: Any, keys: Any, numbers: Any) -> None:
    for i in range(len(keys)):
        numbers[i] = max(0, table_numbers[slot_of(table_keys, table_numbers, keys[i])])


@kernel
def _enter(table_keys: Any, table_numbers: Any, keys: Any, numbers: Any) -> None:
    for i in range(len(keys)):
        slot = slot_of(table_keys, table_numbers, keys[i])
        table_keys[slot], table_numbers[slot] = keys[i], numbers[i]

"""A cache of fabrics, by the demand that they were built for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topoplan import Demand, Fabric

__all__ = ["Memo"]

#: Size of the cache; the oldest entry is dropped first.
_MAX_ENTRIES = 64


class Memo:
    """The cached fabrics of one search; equal demands have the same fabric, and it is drawn once."""

    def __init__(self) -> None:
        self._by_demand: dict[Any, Fabric] = {}

    def of(self, demand: Demand, variant: Any, build: Callable[[], Fabric]) -> Fabric:
        """Return the cached fabric for ``demand`` and ``variant`` (any hashable value), or build it."""
        columns = (demand.group_ptr, demand.group_members, demand.group_bytes, demand.matrix)
        key = (variant, *(column.tobytes() for column in columns))
        cached = self._by_demand.pop(key, None)
        self._by_demand[key] = cached = cached or build()
        while len(self._by_demand) > _MAX_ENTRIES:
            del self._by_demand[next(iter(self._by_demand))]
        return cached

"""Fabrics built before, found again by their wires and by the demand that they were built for.

Simulators keep tables for a fabric *object*, and evaluators what a strategy took on one.  So equal wires should be one
object, and nothing should be built twice for a demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from topoplan import Demand, Fabric

__all__ = ["Memo"]

#: Entries kept before the oldest is dropped.
_KEPT = 64


class Memo:
    """Fabrics of one search."""

    def __init__(self) -> None:
        self._by_wires: dict[Any, Fabric] = {}
        self._by_demand: dict[Any, Fabric] = {}

    def of(self, demand: Demand, how: Any, build: Callable[[], Fabric]) -> Fabric:
        """Return what was built in the way ``how`` for an equal demand, or build it."""
        columns = (demand.group_ptr, demand.group_members, demand.group_bytes, demand.matrix)
        key = (how, *(column.tobytes() for column in columns))
        cached = self._by_demand.pop(key, None)
        self._by_demand[key] = cached = cached or self.one(build())
        _make_room(self._by_demand)
        return cached

    def one(self, fabric: Fabric) -> Fabric:
        """Return the one object that stands for all fabrics of the same links, rings and routes."""
        routes = fabric.routes
        columns: list[NDArray[Any]] = [fabric.link_src, fabric.link_dst, fabric.link_bandwidth, fabric.link_latency]
        if routes is not None:
            columns += [routes.pairs, routes.pair_ptr, routes.path_ptr, routes.links, routes.weight]
        rings = tuple(sorted(fabric.rings.items()))
        key = (fabric.max_paths, rings, *(column.tobytes() for column in columns))
        cached = self._by_wires.pop(key, fabric)
        self._by_wires[key] = cached
        _make_room(self._by_wires)
        return cached


def _make_room(cache: dict[Any, Fabric]) -> None:
    while len(cache) > _KEPT:
        del cache[next(iter(cache))]

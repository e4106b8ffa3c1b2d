"""What changes to a state are known to cost at least: a chain proposes the same changes again and again.

A chain that stays near a good state draws from its few thousand neighbours, and most proposals of a long search repeat
one that was rejected before, under another cutoff.

Data flow: `Evaluator.rejects` asks `ChangeBounds` before it derives a bound, and puts there what it has derived.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from topoplan.model.placement import Placement
from topoplan.search.protocol import State

__all__ = ["ChangeBounds", "CostBound"]

#: Changes that are kept; then all are forgotten.
_ENTRIES = 50_000


class CostBound(NamedTuple):
    """The cost of a state is ``seconds``, or no less where that is not exact."""

    seconds: float
    exact: bool


#: Of a state of which nothing is known.
_NO_BOUND = CostBound(0.0, False)


class ChangeBounds:
    """What is known of costs, by a state and a change to its placements."""

    def __init__(self) -> None:
        self._base: State | None = None
        # Of the last base, then of all: by the change.
        self._last_bounds: dict[Hashable, CostBound] = {}
        self._by_base: dict[bytes, dict[Hashable, CostBound]] = {}
        self._count = 0

    def key(self, base: State, placements: Mapping[int, Placement]) -> Hashable:
        """Return what names a change to ``base`` in `of` and `put`, until it is called for another base."""
        if base is not self._base:
            self._base = base
            self._last_bounds = self._by_base.setdefault(base.strategy.key + base.fabric.key, {})
        return (*placements, *[placement.key for placement in placements.values()])

    def of(self, key: Hashable) -> CostBound:
        """Return what is known of a change."""
        return self._last_bounds.get(key, _NO_BOUND)

    def put(self, key: Hashable, bound: CostBound) -> CostBound:
        """Keep what is known of a change, and return it."""
        if self._count >= _ENTRIES:
            self._count, self._base, self._last_bounds = 0, None, {}
            self._by_base.clear()
        self._count += key not in self._last_bounds
        self._last_bounds[key] = bound
        return bound

"""Propagation: a proposal that spreads one operator's placement along the edges of the graph.

FlexNet's ``FFModel::propagate`` walks from a random operator over its neighbours, weighting edges by the
tensor's size, and lets each take over the configuration, so that neighbours come to agree and their
transfers vanish.  There only a data-parallel configuration can move between operators of different rank;
here a cut moves wherever the tensor between the two operators maps the cut dimensions onto each other.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.problem import PlacementSpace

__all__ = ["Propagation", "carried"]


class Propagation:
    """Walks over one graph; `spread` makes one proposal."""

    def __init__(self, graph: OperatorGraph, space: PlacementSpace, go_on: float) -> None:
        self._space = space
        self._go_on = go_on
        self._count = len(graph.operators)
        #: For every operator: (neighbour, elements of the tensor between them, own dim -> neighbour's dim).
        self._neighbours: list[list[tuple[int, int, dict[int, int]]]] = [[] for _ in range(self._count)]
        for u, out, v, into in graph.edges.reshape(-1, 4).tolist():
            output, argument = graph.operators[u].outputs[out], graph.operators[v].inputs[into]
            pairs = [
                (a.dim, b.dim) for a, b in zip(output.axes, argument.axes, strict=True) if a.dim >= 0 and b.dim >= 0
            ]
            self._neighbours[u].append((v, output.elements, dict(pairs)))
            self._neighbours[v].append((u, output.elements, {b: a for a, b in pairs}))
        self._dims = [len(op.dims) for op in graph.operators]

    def spread(self, placements: Sequence[Placement], rng: np.random.Generator) -> dict[int, Placement]:
        """Return the placements that change; empty when nobody could take the configuration over."""
        position = int(rng.integers(self._count))
        visited = {position}
        changes: dict[int, Placement] = {}
        while True:
            around = [n for n in self._neighbours[position] if n[0] not in visited]
            if not around:
                break
            cumulative = list(itertools.accumulate(float(n[1]) for n in around))
            to, _, dims = around[min(bisect.bisect_right(cumulative, rng.random() * cumulative[-1]), len(around) - 1)]
            moved = carried(changes.get(position, placements[position]), dims, self._dims[to])
            if moved is not None and moved.degrees in self._space.degrees(to):
                changes[to] = self._space.intern(moved)
            visited.add(to)
            position = to
            if rng.random() >= self._go_on:
                break
        return {op: placement for op, placement in changes.items() if placement is not placements[op]}

    def block(self, op: int, placement: Placement, rng: np.random.Generator) -> dict[int, Placement]:
        """Return ``placement`` for ``op`` and for a connected block of operators around it that can take it over.

        The size of the block is drawn log-uniformly from one operator to all of them, so that blocks of
        every scale are proposed.
        """
        size = round(self._count ** float(rng.random()))
        changes = {op: placement}
        frontier = [op]
        while frontier and len(changes) < size:
            member = frontier.pop(int(rng.integers(len(frontier))))
            for to, _, dims in self._neighbours[member]:
                if to in changes or len(changes) >= size:
                    continue
                moved = carried(changes[member], dims, self._dims[to])
                if moved is not None and moved.degrees in self._space.degrees(to):
                    changes[to] = self._space.intern(moved)
                    frontier.append(to)
        return changes


def carried(placement: Placement, dims: dict[int, int], n_dims: int) -> Placement | None:
    """Return ``placement`` in a neighbour's dimensions, or None where a cut dimension has no counterpart.

    Args:
        placement: of the operator that it comes from.
        dims: its dimension -> the neighbour's dimension.
        n_dims: how many dimensions the neighbour has.
    """
    cut = [d for d, degree in enumerate(placement.degrees) if degree > 1]
    if any(d not in dims for d in cut):
        return None
    degrees = [1] * n_dims
    for d in cut:
        degrees[dims[d]] = placement.degrees[d]
    grid = placement.devices.reshape([placement.degrees[d] for d in cut])
    order = sorted(range(len(cut)), key=lambda k: dims[cut[k]])
    return Placement(degrees, grid.transpose(order).ravel())

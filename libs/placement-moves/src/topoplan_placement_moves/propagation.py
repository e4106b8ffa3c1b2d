"""Propagation: a proposal that copies one operator's placement along the edges of the graph.

FlexNet's ``FFModel::propagate`` makes a random walk from a random operator.  It draws each edge in proportion to the
size of its tensor and copies the configuration, so that neighbours have equal placements and need no transfers.  In
FlexNet only a data-parallel configuration can pass between operators of different rank.  Here a cut passes along an
edge if the tensor of the edge maps the cut dimensions of one operator to those of the other.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from topoplan.model.graph import OperatorGraph, Slices
from topoplan.model.placement import Placement
from topoplan.model.problem import PlacementSpace

__all__ = ["Propagation", "map_placement"]

#: Placements that are kept; then all are forgotten.
_ENTRIES = 20_000


class Propagation:
    """Propagation on one graph; `spread` and `block` each make one proposal."""

    def __init__(self, graph: OperatorGraph, space: PlacementSpace, continuation: float) -> None:
        self._space = space
        self._continuation = continuation
        self._count = len(graph.operators)
        #: For every operator: (neighbour, elements of the tensor between them, number of the way there).
        self._neighbours: list[list[tuple[int, float, int]]] = [[] for _ in range(self._count)]
        #: For every way: own dim -> neighbour's dim.
        self._dims: list[dict[int, int]] = []
        #: By way and placement: the same of the neighbour, None where it cannot have it.
        self._mapped: dict[tuple[int, bytes], Placement | None] = {}
        #: By what a way maps to what, and placement: the same, whether the neighbour can have it or not.
        self._shared: dict[tuple[int, bytes], Placement | None] = {}
        #: For every way: a number that is equal where dims and the neighbour's sizes are.
        self._forms: list[int] = []
        forms: dict[object, int] = {}
        for u, output_index, v, input_index in graph.edges.reshape(-1, 4).tolist():
            output, argument = graph.operators[u].outputs[output_index], graph.operators[v].inputs[input_index]
            pairs = [
                (a.dim, b.dim) for a, b in zip(output.axes, argument.axes, strict=True) if a.dim >= 0 and b.dim >= 0
            ]
            self._neighbours[u].append((v, float(output.elements), len(self._dims)))
            self._neighbours[v].append((u, float(output.elements), len(self._dims) + 1))
            ways = dict(pairs), {b: a for a, b in pairs}
            self._dims += ways
            for dims, end in zip(ways, (v, u), strict=True):
                form = (tuple(dims.items()), graph.operators[end].sizes)
                self._forms.append(forms.setdefault(form, len(forms)))
        #: Sums of these elements, from the first neighbour on.
        self._cumulative = [list(itertools.accumulate(n[1] for n in edges)) for edges in self._neighbours]
        self._sizes = [op.sizes for op in graph.operators]

    def spread(self, placements: Sequence[Placement], rng: np.random.Generator) -> dict[int, Placement]:
        """Return the placements that change; empty if no neighbour can have the placement."""
        position = int(rng.integers(self._count))
        visited = {position}
        changes: dict[int, Placement] = {}
        while True:
            edges, cumulative = self._neighbours[position], self._cumulative[position]
            if len(visited) > 1:
                edges = [n for n in edges if n[0] not in visited]
                cumulative = list(itertools.accumulate(n[1] for n in edges))
            if not edges:
                break
            neighbour, _, way = edges[
                min(bisect.bisect_right(cumulative, rng.random() * cumulative[-1]), len(edges) - 1)
            ]
            proposal = self._placement_at(neighbour, way, changes.get(position, placements[position]))
            if proposal is not None:
                changes[neighbour] = proposal
            visited.add(neighbour)
            position = neighbour
            if rng.random() >= self._continuation:
                break
        return {op: placement for op, placement in changes.items() if placement is not placements[op]}

    def block(self, op: int, placement: Placement, rng: np.random.Generator) -> dict[int, Placement]:
        """Return ``placement`` for ``op`` and for a connected block of operators around it that can have it.

        The size of the block is drawn log-uniformly from one operator to all of them, so that blocks of
        every scale are proposed.
        """
        size = round(self._count ** float(rng.random()))
        changes = {op: placement}
        frontier = [op]
        while frontier and len(changes) < size:
            member = frontier.pop(int(rng.integers(len(frontier))))
            for neighbour, _, way in self._neighbours[member]:
                if neighbour in changes or len(changes) >= size:
                    continue
                proposal = self._placement_at(neighbour, way, changes[member])
                if proposal is not None:
                    changes[neighbour] = proposal
                    frontier.append(neighbour)
        return changes

    def _placement_at(self, neighbour: int, way: int, placement: Placement) -> Placement | None:
        """Return the placement that a neighbour gets from an operator's, over a way; None where it cannot have it."""
        key = (way, placement.key)
        try:
            return self._mapped[key]
        except KeyError:
            if len(self._mapped) >= _ENTRIES:
                self._mapped.clear()
                self._shared.clear()
            mapped = self._map(neighbour, way, placement)
            if mapped is not None and mapped.degrees not in self._space.degrees(neighbour):
                mapped = None
            self._mapped[key] = mapped
            return mapped

    def _map(self, neighbour: int, way: int, placement: Placement) -> Placement | None:
        """Return a placement over a way, whether the neighbour can have it or not; None where no dimension fits."""
        form = (self._forms[way], placement.key)
        if form in self._shared:
            return self._shared[form]
        mapped = map_placement(placement, self._dims[way], self._sizes[neighbour])
        self._shared[form] = mapped = None if mapped is None else self._space.intern(mapped)
        return mapped


def map_placement(placement: Placement, dims: dict[int, int], sizes: tuple[int, ...]) -> Placement | None:
    """Return ``placement`` in a neighbour's dimensions, or None if a cut dimension has no counterpart.

    Args:
        placement: of the first operator.
        dims: its dimension -> the neighbour's dimension.
        sizes: of the neighbour's dimensions.
    """
    cut = [d for d, degree in enumerate(placement.degrees) if degree > 1]
    if any(d not in dims for d in cut):
        return None
    degrees = [1] * len(sizes)
    for d in cut:
        degree, size = placement.degrees[d], sizes[dims[d]]
        if isinstance(degree, Slices) and sum(degree.sizes) != size:
            degree = Slices(length * size // sum(degree.sizes) for length in degree.sizes)
        degrees[dims[d]] = degree
    if all(dims[a] < dims[b] for a, b in itertools.pairwise(cut)):
        return Placement(degrees, placement.devices)  # in the order of the parts, as they are
    grid = placement.devices.reshape([placement.degrees[d] for d in cut])
    order = sorted(range(len(cut)), key=lambda k: dims[cut[k]])
    return Placement(degrees, grid.transpose(order).ravel())

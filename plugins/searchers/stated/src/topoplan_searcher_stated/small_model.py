"""A model with one layer of each kind: what follows from it holds for all equal layers, however many there are.

    graph ─► units: the first layer with all before it, one layer of each kind, what comes behind the last layer
          └► the small graph: their operators; what a layer that is left out made comes from the one that stands for it

A pipeline stage is a sum of units.  The first layer is one of its own because it may read what is made otherwise than
what other layers read, such as terms of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import CostFunction, MicroBatch, OperatorGraph, PartCosts
from topoplan.arrays import F64, I32, I64, i32
from topoplan_engine.blocks import LayerNumbers, layer_numbers
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.optimizer import OptimizerCosts

__all__ = ["CostsOfSome", "SmallModel", "small_model"]


class SmallModel(NamedTuple):
    """A model with one layer of each kind.

    Attributes:
        graph: of the operators of all units.
        operators: (n,) number of each in the model.
        unit_of: (n,) unit of each.
        layers: (L,) unit of each layer of the model; the first one has what comes before, too.  A model without layers
            has one.
        behind: unit of what comes behind the last layer; -1 for nothing.
        place_of: (n_ops,) operator of the small graph that stands for each of the model.
    """

    graph: OperatorGraph
    operators: tuple[int, ...]
    unit_of: tuple[int, ...]
    layers: tuple[int, ...]
    behind: int
    place_of: tuple[int, ...]

    @property
    def places(self) -> I64:
        """(L or L + 1,) unit of each layer, and of what is behind the last one, if anything is."""
        return np.array([*self.layers, *([self.behind] if self.behind >= 0 else [])], dtype=np.int64)

    @property
    def n_units(self) -> int:
        """Number of units."""
        return max(self.unit_of) + 1


def small_model(
    graph: OperatorGraph, repeated: np.ndarray | None = None, layers: LayerNumbers | None = None
) -> SmallModel:
    """Return a model with one layer of each kind; layers are equal if all their operators are, in turn.

    Args:
        graph: the model.
        repeated: (n_ops,) whether operators run again, where only some layers do: those are another kind.
        layers: of the model, if they are others than `layer_numbers` says.
    """
    (numbers, n_layers, _), equal = layers or layer_numbers(graph), first_equal(graph)
    if repeated is not None:
        equal = tuple(2 * first + repeats for first, repeats in zip(equal, repeated.tolist(), strict=True))
    members: dict[int, list[int]] = {}
    for op, number in enumerate(numbers):
        members.setdefault(max(number, 0), []).append(op)
    stands_for: dict[object, int] = {}
    like = [0, *(stands_for.setdefault(tuple(equal[op] for op in members[k]), k) for k in range(1, n_layers))]
    chosen = sorted({*like, *([n_layers] if n_layers in members else [])})
    unit_of_layer = {number: unit for unit, number in enumerate(chosen)}
    source = {op: op for op in range(len(numbers))}
    for k, first in enumerate(like):
        source |= dict(zip(members[k], members[first], strict=True))
    operators = [op for number in chosen for op in members[number]]
    place = {op: position for position, op in enumerate(operators)}
    edges = [
        (place[source[u]], output, place[v], argument)
        for u, output, v, argument in graph.edges.reshape(-1, 4).tolist()
        if v in place
    ]
    return SmallModel(
        graph=attrs.evolve(graph, operators=tuple(graph.operators[op] for op in operators), edges=i32(edges)),
        operators=tuple(operators),
        unit_of=tuple(unit_of_layer[max(numbers[op], 0)] for op in operators),
        layers=tuple(unit_of_layer[first] for first in like),
        behind=unit_of_layer[n_layers] if n_layers and n_layers in members else -1,
        place_of=tuple(place[source[op]] for op in range(len(numbers))),
    )


class CostsOfSome(CostFunction):
    """Costs of some operators of a model, which have numbers of their own."""

    def __init__(self, costs: CostFunction, operators: Sequence[int]) -> None:
        self._costs, self._operators = costs, operators
        self.linear_in_samples, self.knows_training = costs.linear_in_samples, costs.knows_training

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """Return what the costs of the model say of optimizer steps."""
        if not isinstance(self._costs, OptimizerCosts):
            return None
        return self._costs.optimizer_seconds(self._operators[op], degrees, devices)

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say what the costs of the model say."""
        return self._costs.supports(self._operators[op], degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price what the costs of the model price."""
        return self._costs.price(self._operators[op], degrees, devices)

    def supports_micro_batch(self, op: int, degrees: tuple[int, ...], batch: MicroBatch) -> bool:
        """Say what the costs of the model say."""
        return self._costs.supports_micro_batch(self._operators[op], degrees, batch)

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Price what the costs of the model price."""
        return self._costs.price_micro_batch(self._operators[op], degrees, devices, batch)

"""What the operators of a stage cost at each of its places, with one column for all places that cost the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.graph import Operator
from topoplan.model.sharding import arguments
from topoplan.model.staged import Stage
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import StageGraph

__all__ = [
    "StageCosts",
    "moved_bytes",
    "of_one_place",
    "shared_passes",
    "slowdown_of",
    "summed_bytes",
    "with_gradients",
]


class StageCosts(NamedTuple):
    """What the operators of a stage cost, by their places in it; `updates` are those of `OptimizerCosts`, if any.

    Places that cost the same have one column: ``column`` (D,) is that of each place.
    """

    passes: Sequence[DeviceCosts]
    updates: Sequence[F64 | None]
    column: I64

    def merged(self) -> StageCosts:
        """Return the same costs with one column for all places that cost the same."""
        different = {id(price): price for price in self.passes}.values()
        rows = [row for price in different for row in price.rows()]
        rows += [
            row for update in {id(each): each for each in self.updates if each is not None}.values() for row in update
        ]
        uneven = [row for row in rows if (row != row[0]).any()]
        if not uneven:
            return self.at(np.zeros(1, np.int64))._replace(column=np.zeros(len(self.column), np.int64))
        first, column = distinct_columns(*(np.ascontiguousarray(row).view(np.int64) for row in uneven))
        return self.at(first)._replace(column=column)

    def at(self, places: I64) -> StageCosts:
        """Return the costs at some places, with a column for each of them."""
        column = self.column[places]
        spread: dict[int, DeviceCosts] = {}
        for price in self.passes:
            if id(price) not in spread:
                spread[id(price)] = price.at(column)
        updates = [None if each is None else each[:, column] for each in self.updates]
        return StageCosts([spread[id(price)] for price in self.passes], updates, np.arange(len(places)))


def of_one_place(passes: Sequence[DeviceCosts]) -> list[DeviceCosts]:
    """Return what operators cost at the first place; equal ones stay one object."""
    first: dict[int, DeviceCosts] = {}
    return [first.setdefault(id(price), price.at(np.zeros(1, np.int64))) for price in passes]


def moved_bytes(price: DeviceCosts) -> F64 | float:
    """(D,) bytes that a step of the optimizer moves: weights and gradients once, the state of the optimizer twice."""
    return 1.0 if price.states is None else np.array([1.0, 1.0, 2.0]) @ price.states


def slowdown_of(stages: Sequence[Stage], n_devices: int) -> F64:
    """(D,) share by which devices compute slower beside messages, that of their slowest stage; empty for none."""
    slowdown = np.zeros(n_devices if any(stage.slowdown for stage in stages) else 0)
    for stage in stages if len(slowdown) else ():
        slowdown[stage.mesh.devices] = np.maximum(slowdown[stage.mesh.devices], stage.slowdown)
    return slowdown


def shared_passes(stage: Stage, passes: Sequence[DeviceCosts]) -> list[DeviceCosts]:
    """Return what operators cost where places have more or less than a part of them (`Stage.shares`)."""
    priced: dict[tuple[int, int], DeviceCosts] = {}
    result = []
    for price, row in zip(passes, stage.share_of.tolist() or [-1] * len(passes), strict=True):
        if row >= 0 and (id(price), row) not in priced:
            priced[id(price), row] = _times(price, stage.shares[row])
        result.append(price if row < 0 else priced[id(price), row])
    return result


def summed_bytes(stage: StageGraph) -> int:
    """Return the bytes of the gradients that a device of a stage has once they are summed."""
    total = 0.0
    for op, operator in enumerate(stage.graph.operators):
        for argument in range(len(operator.inputs), len(operator.inputs) + len(operator.weights)):
            stored, tensor = stage.program.stored[op][argument], arguments(operator)[argument]
            shares = [stage.program.mesh[axis] for axis in stage.stage.zero.axes if not stored[axis].sliced]
            nbytes = tensor.elements * (stage.stage.gradient_bytes or tensor.itemsize)
            total += nbytes / (pieces(stage.program, stored) * math.prod(shares)) if stage.backward[op] else 0.0
    return round(total)


def _times(price: DeviceCosts, share: F64) -> DeviceCosts:
    """Return a price with a share of its seconds and of what comes and goes of its bytes."""
    stays = price.memory if price.kept is None else price.kept
    most = float(share.max())
    return price._replace(
        forward=price.forward * share,
        backward=price.backward * share,
        weight_gradient=price.weight_gradient * share,
        memory=stays + (price.memory - stays) * share,
        gradients=None if price.gradients is None else (price.gradients[0] * most, price.gradients[1] * most),
    )


def with_gradients(prices: Sequence[DeviceCosts], operators: Sequence[Operator], itemsize: int) -> list[DeviceCosts]:
    """Return prices whose gradients of weights have so many bytes a number; 0 for as many as weights."""
    changed: dict[tuple[int, int], DeviceCosts] = {}
    result = []
    for price, operator in zip(prices, operators, strict=True):
        if not itemsize or price.states is None or not operator.weights:
            result.append(price)
            continue
        key = id(price), operator.weights[0].itemsize
        if key not in changed:
            states = price.states * [[1.0], [itemsize / key[1]], [1.0]]
            more = (states - price.states).sum(axis=0)
            kept_bytes = None if price.kept is None else price.kept + more
            changed[key] = price._replace(states=states, kept=kept_bytes, memory=price.memory + more)
        result.append(changed[key])
    return result

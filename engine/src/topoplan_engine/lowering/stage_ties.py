"""Weights that stages share: which devices sum their gradients, each slice of a weight among those that store it.

Of several devices of a stage that store the same elements, the k-th one sums with the k-th ones of the other stages.
Where these devices share gradients (ZeRO's second level), each has the sum of its part alone, and sums no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.staged import Stage, StagedStrategy
from topoplan_engine.lowering.stage_links import slices_of
from topoplan_engine.sharding.stage_graphs import crossing_weights

__all__ = ["TiedGroup", "TiedMember", "tied_groups"]


class TiedMember(NamedTuple):
    """A device that stores a slice of a weight: operator and argument that use it, its stage, and its place there."""

    op: int
    argument: int
    stage: int
    place: int


class TiedGroup(NamedTuple):
    """Devices that store the same elements of a weight in different stages.

    Attributes:
        owner: the operator that has the weight.
        nbytes: of these elements, or of the part of them whose gradient a device has.
        members, devices: those who store them.
    """

    owner: int
    nbytes: int
    members: Sequence[TiedMember]
    devices: I32


def tied_groups(strategy: StagedStrategy, graph: OperatorGraph) -> list[TiedGroup]:
    """Return the groups that sum gradients of weights that several ranks use.

    Raises:
        TopoplanError: stages store a weight in different slices.
    """
    groups: list[TiedGroup] = []
    rank_of = strategy.rank_of
    for tied in crossing_weights(strategy, graph):
        operator = graph.operators[tied.owner]
        places = [(tied.owner, len(operator.inputs) + tied.weight)]
        ranks = {int(rank_of[tied.owner])}
        for op, argument in tied.users:
            if int(rank_of[op]) not in ranks:
                ranks.add(int(rank_of[op]))
                places.append((op, argument))
        weight = operator.weights[tied.weight]
        parts = min(_parts_of_gradients(strategy.stages[int(strategy.stage_of[op])]) for op, _ in places)
        sets = [_by_slice(_holders(strategy, graph, op, argument, weight.shape)) for op, argument in places]
        if any(each.keys() != sets[0].keys() for each in sets):
            names = [graph.operators[op].name for op, _ in places]
            raise TopoplanError(
                f"strategy: {' and '.join(names)} share a weight in different slices (slice it equally)"
            )
        for elements in sets[0]:
            rows = [each[elements] for each in sets]
            low, high = (np.array(half) for half in elements)
            nbytes = int((high - low).prod()) * (strategy.stages[0].gradient_bytes or weight.itemsize) // parts
            count = min(map(len, rows))
            for k in range(count):
                members = [
                    TiedMember(op, argument, int(strategy.stage_of[op]), place)
                    for (op, argument), row in zip(places, rows, strict=True)
                    for place in row[k * len(row) // count : (k + 1) * len(row) // count]
                ]
                devices = [strategy.stages[each.stage].mesh.devices[each.place] for each in members]
                groups.append(TiedGroup(tied.owner, nbytes, members, np.array(devices, dtype=np.int32)))
    return groups


def _parts_of_gradients(stage: Stage) -> int:
    """Return among how many devices of a stage gradients that are summed are shared."""
    return math.prod(stage.mesh.sizes[axis] for axis in stage.zero.axes) if stage.zero.level == 2 else 1


def _holders(strategy: StagedStrategy, graph: OperatorGraph, op: int, argument: int, shape: tuple[int, ...]) -> I64:
    """(2, D, axes) the slice of a weight, along the axes of ``shape``, that each device of a stage stores."""
    stage = strategy.stages[int(strategy.stage_of[op])]
    row = int(np.searchsorted(stage.operators, op))
    operator = graph.operators[op]
    tensor = (*operator.inputs, *operator.weights)[argument]
    slices = slices_of(tensor.shape, stage.program.stored[row][argument], stage.mesh.sizes)
    free, axes = list(range(len(tensor.shape))), []
    for size in shape:  # the same axes, perhaps in another order
        axes.append(next(k for k in free if tensor.shape[k] == size))
        free.remove(axes[-1])
    return slices[:, :, axes]


def _by_slice(slices: I64) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Return the places that store each slice, by where it begins and ends."""
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for place, (low, high) in enumerate(zip(slices[0].tolist(), slices[1].tolist(), strict=True)):
        places.setdefault((tuple(low), tuple(high)), []).append(place)
    return places

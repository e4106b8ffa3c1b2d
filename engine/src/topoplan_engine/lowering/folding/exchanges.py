"""Which communicators each stage uses, and with which collectives, before tasks are written for any device.

The tasks of a stage are written for one place of its mesh (`topoplan_engine.lowering.one_place`), and say what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from topoplan.model.pass_order import Pass
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.one_place import OnePlace
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_tasks import StageTasks, Variant
from topoplan_engine.lowering.task_columns import Weights, shares_of
from topoplan_engine.sharding.stage_graphs import StageGraph

__all__ = ["Exchanges", "Sent", "exchanges_of"]


def exchanges_of(
    strategy: StagedStrategy, stages: Sequence[StageGraph], costs: Sequence[StageCosts], *, one_task: bool = False
) -> list[Exchanges]:
    """Return what each stage sends inside of itself; ``one_task``: see `TaskColumns`."""
    exchanges = []
    for number, stage in enumerate(stages):
        rows = strategy.order.row_of[:, number]
        separate = frozenset(kind for kind in (Pass.RECOMPUTE, Pass.WEIGHTS) if (rows[kind] >= 0).any())
        place = OnePlace(stage.stage.mesh.sizes)
        tasks = StageTasks(stage, costs[number], Variant(True, True, separate), place, place)
        exchanges.append(Exchanges.of(tasks, place, one_task))
    return exchanges


class Sent(NamedTuple):
    """A collective of a communicator: its kind, bytes of the batch and what divides these, and whether it is sent once.

    Those that are not are sent in each micro-batch, with its share.
    """

    kind: Collective
    size: int
    divisor: int
    once: bool

    def sizes(self, micro_batches: int) -> list[int]:
        """Return the different sizes of its tasks."""
        shares = np.array([-1]) if self.once else np.arange(micro_batches)
        sizes: list[int] = np.unique(
            shares_of(np.full(len(shares), self.size), shares, micro_batches, self.divisor)
        ).tolist()
        return sizes


class Exchanges(NamedTuple):
    """What a stage sends inside of itself.

    Attributes:
        collectives: axes of a communicator -> its different collectives.
        written_out: axes of communicators whose all-to-alls, or some of them, are transfers -> how many of a
            micro-batch are.
        uneven: those of them whose members send different numbers of bytes -> these, of all such all-to-alls.
        hops: axes along which each device sends to the next one.
    """

    collectives: Mapping[tuple[int, ...], set[Sent]]
    written_out: Mapping[tuple[int, ...], int]
    uneven: Mapping[tuple[int, ...], Sequence[Weights]]
    hops: tuple[int, ...]

    @classmethod
    def of(cls, tasks: StageTasks, place: OnePlace, one_task: bool) -> Exchanges:
        """Return what the tasks of one place send."""
        columns = tasks.columns()
        of_groups = columns["kind"] == TaskKind.COLLECTIVE
        names = ("axes", "collective", "size", "divisor", "micro_batch", "weighted")
        collectives: dict[tuple[int, ...], set[Sent]] = {}
        written_out: dict[tuple[int, ...], int] = {}
        rows = zip(*(columns[name][of_groups].tolist() for name in names), strict=True)
        for mask, kind, size, divisor, micro_batch, weighted in rows:
            axes = place.axes_of(mask)
            sent = collectives.setdefault(axes, set())
            if kind == Collective.ALL_TO_ALL and (weighted or not one_task):
                written_out[axes] = written_out.get(axes, 0) + 1
            elif kind != Collective.JOIN:
                members = math.prod(place.sizes[axis] for axis in axes) if kind == Collective.ALL_TO_ALL else 1
                sent.add(Sent(Collective(kind), size * members, divisor, micro_batch < 0))
        hops = dict.fromkeys(columns["axes"][columns["kind"] == TaskKind.TRANSFER].tolist())
        uneven = {axes: tuple(several.values()) for axes, several in place.weights.items()}
        return cls(collectives, written_out, uneven, tuple(axis for mask in hops for axis in place.axes_of(mask)))

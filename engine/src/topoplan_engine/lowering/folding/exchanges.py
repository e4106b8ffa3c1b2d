"""Which communicators each stage uses, and with which collectives, before tasks are written for any device.

The tasks of a stage are written for one place of its mesh (`topoplan_engine.lowering.places.Places`), whose groups add
no collectives and list what they are asked to add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I64
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.places import Communicator
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_tasks import StageTasks, Variant
from topoplan_engine.lowering.task_columns import TaskColumns, Weights, shares_of
from topoplan_engine.sharding.mesh import mesh_groups
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
        place = _OnePlace(stage.stage.mesh, one_task=one_task)
        StageTasks(stage, costs[number], Variant(True, True, separate), place, place)
        uneven = {axes: tuple(weights.values()) for axes, weights in place.uneven.items()}
        exchanges.append(Exchanges(place.noted, place.written_out, uneven, tuple(place.hops)))
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


class _Noting(NamedTuple):
    size: int
    axes: tuple[int, ...]
    place: _OnePlace

    def add(
        self,
        tasks: TaskColumns,
        kind: Collective,
        weights: Sequence[Weights] = (),
        **columns: Any,
    ) -> tuple[I64, I64]:
        task = self.join(tasks)
        if kind is Collective.ALL_TO_ALL and (weights or not self.place.one_task):
            self.place.written_out[self.axes] = self.place.written_out.get(self.axes, 0) + 1
            for each in weights:
                self.place.uneven.setdefault(self.axes, {})[each.values.tobytes(), each.end] = each
        elif kind is Collective.ALL_TO_ALL:
            self._note(kind, columns["size"] * self.size, columns)
        else:
            self._note(kind, columns["size"], columns)
        return task, task

    def _note(self, kind: Collective, size: int, columns: Mapping[str, Any]) -> None:
        once = columns["micro_batch"] < 0
        self.place.noted[self.axes].add(Sent(kind, size, columns["divisor"], once))

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        self.place.noted.setdefault(self.axes, set())
        return tasks.add(1)


class _OnePlace:
    """The first place of a mesh.

    Attributes:
        noted, written_out, uneven, hops: what was asked for.
        one_task: see `TaskColumns`.
    """

    columns: Mapping[str, Any] = {}

    def __init__(self, mesh: DeviceMesh, *, one_task: bool) -> None:
        self._mesh, self.groups, self.one_task = mesh, TaskColumns(), one_task
        self.devices, self.rows = mesh.devices[:1], np.zeros(1, np.int64)
        self.noted: dict[tuple[int, ...], set[Sent]] = {}
        self.written_out: dict[tuple[int, ...], int] = {}
        self.uneven: dict[tuple[int, ...], dict[object, Weights]] = {}
        self.hops: dict[int, None] = {}

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        return _Noting(mesh_groups(self._mesh.sizes, axes).shape[1], axes, self)

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        self.hops[axis] = None
        return {}, self.rows

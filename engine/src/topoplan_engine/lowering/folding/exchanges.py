"""Which communicators each stage uses: its tasks are written for one place, which takes note of what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I64
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.places import Communicator, Places, Sends, TiedSum
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_tasks import StageTasks, Variant
from topoplan_engine.lowering.task_columns import TaskColumns
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.sharding.stage_graphs import Link, StageGraph

__all__ = ["Exchanges", "exchanges_of"]


def exchanges_of(
    strategy: StagedStrategy, stages: Sequence[StageGraph], costs: Sequence[StageCosts]
) -> list[Exchanges]:
    """Return what each stage sends inside of itself."""
    exchanges = []
    for number, stage in enumerate(stages):
        rows = strategy.order.row_of[:, number]
        separate = frozenset(kind for kind in (Pass.RECOMPUTE, Pass.WEIGHTS) if (rows[kind] >= 0).any())
        layout = _OnePlace(stage.stage.mesh)
        StageTasks(stage, costs[number], Variant(True, True, separate), layout.places(0), layout)
        exchanges.append(Exchanges(layout.noted, tuple(layout.hops)))
    return exchanges


class Exchanges(NamedTuple):
    """What a stage sends inside of itself.

    Attributes:
        collectives: axes of a communicator -> whether there is an all-to-all among its collectives.
        hops: axes along which each device sends to the next one.
    """

    collectives: Mapping[tuple[int, ...], bool]
    hops: tuple[int, ...]


class _Noting(NamedTuple):
    size: int
    axes: tuple[int, ...]
    noted: dict[tuple[int, ...], bool]

    def add(self, tasks: TaskColumns, kind: Collective, **columns: Any) -> tuple[I64, I64]:
        if kind is Collective.ALL_TO_ALL:
            self.noted[self.axes] = True
        task = self.join(tasks)
        return task, task

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        self.noted.setdefault(self.axes, False)
        return tasks.add(1)


class _OnePlace:
    """The first place of a mesh.

    Attributes:
        noted, hops: what was asked for.
    """

    columns: Mapping[str, Any] = {}

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self.groups = mesh, TaskColumns()
        self.devices, self.rows = mesh.devices[:1], np.zeros(1, np.int64)
        self.order = self.rows
        self.noted: dict[tuple[int, ...], bool] = {}
        self.hops: dict[int, None] = {}

    def places(self, stage: int) -> Places:
        return self

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        return _Noting(mesh_groups(self._mesh.sizes, axes).shape[1], axes, self.noted)

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        self.hops[axis] = None
        return {}, self.rows

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        raise NotImplementedError

    def sends(self, link: Link, gradient: bool) -> Sends:
        raise NotImplementedError

    def tied_sums(self) -> Sequence[TiedSum]:
        raise NotImplementedError

    def everyone(self) -> Mapping[str, Any]:
        raise NotImplementedError

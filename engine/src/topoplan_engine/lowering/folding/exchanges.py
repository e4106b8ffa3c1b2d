"""Which communicators each stage uses: its tasks are written for one place, which takes note of what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.places import Communicator, CopySums, Places, Sends, TiedSum
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_tasks import StageTasks, Variant
from topoplan_engine.lowering.task_columns import TaskColumns, shares_of
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.sharding.stage_graphs import Link, StageGraph

__all__ = ["Exchanges", "Sent", "Weights", "exchanges_of"]


def exchanges_of(
    strategy: StagedStrategy, stages: Sequence[StageGraph], costs: Sequence[StageCosts], *, one_task: bool = False
) -> list[Exchanges]:
    """Return what each stage sends inside of itself; ``one_task``: see `TaskColumns`."""
    exchanges = []
    for number, stage in enumerate(stages):
        rows = strategy.order.row_of[:, number]
        separate = frozenset(kind for kind in (Pass.RECOMPUTE, Pass.WEIGHTS) if (rows[kind] >= 0).any())
        layout = _OnePlace(stage.stage.mesh, one_task=one_task)
        StageTasks(stage, costs[number], Variant(True, True, separate), layout.places(0), layout)
        uneven = {axes: tuple(weights.values()) for axes, weights in layout.uneven.items()}
        exchanges.append(Exchanges(layout.noted, layout.written_out, uneven, tuple(layout.hops)))
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


class Weights(NamedTuple):
    """How many times the bytes of an even all-to-all members send each other.

    Attributes:
        values: (D,) of the sender or the receiver at each place of the mesh, or (n, n) of each member to each other.
        end: 0 for senders, 1 for receivers, 2 for pairs.
    """

    values: F64
    end: int

    def of_pairs(self, groups: I64, sender: I64, receiver: I64) -> F64:
        """Return the weights of messages between members of (G, n) groups of places, members by their numbers there."""
        if self.end == 2:
            size = groups.shape[1]
            weights: F64 = self.values[sender % size, receiver % size]
        else:
            weights = self.values[groups.ravel()[(sender, receiver)[self.end]]]
        return weights

    def of_members(self, groups: I64) -> I64:
        """(G, n) a number for each member: those with the same one send and get as much, and on equal terms."""
        if self.end == 2:
            columns = np.concatenate([self.values, self.values.T], axis=1)
            number = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
            return np.broadcast_to(number, groups.shape)
        return np.unique(self.values, return_inverse=True)[1].ravel()[groups]


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
        *,
        shares: F64 | None = None,
        by_receiver: bool = True,
        copies: F64 | None = None,
        **columns: Any,
    ) -> tuple[I64, I64]:
        task = self.join(tasks)
        if kind is Collective.ALL_TO_ALL and not (self.place.one_task and shares is None and copies is None):
            self.place.written_out[self.axes] = self.place.written_out.get(self.axes, 0) + 1
            weights = [Weights(shares, int(by_receiver))] if shares is not None else []
            weights += [Weights(copies, 2)] if copies is not None else []
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
        self.order = self.rows
        self.noted: dict[tuple[int, ...], set[Sent]] = {}
        self.written_out: dict[tuple[int, ...], int] = {}
        self.uneven: dict[tuple[int, ...], dict[object, Weights]] = {}
        self.hops: dict[int, None] = {}

    def places(self, stage: int) -> Places:
        return self

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        return _Noting(mesh_groups(self._mesh.sizes, axes).shape[1], axes, self)

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        self.hops[axis] = None
        return {}, self.rows

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        raise NotImplementedError

    def sends(self, link: Link, gradient: bool) -> Sends:
        raise NotImplementedError

    def tied_sums(self) -> Sequence[TiedSum]:
        raise NotImplementedError

    def copy_sums(self, stages: tuple[int, ...], devices: I32) -> CopySums:
        raise NotImplementedError

    def everyone(self) -> Mapping[str, Any]:
        raise NotImplementedError

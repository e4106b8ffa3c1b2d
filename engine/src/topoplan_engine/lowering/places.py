"""The places of stages that tasks are written for: all devices (`WholeLayout`), or one of each class (`folding`).

`topoplan_engine.lowering.stage_tasks` and `topoplan_engine.lowering.staged` write a task for each place of a stage, a
collective for each group of a communicator and a transfer for each row of `Sends`.  Which places and groups there are
is what a `Layout` says; all else is the same for the whole iteration and for a folded one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs
import numpy as np

from topoplan.arrays import I32, I64, digest
from topoplan.model.graph import OperatorGraph
from topoplan.model.mesh import DeviceMesh
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.stage_links import routes_between
from topoplan_engine.lowering.stage_ties import TiedGroup, tied_groups
from topoplan_engine.lowering.task_columns import TaskColumns
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.sharding.stage_graphs import Link

__all__ = [
    "Communicator",
    "CopySums",
    "Layout",
    "OrderedPlaces",
    "Places",
    "Sends",
    "TaskLayout",
    "TiedSum",
    "WholeLayout",
    "copy_groups",
    "devices_of",
    "neighbours",
    "ordered_groups",
]


class Communicator(Protocol):
    """The groups of a stage along some axes of its mesh, as far as tasks are written for them."""

    @property
    def size(self) -> int:
        """Members of each group."""

    def add(self, tasks: TaskColumns, kind: Collective, **columns: Any) -> tuple[I64, I64]:
        """Add a collective in each group; return the first and the last task at each place.

        An all-to-all may have ``weights`` (`TaskColumns.collective`).
        """

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        """Add a join in each group; return that at each place."""


class Places(Protocol):
    """The places of a stage that tasks are written for; P of them.

    Attributes:
        devices: (P,) the device at each.
        rows: (P,) the place of each in the mesh.
    """

    devices: I32
    rows: I64

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        """Return the groups along some axes."""

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        """Return columns of transfers from each place to the next one along an axis, and (P,) who sends to each."""


class OrderedPlaces(Places, Protocol):
    """Places whose tasks are tied to those of other stages.

    Attributes:
        order: (P,) numbers of places, in an order of devices that all stages of a rank share.
    """

    order: I64

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        """Return a key of the groups along some axes, and the number of a place in each.

        Stages of one rank with equal keys have equal groups, in the same order.
        """


class Sends(NamedTuple):
    """What a tensor sends from a stage to another one; n rows.

    Attributes:
        source, target: (n,) numbers of places.
        src, dst: (n,) their devices.
        nbytes: (n,) of the batch.
        local: (n,) whether both are one device, so that nothing is sent.
        columns: further columns of the transfers, those that are not local.
    """

    source: I64
    target: I64
    src: I32 | I64
    dst: I32 | I64
    nbytes: I64
    local: np.ndarray
    columns: Mapping[str, Any]


class TiedSum(NamedTuple):
    """One sum of the gradients of a weight that stages share.

    Attributes:
        group: what is summed.
        numbers: the place of each member in its stage.
        columns: of the task: its group, and further ones.
    """

    group: TiedGroup
    numbers: Sequence[int]
    columns: Mapping[str, Any]


class CopySums(NamedTuple):
    """The sums of the gradients of stages that are the same in several copies of the model; n of them.

    Attributes:
        n_sums: n.
        numbers: for each of the stages, (P,) the number of the sum at each of its places.
        columns: of the tasks: their groups, and further ones.
    """

    n_sums: int
    numbers: Sequence[I64]
    columns: Mapping[str, Any]


class TaskLayout(Protocol):
    """What tasks inside of stages have in common.

    Attributes:
        columns: further columns of all tasks, and what they have where nothing is said.
        groups: has the groups of collectives.
    """

    columns: Mapping[str, Any]
    groups: TaskColumns


class Layout(TaskLayout, Protocol):
    """Which places tasks are written for."""

    def places(self, stage: int) -> OrderedPlaces:
        """Return the places of a stage."""

    def sends(self, link: Link, gradient: bool) -> Sends:
        """Return what is sent of a tensor, or of its gradient."""

    def tied_sums(self) -> Sequence[TiedSum]:
        """Return the sums of weights that stages share."""

    def copy_sums(self, stages: tuple[int, ...], devices: I32) -> CopySums:
        """Return the sums of stages that are the same in several copies, among (n, copies) devices."""

    def everyone(self) -> Mapping[str, Any]:
        """Return the columns of a collective of all devices: its group, and further ones."""


@attrs.frozen
class _WholeCommunicator:
    mesh: DeviceMesh
    members: I64

    @property
    def size(self) -> int:
        return int(self.members.shape[1])

    def add(self, tasks: TaskColumns, kind: Collective, **columns: Any) -> tuple[I64, I64]:
        return tasks.collective(kind, self.members, self.mesh.devices, **columns)

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        joins = tasks.joins(self.mesh.devices[self.members[:, :1]], **columns)
        numbers = np.empty(self.members.size, dtype=np.int64)
        numbers[self.members] = joins[:, None]
        return numbers


class _WholePlaces:
    """All places of a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self.devices = mesh, mesh.devices
        self.rows = np.arange(mesh.n_devices)
        self.order = np.argsort(mesh.devices)

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        return _WholeCommunicator(self._mesh, mesh_groups(self._mesh.sizes, axes))

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        after, before = neighbours(self._mesh, axis)
        return {"src": self.devices, "dst": self.devices[after]}, before

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        key, groups = ordered_groups(self._mesh, axes)
        return key, groups[:, 0]


def ordered_groups(mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[bytes, I64]:
    """Return a key of the sets of devices along some axes, and their places, in an order of the devices."""
    members = mesh_groups(mesh.sizes, axes)
    devices = np.sort(mesh.devices[members], axis=1)
    order = np.argsort(devices[:, 0])
    return digest([devices[order]]), members[order]


def neighbours(mesh: DeviceMesh, axis: int) -> tuple[I64, I64]:
    """Return (D,) the next place along an axis, behind the last one the first, and the one before."""
    places = np.arange(mesh.n_devices).reshape(mesh.sizes)
    return np.roll(places, -1, axis).ravel(), np.roll(places, 1, axis).ravel()


class WholeLayout:
    """Tasks for all devices."""

    columns: Mapping[str, Any] = {}

    def __init__(self, strategy: StagedStrategy, graph: OperatorGraph, *, one_task: bool = False) -> None:
        self._strategy, self._graph = strategy, graph
        self.groups = TaskColumns(one_task=one_task)

    def places(self, stage: int) -> OrderedPlaces:
        """Return the places of a stage."""
        return _WholePlaces(self._strategy.stages[stage].mesh)

    def sends(self, link: Link, gradient: bool) -> Sends:
        """Return what is sent of a tensor, or of its gradient."""
        tensor = self._graph.operators[link.op].outputs[link.output]
        sent, arrives = (self._strategy.stages[number].mesh for number in (link.source, link.target))
        ends = (link.arrives, arrives, link.sent, sent) if gradient else (link.sent, sent, link.arrives, arrives)
        routes = routes_between(tensor, *ends)
        src, dst = ends[1].devices[routes.source], ends[3].devices[routes.target]
        return Sends(routes.source, routes.target, src, dst, routes.nbytes, routes.local, {})

    def tied_sums(self) -> Sequence[TiedSum]:
        """Return the sums of weights that stages share."""
        sums = []
        for group in tied_groups(self._strategy, self._graph):
            (number,) = self.groups.numbers(group.devices[None])
            sums.append(TiedSum(group, [member.place for member in group.members], {"group": number}))
        return sums

    def copy_sums(self, stages: tuple[int, ...], devices: I32) -> CopySums:
        """Return a sum for each place of the stages."""
        return CopySums(len(devices), [np.arange(len(devices))] * len(stages), {"group": self.groups.numbers(devices)})

    def everyone(self) -> Mapping[str, Any]:
        """Return the group of all devices."""
        (number,) = self.groups.numbers(devices_of(self._strategy)[None])
        return {"group": number}


def copy_groups(strategy: StagedStrategy) -> list[tuple[tuple[int, ...], I32]]:
    """Return the stages that are the same in all copies of the model, and who sums their gradients.

    The latter are (places, copies) the devices at each place of these stages, ascending.  There is nothing to sum for
    one copy.
    """
    groups: list[tuple[tuple[int, ...], I32]] = []
    for several in np.unique(strategy.stage_of_copies, axis=1).T.tolist() if strategy.copy_of.any() else ():
        devices = np.column_stack([strategy.stages[number].mesh.devices for number in several])
        groups.append((tuple(several), np.sort(devices, axis=1)))
    return groups


def devices_of(strategy: StagedStrategy) -> I32:
    """Return the devices of all stages, ascending."""
    return np.unique(np.concatenate([stage.mesh.devices for stage in strategy.stages])).astype(np.int32)

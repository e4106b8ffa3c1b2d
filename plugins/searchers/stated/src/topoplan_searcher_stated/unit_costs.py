"""What the units of a model cost on a mesh: the tasks of their passes on one device, and bytes, as they are lowered.

    small model ─► a stage for each unit ─► `topoplan_engine.lowering.staged`: tasks and bytes of each stage
                   └► tasks of one device, pass by pass ─► seconds, given what collectives take

All devices of a mesh do the same, so that one stands for all.  Devices that share nothing but sums of gradients are
two, however many a plan has: what they send follows from the links of the plan (`Tasks.run`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan import PassOrder, Problem, StagedStrategy
from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.places import Sends, TiedSum
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_memory import StageBytes
from topoplan_engine.lowering.stage_tasks import END, SUMS, StageTasks, Variant
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.lowering.task_columns import TaskColumns
from topoplan_engine.pass_orders import alternating_order
from topoplan_engine.recomputation import regions_of
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import Link, StageGraph
from topoplan_searcher_stated.construct import MeshRules, stages_on
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import CostsOfSome, SmallModel

__all__ = ["MeshCosts", "Ran", "Tasks", "UnitMesh", "UnitTasks", "chained"]

#: Seconds of a collective: its kind, bytes, and the axes of the mesh along which its members lie, a bit for each.
SecondsOf = Callable[[Collective, float, int], float]


class UnitMesh(NamedTuple):
    """On which mesh units run, and how.

    Attributes:
        rules: how operators of the model are cut.
        sizes: of the mesh; the axis of data has two devices at most.
        micro_batches: of the batch on this mesh.
        options: what the plan says beside degrees.
        splits: whether gradients of weights are a pass of their own.
        apart: whether units are on different ranks, so that weights which several use have copies.
    """

    rules: MeshRules
    sizes: tuple[int, ...]
    micro_batches: int
    options: Settings
    splits: bool
    apart: bool

    @property
    def key(self) -> object:
        """What tells it from other meshes."""
        return (id(self.rules), *self[1:])


class Ran(NamedTuple):
    """Seconds of the tasks of a pass.

    Attributes:
        path: of the longest chain of them, where exchanges of weights and their gradients take no time.
        ahead: of what comes first and waits for nothing from other stages: operators that run again.
        computing: of those that compute.
        weights: of exchanges of weights and their gradients, one after the other.
        gathers: of those that gather weights.
        summed: until the last of these ends.
    """

    path: float
    ahead: float
    computing: float
    weights: float
    gathers: float
    summed: float


class Tasks(NamedTuple):
    """The tasks of a pass on one device, in the order of their streams.

    Attributes:
        seconds: (n,) of computing; 0 for exchanges.
        collective: (n,) kind of each exchange; -1 for computing, and for what takes no time.
        nbytes: (n,) of the tensor of each group.
        axes: (n,) along which members lie.
        parameter: (n,) whether it is an exchange of weights or their gradients.
        leading: how many come before the first one of the backward pass itself.
        before: (n,) tasks of the pass that each one waits for.
    """

    seconds: F64
    collective: I64
    nbytes: F64
    axes: I64
    parameter: np.ndarray
    leading: int
    before: tuple[tuple[int, ...], ...]

    def part(self, rows: slice, leading: int, before: tuple[tuple[int, ...], ...]) -> Tasks:
        """Return some of the tasks, which wait for tasks of this part by their numbers in it."""
        return Tasks(
            seconds=self.seconds[rows],
            collective=self.collective[rows],
            nbytes=self.nbytes[rows],
            axes=self.axes[rows],
            parameter=self.parameter[rows],
            leading=leading,
            before=before,
        )

    def run(self, seconds_of: SecondsOf) -> Ran:
        """Return what the pass takes."""
        durations, free = self.seconds.tolist(), []
        weights = gathers = 0.0
        for task in np.flatnonzero(self.collective >= 0).tolist():
            nbytes, axes = float(self.nbytes[task]), int(self.axes[task])
            durations[task] = seconds_of(Collective(int(self.collective[task])), nbytes, axes)
            if self.parameter[task]:
                weights += durations[task]
                gathers += durations[task] * (self.collective[task] == Collective.ALL_GATHER)
                free.append(task)
        with_weights = self._ends(durations) if free else []
        summed = max((with_weights[task] for task in free), default=0.0)
        for task in free:
            durations[task] = 0.0
        ends = self._ends(durations)
        ahead = max(ends[: self.leading], default=0.0)
        return Ran(max(ends, default=0.0), ahead, float(self.seconds.sum()), weights, gathers, summed)

    def _ends(self, durations: Sequence[float]) -> list[float]:
        ends = [0.0] * len(durations)
        for task, needs in enumerate(self.before):
            start = 0.0
            for each in needs:
                start = max(start, ends[each])
            ends[task] = start + durations[task]
        return ends


class UnitTasks(NamedTuple):
    """The tasks of a unit on a mesh.

    Attributes:
        passes: `Pass`, `SUMS` or `END` -> its tasks, in the last micro-batch.
        sent: bytes that each device sends to the next unit for a micro-batch.
    """

    passes: dict[int, Tasks]
    sent: float


class _Lowered(NamedTuple):
    """The stages of a mesh: graph, costs and bytes of each."""

    graphs: Sequence[StageGraph]
    costs: Sequence[StageCosts]
    bytes: tuple[StageBytes, ...]


class MeshCosts:
    """Costs of the units of a model on meshes; each mesh is lowered once.

    Args:
        problem: that is searched.
        small: its model.
    """

    def __init__(self, problem: Problem, small: SmallModel) -> None:
        self._graph, self._small = problem.graph, small
        self._lowering = StagedLowering(small.graph, problem.cluster, CostsOfSome(problem.costs, small.operators))
        self._lowered_on: dict[object, _Lowered] = {}
        self._tasks_on: dict[object, tuple[UnitTasks, ...]] = {}

    def bytes(self, mesh: UnitMesh) -> tuple[StageBytes, ...]:
        """Return the bytes of each unit on a mesh.

        Raises:
            TopoplanError: an operator cannot be cut or priced so.
        """
        return self._lowered(mesh).bytes

    def tasks(self, mesh: UnitMesh) -> tuple[UnitTasks, ...]:
        """Return the tasks of each unit on a mesh; see `bytes`."""
        key = mesh.key
        if key not in self._tasks_on:
            lowered = self._lowered(mesh)
            separate = frozenset([Pass.WEIGHTS] if mesh.splits else ())
            self._tasks_on[key] = tuple(
                UnitTasks(_passes(graph, cost, separate, mesh), _sent(graph, mesh.micro_batches))
                for graph, cost in zip(lowered.graphs, lowered.costs, strict=True)
            )
        return self._tasks_on[key]

    def _lowered(self, mesh: UnitMesh) -> _Lowered:
        key = mesh.key
        if key not in self._lowered_on:
            graphs, costs, nbytes = self._lowering.parts(self._strategy(mesh))
            self._lowered_on[key] = _Lowered(graphs, costs, tuple(nbytes))
        return self._lowered_on[key]

    def _strategy(self, mesh: UnitMesh) -> StagedStrategy:
        """Return a pipeline that has each unit once."""
        small, options = self._small, mesh.options
        rules = mesh.rules.of_some(small.operators)
        devices = np.arange(int(np.prod(mesh.sizes)), dtype=np.int32)
        regions = regions_of(options.recompute, self._graph)[list(small.operators)]
        stages = stages_on(small.graph, rules, mesh.sizes, options, small.unit_of, [devices] * small.n_units, regions)
        order = _in_turn(small.n_units, mesh)
        return StagedStrategy.of(small.graph, stages, order, mesh.micro_batches, options.clip)


def _in_turn(n_units: int, mesh: UnitMesh) -> PassOrder:
    """Return an order that has each pass of each unit once: on a rank for each, or on one rank."""
    ranks = n_units if mesh.apart else 1
    late = [0] * ranks if mesh.splits else None
    return alternating_order("units", [n_units] * ranks, 1, n_units // ranks, late)


def _sent(stage: StageGraph, micro_batches: int) -> float:
    """Return the bytes of a micro-batch that each device sends to other stages; what several want counts once."""
    total = 0.0
    for links in stage.sends.values():
        tensor = stage.graph.operators[next(op for op, each in stage.sends.items() if each == links)].outputs[0]
        total += tensor.nbytes / pieces(stage.program, links[0].sent) / micro_batches
    return total


class _Group(NamedTuple):
    """A communicator of which one device's part is written; see `topoplan_engine.lowering.places.Communicator`."""

    size: int
    axes: int

    def add(
        self,
        tasks: TaskColumns,
        kind: Collective,
        *,
        size: int = 0,
        shares: F64 | None = None,
        by_receiver: bool = True,
        **columns: Any,
    ) -> tuple[I64, I64]:
        """Add the collective: that of the device that has most of it."""
        most = 1.0 if shares is None else float(shares.max())
        columns |= {"size": round(size * most), "axes": self.axes}
        task = tasks.add(1, kind=TaskKind.COLLECTIVE, collective=kind, **columns)
        return task, task

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        """Add a join."""
        return tasks.add(1, kind=TaskKind.COLLECTIVE, collective=Collective.JOIN, **columns)


class _OnePlace:
    """One place of a stage stands for all; see `topoplan_engine.lowering.places.Places`."""

    devices: I32 = np.zeros(1, dtype=np.int32)
    rows: I64 = np.zeros(1, dtype=np.int64)
    order: I64 = np.zeros(1, dtype=np.int64)

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes

    def communicator(self, axes: tuple[int, ...]) -> _Group:
        """Return the groups along some axes."""
        return _Group(math.prod(self._sizes[axis] for axis in axes), sum(1 << axis for axis in axes))

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        """Return columns of a hop to the next place along an axis, and the place that sends."""
        return {"axes": 1 << axis, "src": 0, "dst": 0}, self.rows

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        """Return a key of the groups along some axes, and the place in them."""
        return bytes(axes), self.rows


class _OneDevice:
    """Tasks of one device; see `topoplan_engine.lowering.places.Layout`."""

    columns: Mapping[str, Any] = {"axes": 0}

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.groups, self._place = TaskColumns(), _OnePlace(sizes)

    def places(self, stage: int) -> _OnePlace:
        """Return the place of a stage."""
        return self._place

    def sends(self, link: Link, gradient: bool) -> Sends:
        """Refuse: what stages send is not written."""
        raise NotImplementedError

    def tied_sums(self) -> Sequence[TiedSum]:
        """Return nothing: sums of weights that stages share are not written."""
        return ()

    def everyone(self) -> Mapping[str, Any]:
        """Return the columns of a collective of all devices."""
        return {}


def _passes(stage: StageGraph, costs: StageCosts, separate: frozenset[Pass], mesh: UnitMesh) -> dict[int, Tasks]:
    """Return the tasks of each pass on one device, in the last micro-batch."""
    layout = _OneDevice(mesh.sizes)
    written = StageTasks(stage, costs, Variant(False, True, separate), layout.places(0), layout)
    columns, (tails, heads) = written.columns(), written.ends()
    before: list[list[int]] = [[] for _ in range(written.n_tasks)]
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        before[head].append(tail)
    rows, kinds = _columns(columns, mesh), columns["kind"]
    passes: dict[int, Tasks] = {}
    first = 0
    for kind in (Pass.FORWARD, Pass.BACKWARD, *separate, SUMS, END):
        part = written.parts.get(kind)
        streams = [] if part is None else [*([part.computed] if part.computed else ()), *part.exchanged.values()]
        end = max([first, *(int(last[0]) + 1 for _, last in streams)])
        waits = tuple(tuple(each - first for each in before[task] if each >= first) for task in range(first, end))
        backward = np.flatnonzero(kinds[first:end] == TaskKind.BACKWARD)
        leading = int(backward[0]) if len(backward) and kind == Pass.BACKWARD else 0
        passes[int(kind)] = rows.part(slice(first, end), leading, waits)
        first = end
    return passes


def _columns(columns: Mapping[str, np.ndarray], mesh: UnitMesh) -> Tasks:
    """Return all tasks, without what they wait for."""
    kind, collective, axes = columns["kind"], columns["collective"], columns["axes"].astype(np.int64)
    members = np.ones(1 << len(mesh.sizes))
    for code in range(len(members)):
        members[code] = math.prod(size for axis, size in enumerate(mesh.sizes) if code >> axis & 1)
    hops = kind == TaskKind.TRANSFER  # each is a part of an all-gather
    collective = np.where(hops, int(Collective.ALL_GATHER), np.where(kind == TaskKind.COLLECTIVE, collective, -1))
    collective = np.where((collective == Collective.JOIN) | (members[axes] < 2), -1, collective).astype(np.int64)
    parameter = (columns["micro_batch"] < 0) & (collective >= 0)
    nbytes = columns["size"] / np.where(parameter, 1, mesh.micro_batches)
    nbytes = nbytes / np.where(hops, np.maximum(members[axes] - 1, 1), 1)
    return Tasks(columns["seconds"], collective, nbytes, axes, parameter, leading=0, before=())


def chained(parts: Sequence[StageBytes]) -> StageBytes:
    """Return the bytes of one device of a stage that has these units, one after the other, by those of each unit.

    Within a backward pass units follow each other from the last one, each beginning with what is left.
    """
    bytes_left, highest = 0.0, parts[-1].rise
    for unit in reversed(parts):
        if bytes_left + unit.rise.total > highest.total:
            highest = unit.rise._replace(total=bytes_left + unit.rise.total)
        bytes_left += float(unit.change[:, Pass.BACKWARD, 0].sum())
    # Of two layers that follow each other both are there; units of several layers say what they have together.
    gathered = [unit.gathered for unit in parts]
    together = max([*gathered, *(2 * min(pair) for pair in itertools.pairwise(gathered))])
    return StageBytes(
        devices=np.zeros(1, dtype=np.int32),
        column=np.zeros(1, dtype=np.int64),
        states=np.sum([unit.states[:, :1] for unit in parts], axis=0),
        undivided=np.sum([unit.undivided[:1] for unit in parts], axis=0),
        activations=np.sum([unit.activations[:1] for unit in parts], axis=0),
        change=np.sum([unit.change[:, :, :1] for unit in parts], axis=0),
        rise=highest,
        gathered=together,
        placeholders={shape: size for unit in parts for shape, size in unit.placeholders.items()},
    )

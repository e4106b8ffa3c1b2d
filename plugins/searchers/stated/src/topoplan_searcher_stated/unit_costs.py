"""What the units of a model cost on a mesh: the tasks of their passes on one device, and bytes, as they are lowered.

    small model ─► a stage for each unit ─► `topoplan_engine.lowering.staged`: tasks and bytes of each stage
                   └► tasks of one device, pass by pass, as columns ─► seconds, given what collectives take

All devices of a mesh do the same, so that one stands for all.  Devices that share nothing but sums of gradients are
two, however many a plan has: what they send follows from the links of the plan (`UnitColumns.run`).  Tasks are the same
for all sizes of micro-batches but for seconds and bytes, of which each size has a column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan import PassOrder, Problem, Stage, StagedStrategy
from topoplan.arrays import F64, I64
from topoplan.model.pass_order import Pass
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.gather_units import GatherUnits, stage_units
from topoplan_engine.lowering.one_place import OnePlace
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.lowering.stage_buffers import (
    fetched_weights,
    gather_pool,
    handed_on,
    outside_of,
    pipeline_buffers,
    pipeline_tensors,
    received_again,
)
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_memory import StageBytes
from topoplan_engine.lowering.stage_tasks import END, SUMS, StageTasks, Variant
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.pass_orders import alternating_order
from topoplan_engine.recomputation import regions_of
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import StageGraph, crossing_weights
from topoplan_engine.trainer_kernels import kernels_of
from topoplan_searcher_stated.construct import MeshRules, stages_on
from topoplan_searcher_stated.plan_kernels import RAN, run_tasks
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import CostsOfSome, SmallModel

__all__ = ["KINDS", "MeshCosts", "UnitColumns", "UnitMesh"]

#: What the tasks of a unit are for, in the order of columns: three kinds of passes, and what follows the last one.
KINDS: tuple[int, ...] = (Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHTS, SUMS, END)


class UnitMesh(NamedTuple):
    """On which mesh units run, and how.

    Attributes:
        rules: how operators of the model are cut.
        sizes: of the mesh; the axis of data has two devices at most.
        options: what the plan says beside degrees.
        splits: whether gradients of weights are a pass of their own.
        apart: whether units are on different ranks, so that weights which several use have copies.
    """

    rules: MeshRules
    sizes: tuple[int, ...]
    options: Settings
    splits: bool
    apart: bool

    @property
    def key(self) -> object:
        """What tells it from other meshes."""
        return (id(self.rules), *self[1:])


class UnitColumns(NamedTuple):
    """The U units of a mesh under K sizes of micro-batches: T tasks of one device, and bytes.

    Tasks are in the order of units, of `KINDS` and of their streams.

    Attributes:
        micro_batches: (K,) of the batch on this mesh, one for each size.
        seconds: (K, T) of computing; 0 for exchanges.
        collective: (T,) kind of each exchange; -1 for computing, and for what takes no time.
        nbytes: (K, T) of the tensor of each group.
        axes: (T,) along which members lie, a bit for each axis of the mesh.
        parameter: (T,) whether it is an exchange of weights or their gradients.
        before_ptr, before: the tasks of its pass that each one waits for, as compressed rows.
        first: (U * kinds + 1,) first task of each kind of each unit.
        leading: (U * kinds,) how many come before the first one of the backward pass itself.
        sent: (K, U) bytes that each device sends to the next unit for a micro-batch.
        states: (U, 3) bytes of weights, gradients and optimizer state that devices share.
        whole: (K, U) bytes of them that each device has whole; see `StageBytes`.
        undivided: (K, U) bytes that stay.
        gathered: (U,) bytes of weights that are gathered and given back.
        placeholders: (U, shapes) bytes that a device has once for all its units; see `StageBytes`.
        change: (K, U, 5) of activations; see `StageBytes`.
        rise: (K, U, 4) what the backward pass of a unit has at most beyond what is there at its begin, by the places of
            operators in it, see `_by_place`; below 0 where there is none.
        border: (4, K, U) bytes for each micro-batch of what a unit receives: that nothing of it that runs again reads,
            that such an operator reads, and that gradients of weights are computed of; last whether what a unit sends
            is of an operator that runs again.  A unit of another stage keeps the second one, one of the same
            stage leaves it to the unit before.
        ahead, layer, outside: (U,) bytes of weights that are gathered and given back: of the last layer or table of a
            unit, of its layer, and of what is in none; the last two where FSDP2 gathers, and the first one elsewhere.
        fetched: (2, U) bytes of weights that FSDP2 gathers, given back or not: of what is in no layer, and of a layer.
        accumulated: (K, U) bytes of gradients that are summed whole; see `StageBytes`.
        passed: (3, K, U) bytes that a pipeline holds throughout for each micro-batch, if it does: for what a unit
            receives of other stages, for the gradient of what it sends, and of scores; see `pipeline_tensors`.
    """

    micro_batches: I64
    seconds: F64
    collective: I64
    nbytes: F64
    axes: I64
    parameter: np.ndarray
    before_ptr: I64
    before: I64
    first: I64
    leading: I64
    sent: F64
    states: F64
    whole: F64
    undivided: F64
    gathered: F64
    placeholders: F64
    change: F64
    rise: F64
    border: F64
    ahead: F64
    layer: F64
    outside: F64
    fetched: F64
    accumulated: F64
    passed: F64

    @property
    def masks(self) -> list[int]:
        """The axes of all collectives, a bit for each axis; each once."""
        return [int(mask) for mask in np.unique(self.axes[self.collective >= 0])]

    def column_of(self, micro_batches: Sequence[int]) -> I64:
        """Return the columns of some numbers of micro-batches."""
        order = np.argsort(self.micro_batches)
        column: I64 = order[np.searchsorted(self.micro_batches, micro_batches, sorter=order)]
        return column

    def of_units(self, row: int, ran: F64, shares: F64 | float = 1.0) -> dict[str, Any]:
        """Return what units take and keep under one size of micro-batches, by the names of `PlanRows`.

        Args:
            row: of that size.
            ran: (U, kinds, RAN) seconds; see `run`.
            shares: (3,) by how much smaller weights, gradients and optimizer state are than on this mesh.
        """
        return {
            "ran": ran,
            "sent": self.sent[row],
            "stays": (self.states / shares).sum(axis=1) + self.whole[row] + self.undivided[row],
            "gathered": self.gathered,
            "placeholders": self.placeholders,
            "change": self.change[row],
            "rise": self.rise[row],
            "passed": self.passed[:, row],
            "border": self.border[:, row],
            "ahead": self.ahead,
            "layer": self.layer,
            "outside": self.outside,
            "fetched": self.fetched,
            "accumulated": self.accumulated[row],
        }

    def run(self, column: I64, seconds: F64) -> F64:
        """(R, U, kinds, RAN) seconds of each kind of tasks of each unit; see `topoplan_searcher_stated.plan_kernels`.

        Args:
            column: (R,) size of the micro-batches of each row.
            seconds: (R, T) that exchanges take in each row; 0 for computing.
        """
        rows, count = len(column), len(self.first) - 1
        ran = np.zeros((rows, count, RAN))
        durations = self.seconds[column] + seconds
        computing = np.ascontiguousarray(self.seconds[column])
        room = np.zeros(self.seconds.shape[1])
        tasks = (self.collective, self.parameter, self.before_ptr, self.before, self.first, self.leading)
        run_tasks(durations, computing, *tasks, room, ran)
        return ran.reshape(rows, count // len(KINDS), len(KINDS), RAN)


class MeshCosts:
    """Costs of the units of a model on meshes; each mesh is lowered once for all sizes of micro-batches.

    Args:
        problem: that is searched.
        small: its model.
    """

    def __init__(self, problem: Problem, small: SmallModel) -> None:
        self._graph, self._small = problem.graph, small
        self._lowering = StagedLowering(small.graph, problem.cluster, CostsOfSome(problem.costs, small.operators))
        #: Whether a backward pass holds what does not shrink with micro-batches.
        self._whole = kernels_of(problem.graph) is not None
        self._columns_on: dict[object, UnitColumns] = {}
        self._costs_on: dict[object, list[StageCosts]] = {}

    def columns(self, mesh: UnitMesh, micro_batches: Sequence[int]) -> UnitColumns:
        """Return what the units cost on a mesh, with columns for these numbers of micro-batches, and perhaps more.

        Raises:
            TopoplanError: an operator cannot be cut or priced so.
        """
        columns = self._columns_on.get(mesh.key)
        before = () if columns is None else columns.micro_batches.tolist()
        if columns is None or not {*micro_batches} <= {*before}:
            columns = self._columns_on[mesh.key] = self._lowered(mesh, sorted({*before, *micro_batches}))
        return columns

    def _lowered(self, mesh: UnitMesh, counts: Sequence[int]) -> UnitColumns:
        small, options, (stages, order) = self._small, mesh.options, self._stages(mesh)
        strategies = [StagedStrategy.of(small.graph, stages, order, count, options.clip) for count in counts]
        costs_of = [self._costs(mesh, each) for each in strategies]
        graphs, _, nbytes = self._lowering.parts(strategies[0], costs_of[0])
        bytes_of = [nbytes]
        crossing = crossing_weights(strategies[0], small.graph)
        for strategy, count, cost in zip(strategies[1:], counts[1:], costs_of[1:], strict=True):
            if self._whole or any(each.rise.gathered for each in nbytes):
                bytes_of.append(
                    [
                        StageBytes.of(strategy, small.graph, number, graphs[number], each, crossing)
                        for number, each in enumerate(cost)
                    ]
                )
            else:
                bytes_of.append([_with_micro_batches(each, counts[0] / count) for each in nbytes])
        separate = frozenset([Pass.WEIGHTS] if mesh.splits else ())
        tasks = [
            _tasks(graph, several, separate, mesh.sizes) for graph, *several in zip(graphs, *costs_of, strict=True)
        ]
        micro_batches, (ahead, layer, outside) = np.array(counts), _gathered_by(graphs)
        return UnitColumns(
            **_together(tasks, micro_batches, mesh.sizes),
            micro_batches=micro_batches,
            sent=_of_all(np.array([_sent(graph) for graph in graphs])) / micro_batches[:, None],
            states=np.array([_shared_states(each) for each in nbytes]),
            whole=np.array([[each.whole[0] for each in several] for several in bytes_of]),
            undivided=np.array([[each.undivided[0] for each in several] for several in bytes_of])
            - [pipeline_buffers(graph, order.rank_of) + gather_pool(graph) for graph in graphs],
            passed=_passed(graphs)[:, None] / micro_batches[:, None],
            gathered=np.array([each.gathered for each in nbytes]),
            placeholders=_placeholders(nbytes),
            change=_changes(bytes_of, strategies[0], graphs, micro_batches),
            rise=np.array([list(map(_by_place, several, graphs)) for several in bytes_of]),
            border=_borders(strategies[0], graphs, costs_of[0], micro_batches),
            ahead=ahead,
            layer=layer,
            outside=outside,
            fetched=np.array([_fetched(graph) for graph in graphs]).T,
            accumulated=np.array([[each.accumulated for each in several] for several in bytes_of]),
        )

    def _costs(self, mesh: UnitMesh, strategy: StagedStrategy) -> list[StageCosts]:
        """Return what operators cost, which does not depend on what runs again, nor on who shares what but weights."""
        zero = mesh.options.zero if mesh.options.zero == 3 else 0
        options = attrs.evolve(mesh.options, zero=zero, recompute="none", clip=False)
        key = id(mesh.rules), mesh.sizes, options, strategy.micro_batches
        if key not in self._costs_on:
            self._costs_on[key] = self._lowering.stage_costs(strategy)
        return self._costs_on[key]

    def _stages(self, mesh: UnitMesh) -> tuple[list[Stage], PassOrder]:
        """Return a pipeline that has each unit once."""
        small, options = self._small, mesh.options
        rules = mesh.rules.of_some(small.operators)
        devices = np.arange(math.prod(mesh.sizes), dtype=np.int32)
        regions = regions_of(options.recompute, self._graph)[list(small.operators)]
        stages = stages_on(small.graph, rules, mesh.sizes, options, small.unit_of, [devices] * small.n_units, regions)
        return stages, _in_turn(small.n_units, mesh)


def _in_turn(n_units: int, mesh: UnitMesh) -> PassOrder:
    """Return an order that has each pass of each unit once: on a rank for each, or on one rank."""
    ranks = n_units if mesh.apart else 1
    late = [0] * ranks if mesh.splits else None
    return alternating_order("units", [n_units] * ranks, 1, n_units // ranks, late)


def _by_place(nbytes: StageBytes, graph: StageGraph) -> list[float]:
    """Return the most bytes while operators run whose weights are gathered neither first nor last, first, last, both.

    What other units gather is there beside those of the first and of the last layer or table of a unit.
    """
    units = _gather_units(graph)
    rows = [op for op, position in enumerate(graph.position) if position >= 0]
    unit = np.zeros(len(rows), dtype=np.int64) if units is None else units.unit[rows]
    place = (unit == unit.min(initial=unit[0])) + 2 * (unit == unit.max(initial=0))
    return [float(nbytes.levels[place == k].max(initial=-1.0)) for k in range(4)]


def _gather_units(graph: StageGraph) -> GatherUnits | None:
    """Return what a unit gathers together, if it gives it back."""
    return stage_units(graph) if graph.program.gathers_again else None


def _gathered_by(graphs: Sequence[StageGraph]) -> F64:
    """(3, U) ``ahead``, ``layer`` and ``outside`` of units; see `UnitColumns`."""
    ahead, layer, outside = columns = np.zeros((3, len(graphs)))
    kernels = kernels_of(graphs[0].graph)
    for number, graph in enumerate(graphs):
        if (units := _gather_units(graph)) is None:
            continue
        if kernels is not None and kernels.units:
            is_outside = outside_of(graph, units)
            outside[number], layer[number] = units.nbytes[is_outside].sum(), units.nbytes[~is_outside].max(initial=0.0)
            continue
        ahead[number] = units.nbytes[units.unit[[op for op, place in enumerate(graph.position) if place >= 0][-1]]]
    return columns


def _fetched(graph: StageGraph) -> tuple[float, float]:
    """Return ``fetched`` of a unit; see `UnitColumns`."""
    tables, layers = fetched_weights(graph)
    return tables, float(layers.max(initial=0.0))


def _changes(
    bytes_of: Sequence[Sequence[StageBytes]],
    strategy: StagedStrategy,
    graphs: Sequence[StageGraph],
    micro_batches: I64,
) -> F64:
    """(K, U, 5) bytes of activations as if all units were in one chunk."""
    change = np.array([[each.change[:, :, 0].sum(axis=0) for each in several] for several in bytes_of])
    handed = np.array([handed_on(strategy, graph) for graph in graphs]) / micro_batches[:, None]
    change[:, :, Pass.FORWARD] -= handed
    change[:, :, [Pass.BACKWARD, len(Pass)]] += handed[:, :, None]
    return change


def _shared_states(nbytes: StageBytes) -> F64:
    """(3,) bytes of weights, gradients and optimizer state of a unit without what each device has whole."""
    states = nbytes.states[:, 0].copy()
    states[0] -= nbytes.whole[0]
    return states


def _with_micro_batches(nbytes: StageBytes, share: float) -> StageBytes:
    """Return the bytes of a stage whose micro-batches are so many times as large, if it gives no weights back."""
    return nbytes._replace(change=nbytes.change * share, levels=nbytes.levels * share)


def _placeholders(units: Sequence[StageBytes]) -> F64:
    """(U, shapes) bytes of each unit that stand for gradients of matrices, by their shape."""
    shapes = list(dict.fromkeys(shape for unit in units for shape in unit.placeholders))
    rows = [[unit.placeholders.get(shape, 0.0) for shape in shapes] for unit in units]
    return np.array(rows).reshape(len(units), len(shapes))


def _of_all(sent: F64) -> F64:
    """(U,) what units send; one whose reader stands for others, too, sends as much as its neighbours."""
    sent[:-1] = np.where(sent[:-1] > 0, sent[:-1], sent.max())
    return sent


def _passed(graphs: Sequence[StageGraph]) -> F64:
    """(3, U) bytes of the batch; see `pipeline_tensors`."""
    passed = np.array([pipeline_tensors(graph) for graph in graphs]).T
    passed[1] = _of_all(passed[1])
    return passed


def _borders(
    strategy: StagedStrategy, graphs: Sequence[StageGraph], costs: Sequence[StageCosts], micro_batches: I64
) -> F64:
    """(4, K, U) what units receive of each other; see `UnitColumns`."""
    of_units = np.array([_border(strategy, graph, cost) for graph, cost in zip(graphs, costs, strict=True)]).T
    columns = np.repeat(of_units[:, None], len(micro_batches), axis=1)
    columns[:3] /= micro_batches[:, None]
    return columns


def _border(strategy: StagedStrategy, stage: StageGraph, costs: StageCosts) -> tuple[float, float, float, float]:
    """Return bytes of the batch that a unit receives, and whether what it sends runs again; see `UnitColumns`."""
    regions, plain, kept_again, late = stage.stage.regions, 0.0, 0.0, 0.0
    for op, link in stage.receives.items():
        tensor = (stage.graph.operators[op].outputs or stage.graph.operators[op].inputs)[0]
        nbytes = tensor.nbytes / pieces(stage.program, link.arrives)
        readers = [stage.position[v] for v in stage.graph.edges[stage.graph.edges[:, 0] == op, 2].tolist()]
        if received_again(strategy, stage, op):
            kept_again += nbytes
        elif all(place < 0 or regions[place] < 0 for place in readers):
            plain += nbytes
        if kernels_of(stage.graph) is None:  # what those with weights have made waits
            first = next((place for place in readers if place >= 0 and regions[place] >= 0), -1)
            is_late = bool(received_again(strategy, stage, op)) and (costs.passes[first].weight_gradient > 0).any()
            late -= nbytes if is_late else 0.0
            continue
        edges = [(v, k) for u, _, v, k in stage.graph.edges.reshape(-1, 4).tolist() if u == op]
        places = [stage.position[v] for v, k in edges if stage.backward[v] and k in stage.arguments_read[v]]
        if any(place >= 0 and (costs.passes[place].weight_gradient > 0).any() for place in places):
            late += nbytes
    last = max((place for place in stage.position if place >= 0), default=-1)
    return plain, kept_again, late, float(last >= 0 and regions[last] >= 0)


def _sent(stage: StageGraph) -> float:
    """Return the bytes of the batch that each device sends to other stages; what several want counts once."""
    total = 0.0
    for links in stage.sends.values():
        tensor = stage.graph.operators[next(op for op, each in stage.sends.items() if each == links)].outputs[0]
        total += tensor.nbytes / pieces(stage.program, links[0].sent)
    return total


class _ColumnCosts(StageCosts):
    """What the operators of a stage cost on its first device, with a column for each size of micro-batches."""

    @classmethod
    def of(cls, several: Sequence[StageCosts]) -> _ColumnCosts:
        """Return the costs, given those of each size."""
        first = [costs.at(np.zeros(1, np.int64)) for costs in several]
        passes = [_side_by_side(each) for each in zip(*(costs.passes for costs in first), strict=True)]
        updates = [None if each is None else np.repeat(each, len(first), axis=1) for each in first[0].updates]
        return cls(passes, updates, np.arange(len(first)))

    def at(self, places: I64) -> StageCosts:
        """Return the same: columns are those that tasks are written for."""
        return self


def _side_by_side(several: Sequence[DeviceCosts]) -> DeviceCosts:
    """Return the seconds of all sizes of micro-batches beside each other, with the bytes of the first."""
    forward, backward, gradient = (
        np.concatenate([getattr(each, name) for each in several]) for name in ("forward", "backward", "weight_gradient")
    )
    return several[0]._replace(forward=forward, backward=backward, weight_gradient=gradient)


class _Tasks(NamedTuple):
    """The tasks of a unit: (K, T) seconds, other (T,) columns, and what each one waits for."""

    seconds: F64
    columns: dict[str, np.ndarray]
    before: list[list[int]]
    first: list[int]
    leading: list[int]


def _tasks(stage: StageGraph, costs: Sequence[StageCosts], separate: frozenset[Pass], sizes: tuple[int, ...]) -> _Tasks:
    """Return the tasks of each pass on one device, in the last micro-batch, given costs of each size."""
    count, place = len(costs), OnePlace(sizes, len(costs))
    variant = Variant(False, True, separate)
    written = StageTasks(stage, _ColumnCosts.of(costs), variant, place, place)
    columns, (tails, heads) = written.columns(), written.ends()
    seconds = np.ascontiguousarray(columns["seconds"].reshape(-1, count).T)
    first_columns = {name: columns[name][::count] for name in ("kind", "collective", "axes", "micro_batch", "size")}
    same = heads % count == 0
    before: list[list[int]] = [[] for _ in range(seconds.shape[1])]
    for tail, head in zip((tails[same] // count).tolist(), (heads[same] // count).tolist(), strict=True):
        before[head].append(tail)
    firsts, leading, first = [], [], 0
    for kind in KINDS:
        part = written.parts.get(kind) if kind != Pass.WEIGHTS or kind in separate else None
        streams = [] if part is None else [*([part.computed] if part.computed else ()), *part.exchanged.values()]
        end = max([first, *(int(last[0]) // count + 1 for _, last in streams)])
        for task in range(first, end):
            before[task] = [each for each in before[task] if each >= first]
        backward = np.flatnonzero(first_columns["kind"][first:end] == TaskKind.BACKWARD)
        leading.append(int(backward[0]) if len(backward) and kind == Pass.BACKWARD else 0)
        firsts.append(first)
        first = end
    return _Tasks(seconds, first_columns, before, [*firsts, first], leading)


def _together(units: Sequence[_Tasks], micro_batches: I64, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the tasks of all units as columns; see `UnitColumns`."""
    ends = np.cumsum([0, *(unit.first[-1] for unit in units)]).tolist()
    kind, collective, axes, micro_batch, size = (
        np.concatenate([unit.columns[name][: unit.first[-1]] for unit in units]).astype(np.int64)
        for name in ("kind", "collective", "axes", "micro_batch", "size")
    )
    members = np.array(
        [math.prod(size for axis, size in enumerate(sizes) if code >> axis & 1) for code in range(1 << len(sizes))]
    )
    hops = kind == TaskKind.TRANSFER  # each is a part of an all-gather
    collective = np.where(hops, int(Collective.ALL_GATHER), np.where(kind == TaskKind.COLLECTIVE, collective, -1))
    collective = np.where((collective == Collective.JOIN) | (members[axes] < 2), -1, collective)
    parameter = (micro_batch < 0) & (collective >= 0)
    nbytes = size / np.where(parameter, 1, micro_batches[:, None])
    rows = [
        [each + end for each in row]
        for unit, end in zip(units, ends, strict=False)
        for row in unit.before[: unit.first[-1]]
    ]
    first = [start + end for unit, end in zip(units, ends, strict=False) for start in unit.first[:-1]]
    return {
        "seconds": np.concatenate([unit.seconds[:, : unit.first[-1]] for unit in units], axis=1),
        "collective": collective,
        "nbytes": nbytes / np.where(hops, np.maximum(members[axes] - 1, 1), 1),
        "axes": axes,
        "parameter": parameter,
        "before_ptr": np.cumsum([0, *map(len, rows)]),
        "before": np.array([*itertools.chain(*rows)], dtype=np.int64),
        "first": np.array([*first, ends[-1]]),
        "leading": np.array([each for unit in units for each in unit.leading]),
    }

"""How long a hybrid plan takes and what it keeps, before its tasks are lowered: to order plans.

    plan ─► costs of each unit of the model on its mesh (`unit_costs`) ─► passes and bytes of each pipeline stage
         └► order of passes, run with these seconds ─► iteration; and with these bytes ─► peak of memory

Passes are what the lowering makes of them, the order is that of the plan, memory is counted by the routine that counts
it for plans.  What is left out: messages that wait for each other on links, and weights that several stages share.
Micro-batches beyond twice the ranks of a pipeline only repeat what it does in between.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import AnyFabric, PassOrder, Problem, TopoplanError
from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.stage_memory import StageBytes, staged_peak
from topoplan_engine.lowering.stage_tasks import END, SUMS
from topoplan_engine.pass_orders import ideal_times
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.tied import tied_weights
from topoplan_searcher_stated.construct import Rules, devices_of, order_of
from topoplan_searcher_stated.degrees import Degrees, degrees_of
from topoplan_searcher_stated.layers import layer_counts
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import layer_numbers, small_model
from topoplan_searcher_stated.unit_costs import MeshCosts, Ran, UnitMesh, UnitTasks, chained
from topoplan_spmd_planning.machine import Links, Machine

__all__ = ["Estimate", "Estimates"]

#: Micro-batches for each rank after which a pipeline only repeats itself.
_REPEATS = 2


@attrs.frozen
class Estimate:
    """Seconds of an iteration, and bytes of the fullest device."""

    seconds: float
    memory: float


class _Chunk(NamedTuple):
    """What the units of a chunk take together.

    Attributes:
        passes: (4,) seconds of each `Pass` of a micro-batch.
        ahead: seconds of the backward pass before it waits for what comes from another chunk.
        last: what each unit takes in its last pass, in which gradients of weights are summed, in the order of the pass.
        end: seconds of updates, and of gathers of what devices have updated for each other.
    """

    passes: F64
    ahead: float
    last: list[Ran]
    end: float


class _Prepared(NamedTuple):
    """What is asked for of a plan, for both its seconds and its memory."""

    degrees: Degrees
    order: PassOrder
    layers: tuple[int, ...]
    mesh: UnitMesh


class Estimates:
    """Estimates plans of one problem on one fabric."""

    def __init__(self, problem: Problem, fabric: AnyFabric, rules: Rules) -> None:
        self._problem, self._graph = problem, problem.graph
        self._small, self._rules = small_model(problem.graph), rules
        self._machine = Machine(problem.cluster, fabric)
        self._costs = MeshCosts(problem, self._small)
        layer = layer_numbers(problem.graph).of
        self._tied = any(layer[op] != layer[tied.owner] for tied in tied_weights(problem.graph) for op, _ in tied.users)

    @property
    def n_layers(self) -> int:
        """Numbered layers of the model; 0 where it has none."""
        return layer_numbers(self._graph).n_layers

    def of(self, plan: Settings) -> Estimate:
        """Estimate a plan.

        Raises:
            TopoplanError: degrees, layers and batch do not go together, or an operator cannot be cut or priced so.
        """
        return Estimate(self.seconds(plan), self.memory(plan))

    def seconds(self, plan: Settings) -> float:
        """Return the seconds of an iteration; see `of`."""
        prepared = self._prepared(plan)
        degrees, order = prepared.degrees, prepared.order
        chunks = self._chunks(plan, prepared)
        passes = np.stack([chunk.passes for chunk in chunks], axis=1)
        sending = np.array([self._sending(degrees, prepared)] * 2)
        sending[1] -= [chunk.ahead for chunk in chunks[:-1]]
        start, end = ideal_times(order, passes, sending)
        work = np.add.reduceat(end - start, order.rank_ptr[:-1]) / order.n_micro_batches
        later = (degrees.micro_batches - order.n_micro_batches) * work.max()
        rows = np.where(order.row_of[Pass.WEIGHTS] >= 0, order.row_of[Pass.WEIGHTS], order.row_of[Pass.BACKWARD])
        last = end[rows].max(axis=1).tolist()
        by_rank: list[list[tuple[float, _Chunk]]] = [[] for _ in range(order.n_ranks)]
        for rank, each, chunk in zip(order.rank_of.tolist(), last, chunks, strict=True):
            by_rank[rank].append((each, chunk))
        return float(max(map(_rank_end, by_rank)) + later)

    def layer_seconds(self, plan: Settings) -> list[float]:
        """(L + 1,) seconds of all passes of a micro-batch of each layer, and of what comes behind the last one.

        Raises:
            TopoplanError: as `of`; layers need not divide.
        """
        degrees = self._degrees(plan)
        order = self._order(plan.schedule, degrees.pp, degrees.micro_batches)
        units = self._costs.tasks(self._mesh(plan, degrees, order))
        passes = [_chunk([self._ran(unit, degrees)], plan.zero).passes.sum() for unit in units]
        tail = passes[self._small.behind] if self._small.behind >= 0 else 0.0
        return [float(each) for each in (*(passes[unit] for unit in self._small.layers), tail)]

    def memory(self, plan: Settings) -> float:
        """Return the bytes of the fullest device; see `of`."""
        degrees, order, layers, mesh = self._prepared(plan)
        bytes_of = self._costs.bytes(mesh)
        stages: list[StageBytes] = []
        for chunk, members in enumerate(self._units_of_chunks(layers)):
            stage = chained([bytes_of[unit] for unit in members])
            states = stage.states / self._shares(plan, degrees)[:, None]
            stages.append(stage._replace(devices=order.rank_of[chunk : chunk + 1], states=states))
        return float(staged_peak(order, stages, order.n_ranks).total.max())

    def _shares(self, plan: Settings, degrees: Degrees) -> F64:
        """(3,) by how much smaller weights, gradients and optimizer state are than on a mesh with two such devices."""
        ratio = 1.0 if degrees.shard > 1 else degrees.of("dp") / _few(degrees.of("dp"))
        levels = {0: (1, 1, 1), 1: (1, 1, ratio), 2: (1, ratio, ratio), 3: (ratio, ratio, ratio)}
        return np.array(levels[plan.zero], dtype=np.float64)

    def _degrees(self, plan: Settings) -> Degrees:
        return degrees_of(plan, self._graph, self._problem.cluster.n_devices)

    def _prepared(self, plan: Settings) -> _Prepared:
        degrees = self._degrees(plan)
        order = self._order(plan.schedule, degrees.pp, degrees.micro_batches)
        layers = tuple(layer_counts(self._graph, order, plan.layers))
        if not layers[0] and len(layers) > 1:
            raise TopoplanError(f"plan: layers={plan.layers}: is not estimated without a layer on the first stage")
        return _Prepared(degrees, order, layers, self._mesh(plan, degrees, order))

    def _mesh(self, plan: Settings, degrees: Degrees, order: PassOrder) -> UnitMesh:
        sizes = tuple(_few(degrees.of(axis)) if axis == "dp" else degrees.of(axis) for axis in degrees.mesh_axes)
        shared = degrees.of("dp") // _few(degrees.of("dp"))
        options = attrs.evolve(
            plan, tp=1, cp=1, ep=1, pp=1, dp=None, micro_batch=1, schedule="", layout="", layers="", sp=None
        )
        return UnitMesh(
            rules=self._rules.on_mesh(degrees, plan),
            sizes=sizes,
            micro_batches=degrees.micro_batches * shared,
            options=options,
            splits=bool((order.row_of[Pass.WEIGHTS] >= 0).any()),
            apart=self._tied and len(set(order.rank_of[[0, -1]].tolist())) > 1,
        )

    @functools.cache  # noqa: B019  of one search, as long as it lives
    def _order(self, schedule: str, ranks: int, micro_batches: int) -> PassOrder:
        """Return the order of a schedule, with no more micro-batches than show how it continues."""
        return order_of(schedule, ranks, min(micro_batches, _REPEATS * ranks))

    def _units_of_chunks(self, layers: tuple[int, ...]) -> list[list[int]]:
        """Return the units of each chunk, given how many layers each has."""
        ends = np.cumsum(layers).tolist()
        chunks = [
            list(self._small.layers[end - count : end] if end else self._small.layers)
            for end, count in zip(ends, layers, strict=True)
        ]
        if self._small.behind >= 0:
            chunks[-1].append(self._small.behind)
        return chunks

    def _chunks(self, plan: Settings, prepared: _Prepared) -> list[_Chunk]:
        degrees, _, layers, mesh = prepared
        ran = [self._ran(unit, degrees) for unit in self._costs.tasks(mesh)]
        zero = plan.zero if max(degrees.of("dp"), degrees.shard) > 1 else 0
        return [_chunk([ran[unit] for unit in members], zero) for members in self._units_of_chunks(layers)]

    def _ran(self, unit: UnitTasks, degrees: Degrees) -> dict[int, Ran]:
        """Return what each pass of a unit takes on the links of a plan."""

        def seconds_of(kind: Collective, nbytes: float, axes: int) -> float:
            return self._machine.seconds(kind, nbytes, self._links(degrees, axes))

        return {kind: tasks.run(seconds_of) for kind, tasks in unit.passes.items()}

    @functools.cache  # noqa: B019
    def _links(self, degrees: Degrees, axes: int) -> Links:
        """Return what the groups along some axes have of the network; ranks of the pipeline use it at the same time."""
        sizes = tuple(degrees.of(axis) for axis in degrees.mesh_axes)
        along = tuple(axis for axis in range(len(sizes)) if axes >> axis & 1)
        members: I64 = mesh_groups(sizes, along)
        groups = self._devices(degrees)[:, members].reshape(-1, members.shape[1])
        return self._machine.links(groups.astype(np.int64))

    @functools.cache  # noqa: B019
    def _devices(self, degrees: Degrees) -> I32:
        return devices_of(degrees)

    def _sending(self, degrees: Degrees, prepared: _Prepared) -> list[float]:
        """(chunks - 1,) seconds of what a chunk sends to the next one."""
        order, units = prepared.order, self._costs.tasks(prepared.mesh)
        chunks = self._units_of_chunks(prepared.layers)
        rank_of = order.rank_of.tolist()
        return [
            0.0
            if rank_of[k] == rank_of[k + 1]
            else units[chunks[k][-1]].sent * self._between(degrees, rank_of[k], rank_of[k + 1])
            for k in range(len(chunks) - 1)
        ]

    @functools.cache  # noqa: B019
    def _between(self, degrees: Degrees, source: int, target: int) -> float:
        """Return the seconds per byte that the slowest device of a rank sends to its peer of another rank."""
        devices = self._devices(degrees)
        return self._machine.pair_seconds(devices[source], devices[target])


def _chunk(units: Sequence[dict[int, Ran]], zero: int) -> _Chunk:
    """Return what units take together, one after the other."""
    passes = np.zeros(4)
    for kind in (Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHTS):
        parts = [unit[kind] for unit in (units if kind == Pass.FORWARD else units[::-1]) if kind in unit]
        passes[kind] = _with_gathers(parts) if zero == 3 else sum(part.path for part in parts)
        if zero == 2:  # sums of gradients run beside them, micro-batch by micro-batch
            passes[kind] = max(passes[kind], sum(part.weights for part in parts))
    kind = Pass.WEIGHTS if Pass.WEIGHTS in units[0] else Pass.BACKWARD
    ends = [unit[kind] for unit in units for kind in (SUMS, END)]
    return _Chunk(
        passes=passes,
        ahead=units[-1][Pass.BACKWARD].ahead,
        last=[unit[kind] for unit in reversed(units)] if zero < 2 else [],
        end=sum(part.computing + part.weights for part in ends),
    )


def _with_gathers(parts: Sequence[Ran]) -> float:
    """Return the seconds of a pass of units whose weights are gathered for it, in the order of the pass.

    The weights of two units are there at a time, and sums of gradients share their communicator.
    """
    free = computed = 0.0
    ends: list[float] = []
    for number, part in enumerate(parts):
        free = max(free, ends[number - 2] if number > 1 else 0.0) + part.gathers
        if number:  # sums of the unit before, which the gather went ahead of
            before = parts[number - 1]
            gathered, free = free, max(free, ends[number - 1]) + before.weights - before.gathers
        else:
            gathered = free
        computed = max(computed, gathered) + part.path
        ends.append(computed)
    return max(computed, free)


def _rank_end(chunks: Sequence[tuple[float, _Chunk]]) -> float:
    """Return when a rank has summed its gradients and updated its weights.

    It is given the end of its last pass of each chunk.  Sums begin while the last pass runs, as soon as there is a
    gradient, and follow each other.
    """
    free = 0.0
    for end, chunk in sorted(chunks, key=lambda pair: pair[0]):
        start = end - sum(part.path for part in chunk.last)
        for part in chunk.last:
            free = max(start + part.summed, free + part.weights)
            start += part.path
        free = max(free, end)
    return free + sum(chunk.end for _, chunk in chunks)


def _few(devices: int) -> int:
    """Return the fewest devices, 2 if possible, that stand for so many."""
    return next((k for k in range(2, math.isqrt(devices) + 1) if devices % k == 0), devices)

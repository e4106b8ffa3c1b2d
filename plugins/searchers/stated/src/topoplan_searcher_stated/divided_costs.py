"""What pipelines take whose stages differ in their meshes: units of each mesh, place by place.

mesh and micro-batches ─► `unit_costs`: tasks and bytes of each unit ─► columns of a stage
stages of a plan ─► columns of its places ─► `plan_kernels`: the order of passes, run with them
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan import AnyFabric, Problem, TopoplanError
from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass
from topoplan_engine.tied import tied_weights
from topoplan_searcher_stated.division import DeviceRow, MeshColumns
from topoplan_searcher_stated.group_links import exchange_seconds
from topoplan_searcher_stated.order_columns import EstimatedOrder
from topoplan_searcher_stated.plan_kernels import PRICES, PlanRows, price_plans, room_of
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import SmallModel
from topoplan_searcher_stated.stage_meshes import StageMesh
from topoplan_searcher_stated.unit_costs import KINDS, MeshCosts, UnitMesh
from topoplan_spmd_planning.machine import Links, Machine

__all__ = ["PricedStage", "Saving", "StageCosts"]

_PATH, _SUMMED = 0, 5
_PASSES = [KINDS.index(kind) for kind in (Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHTS)]
#: Columns of units that have rows in front of the axis of units.
_OF_ROWS = ("passed", "border", "fetched")


class Saving(NamedTuple):
    """What stages do to save memory, and whether gradients of weights are a pass of their own."""

    zero: int = 0
    recompute: str = "none"
    splits: bool = False


class StageCosts:
    """Costs of the units of a model on the meshes of stages.

    Args:
        problem: that is searched.
        fabric: between its hosts.
        small: its model.
        place_of: (n_ops,) place of each operator.
        grads: bytes in which gradients are summed; see `Settings`.
        together: numbers of micro-batches that are priced at once, as they are likely to be asked for.
    """

    def __init__(
        self,
        problem: Problem,
        fabric: AnyFabric,
        small: SmallModel,
        place_of: I64,
        grads: str,
        together: Sequence[int] = (),
    ) -> None:
        self._cluster, self._small, self._place_of, self._grads = problem.cluster, small, place_of, grads
        self._graph, self._together = problem.graph, together
        self._machine, self._costs = Machine(problem.cluster, fabric), MeshCosts(problem, small)
        self._tied = bool(tied_weights(problem.graph))
        self._units_on: dict[object, dict[str, Any] | None] = {}
        self._cut: dict[int, int] = {}

    def samples_cut(self, mesh: StageMesh) -> int:
        """Return into how many parts samples are cut on a mesh."""
        parts = 1
        for op, row in zip(self._graph.operators, mesh.rules.rules, strict=True):
            cut = math.prod(s for rule, s in zip(row, mesh.sizes, strict=True) if 0 <= rule.dim == op.sample_dim)
            parts = math.lcm(parts, cut)
        return parts

    def divides(self, mesh: StageMesh, micro_batches: int) -> bool:
        """Whether a mesh has equally many samples of each micro-batch on all devices."""
        if id(mesh.rules) not in self._cut:
            self._cut[id(mesh.rules)] = self.samples_cut(mesh)
        return self._graph.batch_size % (micro_batches * self._cut[id(mesh.rules)]) == 0

    def columns(self, mesh: StageMesh, micro_batches: int, starts: frozenset[int]) -> MeshColumns | None:
        """Return what places take on a mesh; None where samples or operators cannot be cut so."""
        units = self.units(mesh, micro_batches, Saving())
        if units is None:
            return None
        places, ran = self._small.places, units["ran"]
        return MeshColumns(
            n_devices=mesh.n_devices,
            starts=starts,
            seconds=ran[:, _PASSES, _PATH].sum(axis=1)[places],
            summing=ran[:, _PASSES[1], _SUMMED][places],
            stays=units["stays"][places],
            kept=units["change"][:, Pass.FORWARD][places],
        )

    def crossing(self, first: int, end: int) -> float:
        """Return the bytes of the batch that places from ``first`` to before ``end`` make and later ones read."""
        makers, readers, nbytes = self._tensors
        return float(nbytes[(makers >= first) & (makers < end) & (readers >= end)].sum())

    @functools.cached_property
    def _tensors(self) -> tuple[I64, I64, F64]:
        """The place that makes each tensor, the last one that reads it, and its bytes."""
        last: dict[tuple[int, int], int] = {}
        for u, output, v, _ in self._graph.edges.reshape(-1, 4).tolist():
            last[u, output] = max(last.get((u, output), 0), int(self._place_of[v]))
        makers = np.array([self._place_of[u] for u, _ in last], dtype=np.int64)
        nbytes = np.array([self._graph.operators[u].outputs[output].nbytes for u, output in last], dtype=np.float64)
        return makers, np.array([*last.values()], dtype=np.int64), nbytes

    def units(self, mesh: StageMesh, micro_batches: int, saving: Saving) -> dict[str, Any] | None:
        """Return the columns of units on a mesh by name; see `PlanRows`."""
        key = id(mesh.rules), mesh.per_host, micro_batches, saving
        if key not in self._units_on:
            self._units_on[key] = None
            if self.divides(mesh, micro_batches):
                with contextlib.suppress(TopoplanError):  # an operator has no price so
                    self._units_on[key] = self._priced(mesh, micro_batches, saving)
        return self._units_on[key]

    def _priced(self, mesh: StageMesh, micro_batches: int, saving: Saving) -> dict[str, Any]:
        options = Settings(zero=saving.zero, recompute=saving.recompute, grads=self._grads, schedule="", layout="")
        unit_mesh = UnitMesh(mesh.rules, mesh.sizes, options, saving.splits, self._tied)
        together = [count for count in self._together if self.divides(mesh, count)]
        columns = self._costs.columns(unit_mesh, sorted({micro_batches, *together}))
        row = columns.column_of([micro_batches])
        links = {mask: [self._links(mesh, mask)] for mask in columns.masks}
        seconds = exchange_seconds(columns.collective, columns.nbytes[row], columns.axes, links)
        return columns.of_units(int(row[0]), columns.run(row, seconds)[0])

    def _links(self, mesh: StageMesh, mask: int) -> Links:
        """Return what the groups along some axes have of the network; hosts are equal, so that the first ones do."""
        host = self._cluster.device_host
        places = np.concatenate([np.flatnonzero(host == h)[:count] for h, count in enumerate(mesh.per_host)])
        along = [axis for axis in range(len(mesh.sizes)) if mask >> axis & 1]
        grid = np.moveaxis(places.reshape(mesh.sizes), along, range(-len(along), 0))
        return self._machine.links(grid.reshape(-1, math.prod(mesh.sizes[axis] for axis in along)))

    def row(self, devices: I32) -> DeviceRow:
        """Return devices in an order, with the links of one to the next."""
        cluster = self._cluster
        per_byte = [
            self._machine.pair_seconds(sender, receiver) for sender, receiver in itertools.pairwise(devices[:, None])
        ]
        return DeviceRow(cluster.n_devices, np.array([0.0, *per_byte, 0.0]), float(cluster.usable_memory.min()))

    def prices(
        self, order: EstimatedOrder, micro_batches: int, zero: int, plans: Sequence[Sequence[PricedStage]]
    ) -> F64:
        """(N, PRICES) of plans of one order of passes."""
        count, (chunks, shown) = len(plans), (len(order.columns.rank_of), order.order.n_micro_batches)
        rows = [self._of_places(stages, micro_batches) for stages in plans]
        table = PlanRows(
            counts=np.array([[each.end - each.first for each in stages] for stages in plans], dtype=np.int64),
            balanced=np.zeros(count, dtype=np.int64),
            micro_batches=np.full(count, micro_batches - shown),
            zero=np.full(count, zero),
            hop=np.stack([self._hops(stages) for stages in plans]),
            **{name: np.ascontiguousarray(np.stack([row[name] for row in rows])) for name in rows[0]},
        )
        places, prices = len(self._small.places), np.empty((count, PRICES))
        has_tail = self._small.behind >= 0
        table.counts[:, -1] -= has_tail  # what is behind the last layer is on the last stage
        room = room_of(len(order.columns.kind), chunks, order.order.n_ranks, places)
        price_plans(order.columns, shown, order.splits, np.arange(places), places - has_tail, table, room, prices)
        return prices

    def _of_places(self, stages: Sequence[PricedStage], micro_batches: int) -> dict[str, Any]:
        """Return the columns of a plan, place by place; the last place of a stage sends all that the stage does."""
        units = [(each.units, self._small.places[each.first : each.end]) for each in stages]
        result = {}
        for name in stages[0].units:
            axis = int(name in _OF_ROWS)
            result[name] = np.concatenate([columns[name].take(chosen, axis) for columns, chosen in units], axis)
        for each in stages:
            sent = self.crossing(each.first, each.end) / micro_batches / len(each.devices)
            result["sent"][each.end - 1] = sent
        return result

    def _hops(self, stages: Sequence[PricedStage]) -> F64:
        """(2, R) seconds for each byte that a device of a stage sends to the next stage."""
        hops = np.zeros((2, len(stages)))
        for number, (source, target) in enumerate(itertools.pairwise(stages)):
            hops[0, number] = self._sending(source.devices, target.devices) * len(source.devices)
            hops[1, number + 1] = hops[0, number]
        return hops

    def _sending(self, source: I32, target: I32) -> float:
        """Return the seconds of a byte from all devices of a stage, evenly, to all of the next one."""
        cluster, ends = self._cluster, []
        for devices in (source, target):
            ends.append(np.linspace(0.0, 1.0, len(devices) + 1))
        shared = np.minimum(ends[0][1:, None], ends[1][None, 1:]) - np.maximum(ends[0][:-1, None], ends[1][None, :-1])
        shared = np.maximum(shared, 0.0)
        hosts = [cluster.device_host[devices] for devices in (source, target)]
        away = hosts[0][:, None] != hosts[1][None, :]
        outward = cluster.interfaces * cluster.interface_bandwidth
        seconds = 0.0
        for axis in (0, 1):
            leaving = np.bincount(hosts[axis], (shared * away).sum(axis=1 - axis), cluster.n_hosts)
            inside = (shared * ~away).sum(axis=1 - axis) / cluster.inside_bandwidth[hosts[axis]]
            seconds = max(seconds, float((leaving / outward).max()), float(inside.max()))
        return seconds


class PricedStage(NamedTuple):
    """A stage of a plan: its places, its devices, and the columns of units on its mesh."""

    first: int
    end: int
    devices: I32
    units: dict[str, Any]

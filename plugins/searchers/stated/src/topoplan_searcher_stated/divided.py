"""Pipelines whose stages differ in layers, devices and programs: planned in two levels, then varied.

`stage_meshes`: programs of layers on meshes ─► `division`: stages ─► schedules, what saves memory ─► estimates
                                                                      └► the best ─► neighbours: borders, devices,
                                                                                     micro-batches, programs
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan import (
    AnyFabric,
    DeviceMesh,
    OperatorGraph,
    Problem,
    Stage,
    StagedStrategy,
    TopoplanError,
    Zero,
    stop_if_wanted,
)
from topoplan.arrays import I32
from topoplan.model.pass_order import PassOrder
from topoplan_engine.blocks import LayerNumbers, layer_numbers
from topoplan_engine.lowering.stage_ties import tied_groups
from topoplan_engine.recomputation import regions_of
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.stage_programs import stage_programs
from topoplan_searcher_stated.construct import order_of
from topoplan_searcher_stated.degrees import divisors
from topoplan_searcher_stated.divided_costs import PricedStage, Saving, StageCosts
from topoplan_searcher_stated.division import MeshColumns, StageOfLayers, divisions
from topoplan_searcher_stated.order_columns import EstimatedOrder, estimated_order
from topoplan_searcher_stated.small_model import small_model
from topoplan_searcher_stated.stage_meshes import StageMesh, StageMeshes

__all__ = ["DividedPlan", "DividedPlans"]

_SCHEDULES = ("1f1b", "1f1b-deep", "zb-h1", "zb-h2")
#: What saves more and more memory, and takes more and more time: (zero, recompute).
_LADDER = ((0, "none"), (1, "none"), (1, "full"))
#: Numbers of micro-batches that are planned for, over devices, and the most of them.
_COUNTS, _MOST_COUNT = (32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.25, 0.0), 512
#: Operators of a model that is divided between any two of them, and not between blocks alone.
_MOST_PLACES = 192
#: Devices that stages have: at most so many positions at which they may begin.
_POSITIONS = 16


def layers_to_divide(graph: OperatorGraph) -> LayerNumbers:
    """Return all operators of a model, if they are few, or else its layers."""
    count = len(graph.operators)
    if count > _MOST_PLACES:
        return layer_numbers(graph)
    return LayerNumbers(tuple(range(count)), count, named=False)


@attrs.frozen
class DividedPlan:
    """A pipeline of unequal stages.

    Attributes:
        stages: whose meshes are numbers in `DividedPlans.meshes`, and whose devices are places in an order.
        layout: number of the order of devices in `DividedPlans.orders`.
        schedule, micro_batches, zero, recompute: as in `Settings`, but for micro-batches of all devices.
    """

    stages: tuple[StageOfLayers, ...]
    schedule: str
    micro_batches: int
    zero: int = 0
    recompute: str = "none"
    layout: int = 0


class DividedPlans:
    """Plans, estimates and builds pipelines of unequal stages.

    Args:
        problem: that is searched; its devices are all of one kind.
        fabric: between its hosts.
        grads: bytes in which gradients are summed; see `Settings`.
    """

    def __init__(self, problem: Problem, fabric: AnyFabric, grads: str) -> None:
        self._problem, self._layers = problem, layers_to_divide(problem.graph)
        self._small = small_model(problem.graph, layers=self._layers)
        self._programs = StageMeshes(problem, fabric, small_model(problem.graph))
        self._place_of = np.maximum(self._layers.of, 0).astype(np.int64)
        counts = [count for count in divisors(problem.graph.batch_size) if count <= _MOST_COUNT]
        several = (max(each for each in counts if each <= max(1, of * problem.cluster.n_devices)) for of in _COUNTS)
        self._counts = list(dict.fromkeys(several))
        self._costs = StageCosts(problem, fabric, self._small, self._place_of, grads, self._counts)
        self._gradient_bytes = 4 if grads == "fp32" else 0
        self._usable, host = float(problem.cluster.usable_memory.min()), problem.cluster.device_host
        #: Devices host by host, and one of each host in turn.
        self.orders = [np.arange(len(host), dtype=np.int32)]
        if 1 < problem.cluster.n_hosts < len(host):
            place = np.arange(len(host)) - np.searchsorted(host, host)
            self.orders.append(np.lexsort((host, place)).astype(np.int32))
        self.meshes: list[StageMesh] = []
        self._number: dict[tuple[int, tuple[int, ...]], int] = {}
        self._known: dict[DividedPlan, tuple[float, float]] = {}

    @property
    def estimated(self) -> int:
        """How many plans were estimated."""
        return len(self._known)

    # ── Two levels ──────────────────────────────────────────────────────────────────────────────────────────────

    def planned(self) -> Iterator[list[DividedPlan]]:
        """Yield the pipelines that the dynamic program finds for each number of micro-batches, without schedules.

        Yielded is also nothing, after each mesh, so that steps are small.
        """
        known_stages = set[tuple[int, tuple[StageOfLayers, ...]]]()
        for layout, order in enumerate(self.orders):
            starts: dict[int, set[int]] = {}
            for first, end in self._submeshes(order):
                for mesh in self._programs.on(order[first:end]):
                    starts.setdefault(self._mesh_number(mesh), set()).add(first)
                yield []
            row, places = self._costs.row(order), range(len(self._small.places))
            for count in self._counts:
                columns: dict[int, MeshColumns] = {}
                for number, each in starts.items():
                    priced = self._costs.columns(self.meshes[number], count, frozenset(each))
                    columns |= {} if priced is None else {number: priced}
                    yield []
                if not columns:
                    continue
                numbers, sent = [*columns], np.array([self._costs.crossing(0, place) for place in places]) / count
                plans = []
                for division in divisions([*columns.values()], row, count, sent):
                    stages = tuple(each._replace(mesh=numbers[each.mesh]) for each in division.stages)
                    if len(stages) > 1 or (layout, stages) not in known_stages:
                        plans.append(DividedPlan(stages, "1f1b", count, layout=layout))
                    known_stages.add((layout, stages))
                yield plans

    def _submeshes(self, order: I32) -> Iterator[tuple[int, int]]:
        """Go through the places in an order that the devices of a stage may have: the first, and that behind them."""
        unit = next(k for k in divisors(len(order)) if len(order) // k <= _POSITIONS)
        for first, end in itertools.combinations(range(0, len(order) + 1, unit), 2):
            if self._is_submesh(order[first:end], first):
                yield first, end

    def _is_submesh(self, devices: I32, first: int) -> bool:
        """Whether devices are as many of each of their hosts: a power of two of some, or all of them."""
        cluster = self._problem.cluster
        _, counts = np.unique(cluster.device_host[devices], return_counts=True)
        each, whole = int(counts[0]), cluster.n_devices // cluster.n_hosts
        if (counts != each).any() or first % len(counts):
            return False
        return each == whole or (each & (each - 1) == 0 and (len(counts) == 1 or len(counts) == cluster.n_hosts))

    def _mesh_number(self, mesh: StageMesh) -> int:
        key = id(mesh.rules), mesh.per_host
        if key not in self._number:
            self._number[key] = len(self.meshes)
            self.meshes.append(mesh)
        return self._number[key]

    # ── Variants and estimates ──────────────────────────────────────────────────────────────────────────────────

    def variants(self, plan: DividedPlan) -> Iterator[DividedPlan]:
        """Go through the schedules of a plan, each with the first step that saves enough memory."""
        for schedule in _SCHEDULES if len(plan.stages) > 1 else _SCHEDULES[:1]:
            for zero, recompute in _LADDER:
                each = attrs.evolve(plan, schedule=schedule, zero=zero, recompute=recompute)
                if self.seconds([each])[0] < np.inf:
                    yield each
                    break

    def neighbours(self, plan: DividedPlan) -> Iterator[DividedPlan]:
        """Go through plans that differ in one border, the devices of two stages, a program, or one setting."""
        for stages in self._moved(plan.stages, self.orders[plan.layout]):
            yield attrs.evolve(plan, stages=stages)
        for layout in range(len(self.orders)):
            meshes = (self._programs.on(self._devices(stage, self.orders[layout])) for stage in plan.stages)
            moved = zip(plan.stages, (several[0] for several in meshes), strict=True)
            stages = tuple(stage._replace(mesh=self._mesh_number(mesh)) for stage, mesh in moved)
            yield attrs.evolve(plan, layout=layout, stages=stages)
        for schedule in _SCHEDULES if len(plan.stages) > 1 else ():
            yield attrs.evolve(plan, schedule=schedule)
        for count in (2 * plan.micro_batches, plan.micro_batches // 2):
            if count and self._problem.graph.batch_size % count == 0:
                yield attrs.evolve(plan, micro_batches=count)
        for zero, recompute in _LADDER:
            yield attrs.evolve(plan, zero=zero, recompute=recompute)

    def _moved(self, stages: Sequence[StageOfLayers], order: I32) -> Iterator[tuple[StageOfLayers, ...]]:
        for number, (source, target) in enumerate(itertools.pairwise(stages)):
            for border in (source.end - 2, source.end - 1, source.end + 1, source.end + 2):
                if source.first < border < target.end:
                    pair = source._replace(end=border), target._replace(first=border)
                    yield (*stages[:number], *pair, *stages[number + 2 :])
            yield from self._resized(stages, number, order)
        for number, stage in enumerate(stages):
            for mesh in self._programs.on(self._devices(stage, order)):
                changed = stage._replace(mesh=self._mesh_number(mesh))
                if changed != stage:
                    yield (*stages[:number], changed, *stages[number + 1 :])

    def _resized(self, stages: Sequence[StageOfLayers], number: int, order: I32) -> Iterator[tuple[StageOfLayers, ...]]:
        """Go through plans where two stages share their devices otherwise, each with every program."""
        source, target = stages[number : number + 2]
        first, end = source.device, target.device + self.meshes[target.mesh].n_devices
        for border in range(first + 1, end):
            if border == target.device:
                continue
            pairs = itertools.product(self._programs.on(order[first:border]), self._programs.on(order[border:end]))
            for of_source, of_target in pairs:
                pair = (
                    source._replace(mesh=self._mesh_number(of_source)),
                    target._replace(device=border, mesh=self._mesh_number(of_target)),
                )
                yield (*stages[:number], *pair, *stages[number + 2 :])

    def _devices(self, stage: StageOfLayers, order: I32) -> I32:
        devices: I32 = np.sort(order[stage.device : stage.device + self.meshes[stage.mesh].n_devices])
        return devices

    def seconds(self, plans: Sequence[DividedPlan]) -> list[float]:
        """Return the estimated seconds of plans; infinite for those that do not fit or cannot be built."""
        stop_if_wanted()
        groups: dict[tuple[str, int, int, int], list[DividedPlan]] = {}
        for plan in dict.fromkeys(plans):
            if plan not in self._known:
                key = plan.schedule, len(plan.stages), plan.micro_batches, plan.zero
                groups.setdefault(key, []).append(plan)
        for (schedule, ranks, count, zero), several in groups.items():
            self._known |= dict.fromkeys(several, (np.inf, np.inf))
            try:
                order = estimated_order(schedule, ranks, count)
            except TopoplanError:  # it has none for so few micro-batches
                continue
            self._estimate(order, count, zero, several)
        return [
            seconds if memory <= self._usable else np.inf for seconds, memory in (self._known[plan] for plan in plans)
        ]

    def _estimate(self, order: EstimatedOrder, count: int, zero: int, plans: Sequence[DividedPlan]) -> None:
        built, stages_of_built = [], []
        for plan in plans:
            saving = Saving(plan.zero, plan.recompute, order.splits)
            units = [self._costs.units(self.meshes[stage.mesh], count, saving) for stage in plan.stages]
            priced = [each for each in units if each is not None]
            if len(priced) == len(units):
                built.append(plan)
                stages_of_built.append(
                    [
                        PricedStage(stage.first, stage.end, self._devices(stage, self.orders[plan.layout]), columns)
                        for stage, columns in zip(plan.stages, priced, strict=True)
                    ]
                )
        if built:
            prices = self._costs.prices(order, count, zero, stages_of_built)
            self._known |= {plan: (float(row[0]), float(row[1])) for plan, row in zip(built, prices, strict=True)}

    # ── Strategies ──────────────────────────────────────────────────────────────────────────────────────────────

    def strategy(self, plan: DividedPlan) -> StagedStrategy:
        """Build a plan.

        Raises:
            TopoplanError: it cannot be built, such as under a schedule that has no order for so few micro-batches, or
                with a weight that stages share in different slices.
        """
        graph, meshes = self._problem.graph, [self.meshes[stage.mesh] for stage in plan.stages]
        order: PassOrder = order_of(plan.schedule, len(plan.stages), plan.micro_batches)
        ends = [stage.end for stage in plan.stages]
        stage_of = np.searchsorted(ends, self._place_of, side="right")
        rules: list[Any] = [meshes[stage].rules.rules[op] for op, stage in enumerate(stage_of.tolist())]
        programs = stage_programs(graph, stage_of.tolist(), [mesh.sizes for mesh in meshes], rules)
        regions = regions_of(plan.recompute, graph)
        stages = []
        for number, (stage, mesh, program) in enumerate(zip(plan.stages, meshes, programs, strict=True)):
            operators = np.flatnonzero(stage_of == number)
            rerun = regions[operators] if (regions[operators] >= 0).any() else ()
            axes, shared = mesh.rules.axes, _shared(mesh)
            stages.append(
                Stage(
                    operators=operators,
                    mesh=DeviceMesh(
                        axes=axes, sizes=mesh.sizes, devices=self._devices(stage, self.orders[plan.layout])
                    ),
                    body=program,
                    zero=Zero(level=plan.zero, axes=shared) if plan.zero and shared else Zero(),
                    recomputed=rerun,
                    gradient_bytes=self._gradient_bytes,
                )
            )
        strategy = StagedStrategy.of(graph, stages, order, plan.micro_batches)
        if reason := why_invalid(strategy, graph, self._problem.cluster.n_devices):
            raise TopoplanError(f"plan: {reason}")
        tied_groups(strategy, graph)  # stages on unequal meshes may have a shared weight in slices that nothing sums
        return strategy

    def words(self, plan: DividedPlan) -> str:
        """Return a plan as text: devices and layers of each stage, and what all have in common."""
        text = []
        for stage in plan.stages:
            mesh = self.meshes[stage.mesh]
            axes = zip(mesh.rules.axes, mesh.sizes, strict=True)
            cut = "x".join(f"{axis}{size}" for axis, size in axes if size > 1) or "1"
            text.append(f"{min(stage.end, max(1, self._layers.n_layers)) - stage.first}:{cut}")
        words = [f"stages={'|'.join(text)}", f"micro-batches={plan.micro_batches}", f"schedule={plan.schedule}"]
        shares = any(_shared(self.meshes[stage.mesh]) for stage in plan.stages)
        words += [f"zero={plan.zero}"] if plan.zero and shares else []
        words += [f"recompute={plan.recompute}"] if plan.recompute != "none" else []
        return ",".join([*words, "layout=scattered"] if plan.layout else words)


def _shared(mesh: StageMesh) -> tuple[int, ...]:
    """Return the axes of a mesh along which devices have the same weights, whose state they share under ZeRO."""
    return tuple(k for k, axis in enumerate(mesh.rules.axes) if axis in ("dp", "ep") and mesh.sizes[k] > 1)

"""How long hybrid plans take and what they keep, before their tasks are lowered: thousands of plans as columns.

    degrees and options ─► `unit_costs`: tasks of each unit of the model on their mesh ─┐
                        └► `group_links`: links of their groups ────────────────────────┴► seconds of units: a *shape*
    shape × schedule × layers of chunks ─► `plan_kernels`: the order of passes, run with these seconds and bytes

Passes are what the lowering makes of them, the order is that of the plan, memory is the peak over the order of passes
that is counted for plans.  Messages from one rank to another wait for those before.  What is left out: messages that
wait for those of other ranks on links, and weights that several stages share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan import AnyFabric, Problem, TopoplanError, stop_if_wanted
from topoplan.arrays import F64, I64
from topoplan_engine.blocks import layer_numbers
from topoplan_engine.recomputation import regions_of
from topoplan_engine.tied import tied_weights
from topoplan_searcher_stated.construct import MeshRules, Rules, check_even
from topoplan_searcher_stated.degrees import Degrees, degrees_of
from topoplan_searcher_stated.group_links import GroupLinks, exchange_seconds
from topoplan_searcher_stated.layers import layer_counts
from topoplan_searcher_stated.order_columns import EstimatedOrder, estimated_order
from topoplan_searcher_stated.plan_kernels import PRICES, PlanRows, price_plans, room_of
from topoplan_searcher_stated.runners_up import PlanParts
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import small_model
from topoplan_searcher_stated.unit_costs import MeshCosts, UnitColumns, UnitMesh

__all__ = ["BALANCED", "EVEN", "LIGHT", "Estimate", "Estimates", "PlanColumns", "Prices", "estimates_of", "shape_of"]

#: Layers of chunks: those of plans that leave them out, which is equally many where layers have numbers; or such that
#: the slowest chunk is fastest, or such that the chunk with the most bytes has the least.  Further numbers are those of
#: given texts.
EVEN, BALANCED, LIGHT = -1, -2, -3
#: Columns of what a pass of a unit takes; see `plan_kernels`.
_PATH, _COMPUTING = 0, 2


@attrs.frozen
class Estimate:
    """Seconds of an iteration, and bytes of the fullest device."""

    seconds: float
    memory: float


class PlanColumns(NamedTuple):
    """P plans.

    Attributes:
        shape: (P,) number of the shape of each.
        schedule: (P,) number of its schedule.
        layers: (P,) `EVEN`, `BALANCED`, `LIGHT`, or the number of a text.
    """

    shape: I64
    schedule: I64
    layers: I64


class _Shape(NamedTuple):
    """Units of plans that differ in their schedule and their layers of chunks alone, on their mesh.

    Attributes:
        degrees: of these plans.
        zero: level of ZeRO; 0 where nothing is shared.
        units: what units take and keep, by the names of `PlanRows`.
    """

    degrees: Degrees
    zero: int
    units: dict[str, Any]


class _Form(NamedTuple):
    """What of an order says how units are lowered; see `EstimatedOrder`."""

    splits: bool
    apart: bool


class Prices(NamedTuple):
    """What P plans take.

    Attributes:
        seconds: (P,) of an iteration; infinite for plans that cannot be built.
        memory: (P,) bytes of the fullest device.
        resting: (P,) those of them that stay throughout.
        layers: (P, parts) of each part of the model; -1 behind the last part.
    """

    seconds: F64
    memory: F64
    resting: F64
    layers: I64


#: The estimates that were made last: a search without a trainer's limits follows the one that keeps to them.
_last: list[Estimates] = []


def estimates_of(problem: Problem, fabric: AnyFabric, rules: Rules, micro_batches: Sequence[int]) -> Estimates:
    """Return estimates of plans of a problem: the last ones, with all that they have priced, where these are of it."""
    if not _last or not _last[0].is_of(problem, fabric, rules):
        _last[:] = [Estimates(problem, fabric, rules, micro_batches)]
    return _last[0]


class Estimates:
    """Estimates plans of one problem on one fabric.

    Args:
        problem: its model and machine.
        fabric: between its hosts.
        rules: how its operators are cut.
        micro_batches: sizes of micro-batches that are priced together, as they are likely to be asked for.
        periodic: the ``recompute`` of all plans, where it is of every second layer or such: which layers are equal then
            depends on it.

    Attributes:
        named_layers: whether layers have numbers in the names of operators; see `LayerNumbers`.
    """

    def __init__(
        self,
        problem: Problem,
        fabric: AnyFabric,
        rules: Rules,
        micro_batches: Sequence[int] = (),
        *,
        periodic: str = "",
    ) -> None:
        self._problem, self._graph, self._rules, self._fabric = problem, problem.graph, rules, fabric
        repeated = regions_of(periodic, problem.graph) >= 0 if periodic else None
        self._small, self._sizes = small_model(problem.graph, repeated), tuple(micro_batches)
        self._links, self._costs = GroupLinks(problem, fabric), MeshCosts(problem, self._small)
        self._periodic, self._by_period = periodic, dict[str, Estimates]()
        numbers = layer_numbers(problem.graph)
        self._n_layers, self.named_layers = numbers.n_layers, numbers.named
        layer = numbers.of
        self._tied = any(layer[op] != layer[tied.owner] for tied in tied_weights(problem.graph) for op, _ in tied.users)
        self._units = self._small.places
        self._shapes: dict[tuple[Settings, _Form], _Shape | TopoplanError] = {}
        self._even: set[object] = set()
        self._even_of: dict[tuple[int, int], list[int]] = {}

    def is_of(self, problem: Problem, fabric: AnyFabric, rules: Rules) -> bool:
        """Return whether they are of this model, these prices, this machine and network, and these cuts."""
        parts = ((each.graph, each.costs, each.cluster) for each in (self._problem, problem))
        same = all(part is part_given for part, part_given in zip(*parts, strict=True))
        return same and self._rules.cuts_as(rules) and self._fabric == fabric

    def of(self, plan: Settings) -> Estimate:
        """Estimate a plan.

        Raises:
            TopoplanError: degrees, layers and batch do not go together, or an operator cannot be cut or priced so.
        """
        if (companion := self._with_layers_of(plan)) is not self:
            return companion.of(plan)
        shape = shape_of(plan)
        degrees = self._degrees(shape)
        order = estimated_order(plan.schedule, degrees.pp, degrees.micro_batches)
        self._prepare([shape], self._form(order))
        if isinstance(priced := self._shapes[shape, self._form(order)], TopoplanError):
            raise priced
        counts = layer_counts(self._graph, order.order, plan.layers)
        if not counts[0] and len(counts) > 1:
            raise TopoplanError(f"plan: layers={plan.layers}: is not estimated without a layer on the first stage")
        prices = self.prices([shape], [plan.schedule], [plan.layers], PlanColumns(*np.zeros((3, 1), dtype=np.int64)))
        return Estimate(float(prices.seconds[0]), float(prices.memory[0]))

    def parts(self, plan: Settings) -> PlanParts:
        """Return what the busiest rank of a plan does, by estimate; see `of`."""
        if (companion := self._with_layers_of(plan)) is not self:
            return companion.parts(plan)
        shape, seconds = shape_of(plan), self.of(plan).seconds
        degrees = self._degrees(shape)
        order = estimated_order(plan.schedule, degrees.pp, degrees.micro_batches)
        priced = self._shapes[shape, self._form(order)]
        assert isinstance(priced, _Shape)
        counts = layer_counts(self._graph, order.order, plan.layers) if self._n_layers else [1]
        units = np.split(self._units, np.cumsum(counts)[: order.parts - 1])  # with what is behind the last layer
        work = np.zeros((order.order.n_ranks, 2))
        for rank, members in zip(order.order.rank_of.tolist(), units, strict=False):
            work[rank] += priced.units["ran"][members, :3][..., [_PATH, _COMPUTING]].sum(axis=(0, 1))
        path, computing = work[work[:, 0].argmax()] * degrees.micro_batches
        return PlanParts(float(computing), float(path - computing), seconds - float(path))

    def bounds(self, shapes: Sequence[Settings]) -> F64:
        """(S,) seconds that no plan of each shape is faster than, by estimate: its passes, without any bubble.

        Infinite for a shape that cannot be built.
        """
        result = np.empty(len(shapes))
        for estimates, numbers in self._by_layers(shapes):
            result[numbers] = estimates._bounds([shapes[number] for number in numbers])
        return result

    def _bounds(self, shapes: Sequence[Settings]) -> F64:
        form = _Form(splits=False, apart=False)
        self._prepare(shapes, form)
        return np.array([self._bound(self._shapes[shape, form]) for shape in shapes])

    def _with_layers_of(self, plan: Settings) -> Estimates:
        """Return the estimates whose units tell the layers of a plan apart: those that run again from all others."""
        name, _, period = plan.recompute.partition(":")
        if name != "every" or not period or plan.recompute == self._periodic:
            return self
        if plan.recompute not in self._by_period:
            self._by_period[plan.recompute] = Estimates(
                self._problem, self._fabric, self._rules, self._sizes, periodic=plan.recompute
            )
        return self._by_period[plan.recompute]

    def _by_layers(self, shapes: Sequence[Settings]) -> list[tuple[Estimates, list[int]]]:
        """Return the estimates of shapes, and the numbers of those that each has."""
        groups: dict[int, tuple[Estimates, list[int]]] = {}
        for number, shape in enumerate(shapes):
            try:
                estimates = self._with_layers_of(shape)
            except TopoplanError:  # no such layers: refused where it is priced
                estimates = self
            groups.setdefault(id(estimates), (estimates, []))[1].append(number)
        return [*groups.values()]

    def _bound(self, shape: _Shape | TopoplanError) -> float:
        if isinstance(shape, TopoplanError):
            return math.inf
        passes = shape.units["ran"][self._units, :3, 0].sum()
        return float(passes * shape.degrees.micro_batches / shape.degrees.pp)

    def prices(
        self, shapes: Sequence[Settings], schedules: Sequence[str], texts: Sequence[str], plans: PlanColumns
    ) -> Prices:
        """Estimate plans.

        Args:
            shapes: plans without schedule and layers (`shape_of`).
            schedules: that plans have.
            texts: layers of chunks that plans have beside `EVEN`, `BALANCED` and `LIGHT`.
            plans: which of these each has.
        """
        groups = self._by_layers(shapes)
        if all(estimates is self for estimates, _ in groups):
            return self._prices(shapes, schedules, texts, plans)
        seconds, memory, resting = columns = np.empty((3, len(plans.shape)))
        parts = []
        for estimates, numbers in groups:
            rows = np.flatnonzero(np.isin(plans.shape, numbers))
            chosen = PlanColumns(*(column[rows] for column in plans))
            *several, layers = estimates._prices(shapes, schedules, texts, chosen)
            columns[:, rows] = several
            parts.append((rows, layers))
        layers = np.full((len(plans.shape), max(each.shape[1] for _, each in parts)), -1)
        for rows, each in parts:
            layers[rows, : each.shape[1]] = each
        return Prices(seconds, memory, resting, layers)

    def _prices(
        self, shapes: Sequence[Settings], schedules: Sequence[str], texts: Sequence[str], plans: PlanColumns
    ) -> Prices:
        count = len(plans.shape)
        values = np.full((count, PRICES), np.inf)
        degrees = [self._degrees_or_none(shape) for shape in shapes]
        pipelines = np.array([(0, 0) if each is None else (each.pp, each.micro_batches) for each in degrees])
        keys = np.column_stack([plans.schedule, pipelines[plans.shape]])
        different, order_of_plan = np.unique(keys, axis=0, return_inverse=True)
        orders = [_order_or_none(schedules[schedule], pp, m) for schedule, pp, m in different.tolist()]
        members = [np.flatnonzero(order_of_plan.ravel() == number) for number in range(len(orders))]
        rows_of: dict[_Form, list[I64]] = {}
        for order, rows in zip(orders, members, strict=True):
            if order is not None:
                rows_of.setdefault(self._form(order), []).append(rows)
        for form, several in rows_of.items():
            used = np.unique(plans.shape[np.concatenate(several)]).tolist()
            self._prepare([shapes[shape] for shape in used], form)
        layers = np.full((count, max((order.parts for order in orders if order is not None), default=1)), -1)
        for order, rows_of_order in zip(orders, members, strict=True):
            if order is not None:
                self._price(order, shapes, texts, plans, rows_of_order, values, layers)
        seconds, memory, resting = values.T
        return Prices(seconds, memory, resting, layers)

    def _price(
        self,
        order: EstimatedOrder,
        shapes: Sequence[Settings],
        texts: Sequence[str],
        plans: PlanColumns,
        rows: I64,
        values: F64,
        layers: I64,
    ) -> None:
        """Fill in the prices of plans of one order, and their layers."""
        number, text_at = plans.layers[rows], plans.layers
        form = self._form(order)
        of_plan = [self._shapes[shapes[shape], form] for shape in plans.shape[rows].tolist()]
        usable = np.array([isinstance(shape, _Shape) for shape in of_plan])
        n_layers, parts = max(1, self._n_layers), order.parts
        even = self._even_counts(order)
        usable &= (number != EVEN) | (even[0] > 0)
        usable &= (number > BALANCED) | (1 < parts <= n_layers)
        counts_of = {}
        for text in np.unique(number[number >= 0]).tolist():
            try:
                counts_of[text] = layer_counts(self._graph, order.order, texts[text]) if self._n_layers else [1]
            except TopoplanError:
                counts_of[text] = [0] * parts
            if not counts_of[text][0]:
                usable &= number != text
        rows = rows[usable]
        if not len(rows):
            return
        counts = np.tile(np.array(even, dtype=np.int64), (len(rows), 1))
        for text, each in counts_of.items():
            counts[text_at[rows] == text] = each
        built = [shape for shape, fits in zip(of_plan, usable, strict=True) if isinstance(shape, _Shape) and fits]
        prices = np.empty((len(rows), PRICES))
        columns, shown = order.columns, order.order.n_micro_batches
        chunks = len(columns.rank_of)
        room = room_of(len(columns.kind), chunks, order.order.n_ranks, len(self._units))
        table = PlanRows(
            counts=counts,
            balanced=np.select([plans.layers[rows] == BALANCED, plans.layers[rows] == LIGHT], [1, 2], 0),
            micro_batches=np.array([shape.degrees.micro_batches - shown for shape in built]),
            zero=np.array([shape.zero for shape in built]),
            hop=np.stack([self._links.between_ranks(shape.degrees.strides["pp"], shape.degrees.pp) for shape in built]),
            # C order, whatever that of the columns: each other order would be compiled anew, for seconds.
            **{name: np.ascontiguousarray(np.stack([each.units[name] for each in built])) for name in built[0].units},
        )
        price_plans(columns, shown, order.splits, self._units, n_layers, table, room, prices)
        values[rows], layers[rows, :parts] = prices, counts

    def _even_counts(self, order: EstimatedOrder) -> list[int]:
        """(parts,) layers of each part of a model where a plan leaves them out; zeros where that cannot be."""
        if not self._n_layers:
            return [int(order.parts == 1)] * order.parts
        key = order.order.n_ranks, order.parts
        if key not in self._even_of:
            try:
                self._even_of[key] = layer_counts(self._graph, order.order, "")
            except TopoplanError:  # layers do not divide, or are too few
                self._even_of[key] = [0] * order.parts
        return self._even_of[key]

    # ── Shapes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, shapes: Iterable[Settings], form: _Form) -> None:
        """Price the units of shapes that are not known yet, all of one mesh together."""
        meshes: dict[object, tuple[UnitMesh, list[tuple[Settings, Degrees, int]]]] = {}
        for shape in dict.fromkeys(shapes):
            if (shape, form) in self._shapes:
                continue
            try:
                degrees = self._degrees(shape)
                mesh, count = self._mesh(shape, degrees, form)
            except TopoplanError as error:
                self._shapes[shape, form] = error
                continue
            meshes.setdefault(mesh.key, (mesh, []))[1].append((shape, degrees, count))
        for mesh, rows in meshes.values():
            stop_if_wanted()
            try:
                columns = self._costs.columns(mesh, self._counts([count for _, _, count in rows], rows))
            except TopoplanError as error:
                self._shapes |= dict.fromkeys(((shape, form) for shape, _, _ in rows), error)
                continue
            self._shapes |= {
                (shape, form): priced for (shape, _, _), priced in zip(rows, self._priced(columns, rows), strict=True)
            }

    def _priced(self, columns: UnitColumns, rows: Sequence[tuple[Settings, Degrees, int]]) -> list[_Shape]:
        """Return shapes on one mesh."""
        column = columns.column_of([count for _, _, count in rows])
        links = {mask: [self._links.of(degrees, mask) for _, degrees, _ in rows] for mask in columns.masks}
        seconds = exchange_seconds(columns.collective, columns.nbytes[column], columns.axes, links)
        ran = columns.run(column, seconds)
        result = []
        for place, (row, (shape, degrees, _)) in enumerate(zip(column.tolist(), rows, strict=True)):
            units = columns.of_units(row, ran[place], _shares(shape, degrees))
            result.append(_Shape(degrees, shape.zero if max(degrees.of("dp"), degrees.shard) > 1 else 0, units))
        return result

    def _counts(self, counts: Sequence[int], rows: Sequence[tuple[Settings, Degrees, int]]) -> list[int]:
        """Return how many micro-batches a mesh is priced for: those of rows, and of the likely sizes."""
        samples = {count * shape.micro_batch for (shape, _, _), count in zip(rows, counts, strict=True)}
        likely = {each // size for each in samples for size in self._sizes if each % size == 0}
        return sorted({*counts, *likely})

    def _mesh(self, plan: Settings, degrees: Degrees, form: _Form) -> tuple[UnitMesh, int]:
        """Return the mesh of units, and micro-batches of the batch on it."""
        sizes = tuple(_few(degrees.of(axis)) if axis == "dp" else degrees.of(axis) for axis in degrees.mesh_axes)
        rules = self._rules.on_mesh(degrees, plan)
        self._check(rules, degrees)
        shared = degrees.of("dp") // _few(degrees.of("dp"))
        options = attrs.evolve(
            plan, tp=1, cp=1, ep=1, etp=0, pp=1, dp=None, micro_batch=1, schedule="", layout="", layers="", sp=None
        )
        mesh = UnitMesh(rules=rules, sizes=sizes, options=options, splits=form.splits, apart=form.apart)
        return mesh, degrees.micro_batches * shared

    def _check(self, rules: MeshRules, degrees: Degrees) -> None:
        """Raise for a dimension that degrees do not divide."""
        key = (id(rules), *(degrees.of(axis) for axis in rules.axes))
        if key not in self._even:
            small = self._small
            check_even(small.graph, degrees, rules.axes, rules.of_some(small.operators).rules)
            self._even.add(key)

    def _form(self, order: EstimatedOrder) -> _Form:
        return _Form(order.splits, apart=self._tied and order.apart)

    def _degrees(self, plan: Settings) -> Degrees:
        return degrees_of(plan, self._graph, self._problem.cluster.n_devices)

    def _degrees_or_none(self, plan: Settings) -> Degrees | None:
        try:
            return self._degrees(plan)
        except TopoplanError:
            return None


def shape_of(plan: Settings) -> Settings:
    """Return a plan without what its schedule, and its layers of chunks, are."""
    return attrs.evolve(plan, schedule="", layers="")


def _order_or_none(schedule: str, ranks: int, micro_batches: int) -> EstimatedOrder | None:
    """Return the order of a schedule, or None where it has none for so many."""
    try:
        return estimated_order(schedule, ranks, micro_batches) if ranks else None
    except TopoplanError:
        return None


def _shares(plan: Settings, degrees: Degrees) -> F64:
    """(3,) by how much smaller weights, gradients and optimizer state are than on a mesh with two such devices."""
    ratio = 1.0 if degrees.shard > 1 else degrees.of("dp") / _few(degrees.of("dp"))
    levels = {0: (1, 1, 1), 1: (1, 1, ratio), 2: (1, ratio, ratio), 3: (ratio, ratio, ratio)}
    return np.array(levels[plan.zero], dtype=np.float64)


def _few(devices: int) -> int:
    """Return the fewest devices, 2 if possible, that stand for so many."""
    return next((k for k in range(2, math.isqrt(devices) + 1) if devices % k == 0), devices)

"""From degrees to a strategy: stages of whole layers, meshes in the stated order of ranks, and an order of passes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import (
    DeviceMesh,
    Host,
    Operator,
    OperatorGraph,
    Pass,
    PassOrder,
    PipelineSchedule,
    Stage,
    StagedStrategy,
    TopoplanError,
    Zero,
)
from topoplan.arrays import F64, I32
from topoplan.model.sharding import Signature
from topoplan_engine.checked_values import build_order
from topoplan_engine.experiment import Choice
from topoplan_engine.experts import expert_dims, skew_of
from topoplan_engine.pass_orders import order_in_twos
from topoplan_engine.recomputation import ATTENTION, regions_of
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import queries_signature
from topoplan_engine.sharding.slots import slot_dims
from topoplan_engine.sharding.stage_programs import stage_programs
from topoplan_engine.training import shared_weights
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.degrees import EXPERT_AXES, Degrees, degrees_of, divisors, nearest
from topoplan_searcher_stated.layers import stages_of
from topoplan_searcher_stated.megatron import (
    Tokens,
    copied_expert_rules,
    copied_operators,
    expert_rules,
    heads_dim,
    position_rules,
    queries_rules,
    reads_rows,
    routed_rules,
    sample_rules,
    tensor_rules,
)
from topoplan_searcher_stated.overlapping import overlapped, turns_of
from topoplan_searcher_stated.settings import Settings, settings_of

__all__ = ["MeshRules", "Rules", "check_even", "devices_of", "order_of", "stages_on", "strategy_of"]


class MeshRules(NamedTuple):
    """How the operators of a model are cut on a mesh.

    Attributes:
        axes: of the mesh.
        rules: (n_ops,) of each operator, along each axis.
        copied: operators that make keys and values, of which several tensor-parallel devices have the same.
    """

    axes: tuple[str, ...]
    rules: Sequence[tuple[Signature, ...]]
    copied: frozenset[int]

    def of_some(self, operators: Sequence[int]) -> MeshRules:
        """Return the rules of some operators, which are numbered anew."""
        copied = frozenset(place for place, op in enumerate(operators) if op in self.copied)
        return MeshRules(self.axes, [self.rules[op] for op in operators], copied)


class Rules:
    """How the operators of a model are cut, for many plans; with ``whole_tables`` tensor axes cut no table of rows."""

    def __init__(self, graph: OperatorGraph, *, whole_tables: bool = False) -> None:
        self.graph, self._whole_tables = graph, whole_tables

    def cuts_as(self, rules: Rules) -> bool:
        """Return whether both cut operators equally."""
        return self.graph is rules.graph and self._whole_tables == rules._whole_tables

    def on_mesh(self, degrees: Degrees, options: Settings) -> MeshRules:
        """Return how operators are cut on the meshes of a plan.

        Raises:
            TopoplanError: nothing can be cut along a tensor axis, or keys and values cannot be copied.
        """
        return self._on_axes(degrees.mesh_axes, degrees.tp, degrees.sequence, options.cp_comm == "ulysses")

    @functools.cache  # noqa: B019  of one search, as long as it lives
    def _on_axes(self, axes: tuple[str, ...], tp: int, sequence: bool, by_heads: bool) -> MeshRules:
        routed = sequence and any(axis.startswith("ep") for axis in axes)
        along = {axis: self._along(axis, tp, sequence, by_heads, routed) for axis in axes}
        copied: frozenset[int] = frozenset()
        if "kv" in axes:
            copied = copied_operators(self.graph, along["kv"])
            along["kv"] = queries_rules(self.graph, along["kv"], copied)
        return MeshRules(axes, list(zip(*along.values(), strict=True)), copied)

    @functools.cache  # noqa: B019
    def _along(self, axis: str, tp: int, sequence: bool, by_heads: bool, routed: bool) -> Sequence[Signature]:
        graph = self.graph
        if axis in ("tp", "ep-tp", "edp-tp", "kv"):
            rules = tensor_rules(graph, tp, sequence=sequence, whole_tables=self._whole_tables)
            if not any(rule.dim >= 0 and op.weights for rule, op in zip(rules, graph.operators, strict=True)):
                raise TopoplanError(f"plan: tp={tp}: model {graph.name!r} has no matrices to cut (tp=1)")
            if axis == "edp-tp":
                return copied_expert_rules(graph, rules)
            tokens = Tokens.POSITIONS if sequence else Tokens.ALL
            if axis == "ep-tp":
                return expert_rules(graph, rules, tokens)
            return routed_rules(graph, rules) if routed else rules
        if axis == "ep":
            return expert_rules(graph, sample_rules(graph))
        if axis == "ep-cp":
            return expert_rules(graph, position_rules(graph, by_heads=by_heads))
        return sample_rules(graph) if axis in ("dp", "shard") else position_rules(graph, by_heads=by_heads)


def strategy_of(
    stated: Stated | Settings, graph: OperatorGraph, n_devices: int, rules: Rules | None = None, *, sound: bool = True
) -> tuple[StagedStrategy, Degrees]:
    """Return the strategy, and its degrees.

    Args:
        stated: the plan.
        graph, n_devices: what it is for.
        rules: of the graph, where many plans are made.
        sound: whether to check that every tensor can be brought to the shardings that operators need, which takes
            longer than all else.

    Raises:
        TopoplanError: degrees, devices, layers, heads or batch do not go together; the message names what would.
    """
    options = settings_of(stated, graph) if isinstance(stated, Stated) else stated
    degrees = degrees_of(options, graph, n_devices)
    turns = turns_of(options, degrees)
    order = order_of(options.schedule, degrees.pp, degrees.micro_batches // turns)
    order = order_in_twos(order) if turns == 2 else order
    stage_of = stages_of(graph, order, options.layers, n_devices // (degrees.tp * degrees.cp))
    mesh_rules = (rules or Rules(graph)).on_mesh(degrees, options)
    check_even(graph, degrees, mesh_rules.axes, mesh_rules.rules)
    sizes = tuple(degrees.of(axis) for axis in mesh_rules.axes)
    devices = devices_of(degrees)[order.rank_of]
    regions = regions_of(options.recompute, graph)
    parts = _parts(order)
    different = stages_on(
        graph, mesh_rules, sizes, options, stage_of.tolist(), list(devices[: max(parts) + 1]), regions
    )
    meshes = [DeviceMesh(axes=mesh_rules.axes, sizes=sizes, devices=each) for each in devices]
    stages = [attrs.evolve(different[part], mesh=mesh) for part, mesh in zip(parts, meshes, strict=True)]
    if options.overlap == "hidup" and turns == 1:
        return overlapped(graph, stages, options, degrees), degrees
    blocks = options.overlap == "megatron" and order.n_chunks == order.n_ranks
    flags = options.clip, blocks, False, options.overlap == "experts" or turns == 2
    strategy = StagedStrategy.of(graph, stages, order, degrees.micro_batches, *flags)
    if reason := why_invalid(strategy, graph, n_devices) if sound else None:
        raise TopoplanError(f"plan: {reason}")
    return strategy, degrees


def stages_on(
    graph: OperatorGraph,
    mesh_rules: MeshRules,
    sizes: tuple[int, ...],
    options: Settings,
    stage_of: Sequence[int],
    devices: Sequence[I32],
    regions: I32,
) -> list[Stage]:
    """Return the stages of a plan.

    Args:
        graph: the model.
        mesh_rules: how its operators are cut.
        sizes: of the mesh of each stage.
        options: what the plan says beside degrees.
        stage_of: (n_ops,) stage of each operator.
        devices: of each stage, at the places of its mesh.
        regions: (n_ops,) that run again.
    """
    axes, rules = mesh_rules.axes, mesh_rules.rules
    bucket = round(options.bucket_mb * 1e6)
    shared = _sharing_axes(axes, sizes, options.zero)
    sliced = shared if options.zero == 3 else ()
    summed = {(op, axes.index("kv")) for op in mesh_rules.copied}
    programs = stage_programs(graph, stage_of, [sizes] * len(devices), rules, bucket, sliced, summed, options.reshard)
    shares = _Shares.of(graph, rules, sizes, axes, _skew(options, graph))
    ring = _axis_of(axes, "cp") if options.cp_comm == "ring" else -1
    rings = np.array([ring if heads_dim(op) >= 0 else -1 for op in graph.operators], dtype=np.int32)
    if options.async_tp:
        along = _axis_of(axes, "tp")
        matrices = [
            bool(op.weights or shared_weights(op)) and row[along].dim >= 0 and not reads_rows(op)
            for op, row in zip(graph.operators, rules, strict=True)
        ]
        rings[matrices] = along
    zero, stages = _zero(options, shared), []
    for number, program in enumerate(programs):
        operators = np.flatnonzero(np.array(stage_of) == number)
        rerun = regions[operators] if (regions[operators] >= 0).any() else ()
        stages.append(
            Stage(
                operators=operators,
                mesh=DeviceMesh(axes=axes, sizes=sizes, devices=devices[number]),
                body=program,
                zero=zero,
                recomputed=rerun,
                shares=shares.rows,
                share_of=shares.of_operator[operators] if len(shares.rows) else (),
                rings=rings[operators] if (rings[operators] >= 0).any() else (),
                zigzag=options.zigzag,
                gradient_bytes=4 if options.grads == "fp32" else 0,
                gather_bytes=1 if options.gather == "fp8" else 0,
                dispatch=options.dispatch,
                slowdown=options.slowdown,
            )
        )
    return stages


def _sharing_axes(axes: Sequence[str], sizes: Sequence[int], level: int) -> tuple[int, ...]:
    """Return the axes along which ZeRO shares: of copies of weights; experts alone have some along ``edp-tp``."""
    data = "shard" if "shard" in axes else "dp"
    names = (data, "ep", "ep-cp", "cp", *(() if level == 3 else ("edp-tp",)))
    return tuple(k for k, axis in enumerate(axes) if axis in names and sizes[k] > 1)


def _zero(options: Settings, shared: tuple[int, ...]) -> Zero:
    """Return what devices along some axes share; nothing but slices of weights, which programs say, on level 3."""
    if options.zero not in (1, 2) or not shared:
        return Zero()
    return Zero(level=options.zero, axes=shared, ahead=options.overlap_gather)


def _axis_of(axes: Sequence[str], degree: str) -> int:
    """Return the axis of a degree that is one: experts are divided along all of it, or none."""
    return axes.index(degree if degree in axes else f"ep-{degree}")


def _skew(options: Settings, graph: OperatorGraph) -> float:
    """Return the tokens of the busiest expert parallel device over the mean; one device cannot have more than all."""
    return min(skew_of(graph), options.ep) if options.skew is None else options.skew


def _parts(order: PassOrder) -> list[int]:
    """(chunks,) which part of the model each chunk has: the k-th one of each copy of the model has the k-th."""
    first = (order.row_of[Pass.FORWARD] >= 0).argmax(axis=1).tolist()  # chunks of one copy have the same micro-batches
    return [first[:chunk].count(copy) for chunk, copy in enumerate(first)]


class _Shares(NamedTuple):
    """(k, D) rows, and (n_ops,) the row of each operator: what places have of an operator beside its parts."""

    rows: F64
    of_operator: I32

    @classmethod
    def of(
        cls,
        graph: OperatorGraph,
        rules: Sequence[tuple[Signature, ...]],
        sizes: tuple[int, ...],
        axes: tuple[str, ...],
        skew: float,
    ) -> _Shares:
        """Return the shares.

        Where heads of queries are divided by an axis, devices have their share of attention.  The first of the devices
        among which experts are divided has ``skew`` times the mean of their tokens, the others share the rest.
        """
        rows: dict[tuple[float, ...], int] = {}
        of_operator = np.full(len(rules), -1, dtype=np.int32)
        along = [k for k, axis in enumerate(axes) if axis in EXPERT_AXES and skew > 1]
        ep, first = math.prod(sizes[k] for k in along), along[0] if along else -1
        experts, count = expert_dims(graph), math.prod(sizes)
        places = np.unravel_index(np.arange(count), sizes)
        busiest = sum((places[k] for k in along), np.zeros(count, np.int64)) == 0
        tokens = tuple(np.where(busiest, skew, (ep - skew) / max(1, ep - 1)).tolist())
        for index, (op, row) in enumerate(zip(graph.operators, rules, strict=True)):
            queries = queries_signature(op)
            divided = math.prod(size for rule, size in zip(row, sizes, strict=True) if rule == queries and rule.dim < 0)
            if divided > 1:
                of_operator[index] = rows.setdefault((1 / divided,) * count, len(rows))
            elif first >= 0 and row[first].dim == experts[index] >= 0:
                of_operator[index] = rows.setdefault(tokens, len(rows))
        return cls(np.array([*rows]), of_operator)


def order_of(text: str, ranks: int, micro_batches: int) -> PassOrder:
    """Return the order of passes of a schedule; ``interleaved:2`` is short for two chunks.

    Raises:
        TopoplanError: there is no such schedule, or it has none for so many.
    """
    name, _, number = text.partition(":")
    choice = Choice.parse(f"{name}:chunks={number}" if number.isdigit() else text, "schedule")
    schedule = _host(choice.name).make(PipelineSchedule, choice.name, choice.options)
    try:
        return build_order(schedule, ranks, micro_batches)
    except TopoplanError as error:
        raise TopoplanError(f"plan: {error}") from None


@functools.cache
def _host(schedule: str) -> Host:
    """Return a host that has a schedule: by the names of plugins, which saves loading all others, else all of them."""
    host = Host.discover(prefix="schedule-")
    return host if schedule in {cls.name for cls in host.components(PipelineSchedule)} else Host.discover()


def check_even(
    graph: OperatorGraph, degrees: Degrees, axes: Sequence[str], rules: Sequence[tuple[Signature, ...]]
) -> None:
    """Raise for the first dimension that its degrees do not divide; slots of experts need not be divided evenly."""
    whole = zip(graph.operators, rules, expert_dims(graph), slot_dims(graph), strict=True)
    by_kind = sorted(whole, key=lambda each: each[0].kind not in ATTENTION)
    for op, row, expert_dim, slots in by_kind:  # heads are what users think of first
        product: dict[int, int] = {}
        for axis, rule in zip(axes, row, strict=True):
            if rule.dim >= 0 and degrees.of(axis) > 1:
                before = product.get(rule.dim, 1)
                product[rule.dim] = before * degrees.of(axis)
                size = op.dims[rule.dim].size
                if size < product[rule.dim] if rule.dim == slots else size % product[rule.dim]:
                    axis, before, degree = _stated(degrees, axes, axis, before, of_experts=rule.dim == expert_dim)
                    fits = [k for k in divisors(size) if size % (k * before) == 0]
                    if axis == "ep":  # it divides both the experts and the devices that have them
                        fits = [k for k in fits if degrees.dp * degrees.cp * degrees.tp % k == 0]
                    fits += [
                        k for k in divisors(size * _queries(op, rule.dim)) if k > size and k % size == 0 and before == 1
                    ]
                    if axis in ("tp", "cp"):  # what the plan has of it and of dp, or what divides that
                        fits = [k for k in fits if degrees.dp * degree % k == 0]
                    hint = f"nearest: {axis}={nearest(degree, fits)}"
                    if axis == "tp" and reads_rows(op):  # Megatron-LM, megatron/training/tokenizer: 128 for each device
                        padded = -(-size // (128 * degrees.tp)) * 128 * degrees.tp
                        if padded < 2 * size:  # a vocabulary, and no table of few rows, as recommendation models have
                            pads = f"it divides {padded}, to which Megatron-LM alone pads them: give the model so many"
                            hint = f"{pads}; else {hint}"
                    what = "experts" if rule.dim == expert_dim else _what(op, rule.dim)
                    raise TopoplanError(
                        f"plan: {axis}={degree} does not divide the {size} {what} of operator {op.name!r} ({hint})"
                    )


def _stated(degrees: Degrees, axes: Sequence[str], axis: str, before: int, *, of_experts: bool) -> tuple[str, int, int]:
    """Return the degree that an axis is of, into how many parts others cut a dimension before, and its devices.

    Args:
        degrees: of the plan.
        axes: of the mesh.
        axis: one of them.
        before: parts into which the axes before cut the dimension.
        of_experts: whether the dimension counts experts.
    """
    if of_experts and axis in EXPERT_AXES:
        return "ep", 1, degrees.ep
    for degree, factors in {"tp": ("edp-tp", "ep-tp", "tp", "kv"), "cp": ("ep-cp", "cp")}.items():
        if axis in factors:
            same = [each for each in axes[: axes.index(axis)] if each in factors]
            return degree, before // math.prod(map(degrees.of, same)), getattr(degrees, degree)
    return axis, before, degrees.of(axis)


def _queries(op: Operator, dim: int) -> int:
    """Return how many heads of queries share the iterations of a dimension."""
    grouped = queries_signature(op) is not None and op.dims[dim].name == "h"
    return op.dims[dim + 1].size if grouped else 1


def _what(op: Operator, dim: int) -> str:
    """Return what a dimension counts, in words."""
    if dim == op.sample_dim:
        return "samples"
    if op.kind in ATTENTION and op.dims[dim].name == "h":
        return "heads (of keys and values)"
    if reads_rows(op):
        return "words"
    axes = op.outputs[0].axes
    if len(axes) > 2 and axes[1].dim == dim:
        return "positions"
    return f"iterations of {op.dims[dim].name!r}"


def devices_of(degrees: Degrees) -> I32:
    """(ranks of the pipeline, devices) the devices of each rank, in the order of their places in a mesh."""
    strides = degrees.strides
    axes = ["pp", *degrees.mesh_axes]
    numbers = np.zeros((1,), dtype=np.int64)
    for axis in axes:
        numbers = (numbers[:, None] + np.arange(degrees.of(axis)) * strides[axis]).ravel()
    return numbers.reshape(degrees.pp, math.prod(degrees.of(axis) for axis in axes[1:])).astype(np.int32)

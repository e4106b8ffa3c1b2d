"""From degrees to a strategy: stages of whole layers, meshes in the stated order of ranks, and an order of passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from topoplan import (
    DeviceMesh,
    Host,
    Operator,
    OperatorGraph,
    PassOrder,
    PipelineSchedule,
    Stage,
    StagedStrategy,
    TopoplanError,
    Zero,
)
from topoplan.arrays import I32
from topoplan.model.sharding import Signature
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.experiment import Choice
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.sharding.stage_programs import stage_programs
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.degrees import Degrees, degrees_of, divisors, nearest
from topoplan_searcher_stated.megatron import expert_rules, position_rules, reads_rows, sample_rules, tensor_rules
from topoplan_searcher_stated.recomputation import ATTENTION, regions_of
from topoplan_searcher_stated.settings import Settings, settings_of

__all__ = ["strategy_of"]


def strategy_of(stated: Stated | Settings, graph: OperatorGraph, n_devices: int) -> tuple[StagedStrategy, Degrees]:
    """Return the strategy, and its degrees.

    Raises:
        TopoplanError: degrees, devices, layers, heads or batch do not go together; the message names what would.
    """
    options = settings_of(stated, graph) if isinstance(stated, Stated) else stated
    degrees = degrees_of(options, graph, n_devices)
    order = _order(options, degrees)
    stage_of = _stages(graph, degrees.pp, order)
    axes = degrees.mesh_axes
    rules = list(zip(*(_rules(graph, degrees, axis) for axis in axes), strict=True))
    _check_even(graph, degrees, axes, rules)
    sizes = tuple(degrees.of(axis) for axis in axes)
    devices = _devices(degrees)
    bucket = round(options.bucket_mb * 1e6)
    sliced = axes.index("dp") if options.zero == 3 else None
    programs = stage_programs(graph, stage_of.tolist(), [sizes] * order.n_chunks, rules, bucket, sliced)
    regions = regions_of(options.recompute, graph)
    shared = tuple(k for k, axis in enumerate(axes) if axis in ("dp", "ep", "cp") and sizes[k] > 1)
    zero = Zero(level=options.zero, axes=shared) if options.zero in (1, 2) and shared else Zero()
    stages = []
    for number, program in enumerate(programs):
        mesh = DeviceMesh(axes=axes, sizes=sizes, devices=devices[order.rank_of[number]])
        operators = np.flatnonzero(stage_of == number)
        rerun = regions[operators] if (regions[operators] >= 0).any() else ()
        stages.append(Stage(operators=operators, mesh=mesh, program=program, zero=zero, recomputed=rerun))
    strategy = StagedStrategy.of(graph, stages, order, degrees.micro_batches)
    if reason := why_invalid(strategy, graph, n_devices):
        raise TopoplanError(f"plan: {reason}")
    return strategy, degrees


def _order(options: Settings, degrees: Degrees) -> PassOrder:
    """Return the order of passes; ``interleaved:2`` is short for two chunks."""
    text = options.schedule
    name, _, number = text.partition(":")
    choice = Choice.parse(f"{name}:chunks={number}" if number.isdigit() else text, "schedule")
    schedule = Host.discover().make(PipelineSchedule, choice.name, choice.options)
    try:
        return schedule.order(degrees.pp, degrees.micro_batches)
    except TopoplanError as error:
        raise TopoplanError(f"plan: {error}") from None


def _stages(graph: OperatorGraph, ranks: int, order: PassOrder) -> I32:
    """(n_ops,) the stage of each operator: equally many layers, with what comes before the first, and behind the last.

    Raises:
        TopoplanError: the model has no layers, or their number does not divide.
    """
    names = layers_of(graph).layer
    layers = list(dict.fromkeys(name for name in names if name))
    chunks = order.n_chunks
    if chunks == 1:
        return np.zeros(len(names), dtype=np.int32)
    if not layers:
        raise TopoplanError(f"plan: pp={ranks}: model {graph.name!r} has no numbered layers to divide (pp=1)")
    if len(layers) % chunks:
        per_rank = chunks // ranks
        fits = [k for k in divisors(len(layers)) if len(layers) % (k * per_rank) == 0]
        hint = f"pp={nearest_value}" if (nearest_value := nearest(ranks, fits)) else "schedule=1f1b"
        what = f"pp={ranks}" if per_rank == 1 else f"pp={ranks} x {per_rank} chunks"
        raise TopoplanError(
            f"plan: {what} does not divide the {len(layers)} layers of model {graph.name!r} (nearest: {hint})"
        )
    stage_of_layer = {name: k * chunks // len(layers) for k, name in enumerate(layers)}
    stage, current = np.zeros(len(names), dtype=np.int32), 0
    last = max(index for index, name in enumerate(names) if name)
    for index, name in enumerate(names):
        current = max(current, stage_of_layer[name]) if name else current
        stage[index] = chunks - 1 if index > last else current
    return stage


def _rules(graph: OperatorGraph, degrees: Degrees, axis: str) -> list[Signature]:
    if axis == "tp":
        if degrees.tp == 1:
            return [signatures(op)[-1] for op in graph.operators]
        rules = tensor_rules(graph, degrees.tp, sequence=degrees.sequence)
        if not any(rule.dim >= 0 and op.weights for rule, op in zip(rules, graph.operators, strict=True)):
            raise TopoplanError(f"plan: tp={degrees.tp}: model {graph.name!r} has no matrices to cut (tp=1)")
        return rules
    if axis == "ep":
        return expert_rules(graph)
    if degrees.of(axis) == 1 and axis != "dp":
        return [signatures(op)[-1] for op in graph.operators]
    return sample_rules(graph) if axis == "dp" else position_rules(graph)


def _check_even(
    graph: OperatorGraph, degrees: Degrees, axes: Sequence[str], rules: Sequence[tuple[Signature, ...]]
) -> None:
    """Raise for the first dimension that its degrees do not divide."""
    by_kind = sorted(zip(graph.operators, rules, strict=True), key=lambda pair: pair[0].kind not in ATTENTION)
    for op, row in by_kind:  # heads are what users think of first
        product: dict[int, int] = {}
        for axis, rule in zip(axes, row, strict=True):
            if rule.dim >= 0 and degrees.of(axis) > 1:
                before = product.get(rule.dim, 1)
                product[rule.dim] = before * degrees.of(axis)
                size = op.dims[rule.dim].size
                if size % product[rule.dim]:
                    fits = [k for k in divisors(size) if size % (k * before) == 0]
                    hint = f"nearest: {axis}={nearest(degrees.of(axis), fits)}"
                    if axis == "tp" and reads_rows(op):  # Megatron-LM, megatron/training/tokenizer: 128 for each device
                        padded = -(-size // (128 * degrees.tp)) * 128 * degrees.tp
                        hint = f"Megatron-LM pads them to {padded}: give the model so many; else {hint}"
                    raise TopoplanError(
                        f"plan: {axis}={degrees.of(axis)} does not divide the {size} {_what(op, rule.dim)} of "
                        f"operator {op.name!r} ({hint})"
                    )


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


def _devices(degrees: Degrees) -> I32:
    """(ranks of the pipeline, devices) the devices of each rank, in the order of their places in a mesh."""
    strides, stride = {}, 1
    for axis in degrees.layout:
        strides[axis] = stride
        stride *= degrees.of(axis)
    axes = ["pp", *degrees.mesh_axes]
    numbers = np.zeros((1,), dtype=np.int64)
    for axis in axes:
        numbers = (numbers[:, None] + np.arange(degrees.of(axis)) * strides[axis]).ravel()
    return numbers.reshape(degrees.pp, math.prod(degrees.of(axis) for axis in axes[1:])).astype(np.int32)

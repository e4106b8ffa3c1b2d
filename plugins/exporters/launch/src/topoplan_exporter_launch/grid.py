"""Reads a strategy as degrees of parallelism: stages of a pipeline x replicas of the data x slices of tensors.

Megatron-LM, torchtitan and DeepSpeed know a grid of devices whose axes each have one meaning, the same for all
operators.  `grid_of` finds this grid, or names the first operator that does not fit into it.  Three kinds of plans are
grids:

* data parallelism: every operator cuts its samples, and nothing else, over the same devices,
* pipelines whose stages are data parallel over equally many devices,
* SPMD programs on a mesh along each of whose axes all operators cut samples (data), or none does (tensor), or experts
  are cut where weights have them, and samples elsewhere (expert).

Ranks follow the grid with tensor slices fastest, then replicas, then stages.  This is the order of Megatron-LM
(``tp-cp-ep-dp-pp``), of torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp) and of DeepSpeed's tensor groups.
"""

from __future__ import annotations

import math
from enum import StrEnum

import attrs
import numpy as np

from topoplan import Operator, OperatorGraph, PipelineStrategy, Placement, SpmdStrategy, StagedStrategy
from topoplan.arrays import I32
from topoplan.model.graph import Role, Slices
from topoplan.model.schedule import ScheduleKind, pipeline_depth
from topoplan.model.sharding import Sharding
from topoplan.model.spmd import SpmdProgram
from topoplan_exporter_launch.targets import Target
from topoplan_trainer_plans import PlanLike

__all__ = ["SMALL", "Axis", "Grid", "Kept", "cuts_experts", "grid_of"]

#: Elements of a weight that may stay whole where others are sliced: DeepSpeed's stage3_param_persistence_threshold.
SMALL = 100_000


class Kept(StrEnum):
    """What a replica of the data keeps of parameters, gradients and optimizer state."""

    WHOLE = "whole"
    """All of them."""
    STATE_SLICES = "state slices"
    """All parameters; a slice of gradients and optimizer state (ZeRO, second stage)."""
    SLICES = "slices"
    """A slice of everything (ZeRO, third stage; fully sharded data parallelism)."""


class Axis(StrEnum):
    """What an axis of a mesh is for."""

    DATA = "data"
    EXPERT = "expert"
    TENSOR = "tensor"


@attrs.frozen(eq=False)
class Grid:
    """Degrees of parallelism, and the devices that they are laid out on.

    Attributes:
        devices: (pipeline, data, tensor) device at each place; ranks are places in this order.
        experts: how many neighbours along ``data`` share the experts; 1 if none do.
        kept: what a replica keeps.
        kind, micro_batches: the schedule; one micro-batch where there is no pipeline.
        stage: (n_ops,) stage (of an interleaved pipeline: chunk) of each operator.
        recompute: whether all stages run their forward passes twice.
        tensor_axis: axis of the SPMD program's mesh that cuts tensors; -1 if there is none.
        samples: of a micro-batch of one replica.
    """

    devices: I32
    experts: int
    kept: Kept
    kind: ScheduleKind
    micro_batches: int
    stage: tuple[int, ...]
    recompute: bool
    tensor_axis: int
    samples: int

    @property
    def pipeline(self) -> int:
        """Number of groups of devices that a micro-batch passes."""
        return int(self.devices.shape[0])

    @property
    def data(self) -> int:
        """Number of replicas."""
        return int(self.devices.shape[1])

    @property
    def tensor(self) -> int:
        """Number of slices of tensors."""
        return int(self.devices.shape[2])

    @property
    def chunks(self) -> int:
        """Stages of one device; more than 1 in an interleaved pipeline."""
        return (max(self.stage) + 1) // self.pipeline


def grid_of(plan: PlanLike, target: Target) -> Grid:
    """Return the grid of a plan.

    Raises:
        TopoplanError: the plan is no grid; the message names the operator and what ``target`` can express.
    """
    graph, strategy = target.searched(plan)
    if isinstance(strategy, StagedStrategy):
        raise target.unsuited("the plan has stages with programs on meshes of their own, which are not written yet")
    if isinstance(strategy, SpmdStrategy):
        if not strategy.whole_batch:
            raise target.unsuited(
                f"the plan overlaps {strategy.schedule.micro_batches} micro-batches on all devices "
                "(schedule two-microbatch; -s spmd:schedule=whole-batch plans without)"
            )
        return _of_program(graph, strategy.program, target)
    if isinstance(strategy, PipelineStrategy):
        return _of_pipeline(graph, strategy, target)
    devices = _replicas(graph, range(len(graph.operators)), strategy.placements, target)
    return Grid(
        devices=devices.reshape(1, -1, 1),
        experts=1,
        kept=Kept.WHOLE,
        kind=ScheduleKind.GPIPE,
        micro_batches=1,
        stage=(0,) * len(graph.operators),
        recompute=False,
        tensor_axis=-1,
        samples=_share(graph, len(devices), target),
    )


def _of_pipeline(graph: OperatorGraph, strategy: PipelineStrategy, target: Target) -> Grid:
    schedule, operators = strategy.schedule, graph.operators
    stage = schedule.stage.tolist()
    rows = []
    for number in range(schedule.n_stages):
        members = [index for index, of in enumerate(stage) if of == number]
        rows.append(_replicas(graph, members, strategy.placements, target))
        if len(rows[-1]) != len(rows[0]):
            raise target.refusal(
                operators[members[0]],
                f"begins stage {number} of {len(rows[-1])} devices, but stage 0 has {len(rows[0])}",
            )
    of_part = np.repeat(schedule.stage, [placement.parts for placement in strategy.placements])
    depth = pipeline_depth(
        schedule.kind, of_part, np.concatenate([placement.devices for placement in strategy.placements])
    )
    for number, row in enumerate(rows):
        if not np.array_equal(row, rows[number % depth]):
            first = operators[stage.index(number)]
            raise target.refusal(first, f"has its replicas in another order than chunk {number % depth}")
    if any(schedule.recompute) and not all(schedule.recompute):
        number = schedule.recompute.index(True)
        raise target.refusal(
            operators[stage.index(number)], f"is in stage {number}, which recomputes its forward pass; others do not"
        )
    return Grid(
        devices=np.stack(rows[:depth])[:, :, None],
        experts=1,
        kept=Kept.WHOLE,
        kind=schedule.kind,
        micro_batches=schedule.micro_batches,
        stage=tuple(stage),
        recompute=any(schedule.recompute),
        tensor_axis=-1,
        samples=_share(graph, schedule.micro_batches * len(rows[0]), target),
    )


def _replicas(
    graph: OperatorGraph, members: list[int] | range, placements: tuple[Placement, ...], target: Target
) -> I32:
    """Return the devices that all these operators cut their samples over, part by part.

    Raises:
        TopoplanError: an operator is cut or placed otherwise.
    """
    first = members[0]
    devices = placements[first].devices
    for index in members:
        op, placement = graph.operators[index], placements[index]
        for number, (dim, degree) in enumerate(zip(op.dims, placement.degrees, strict=True)):
            if isinstance(degree, Slices):
                raise target.refusal(op, f"is cut along {dim.name!r} into slices of {degree}")
            if degree > 1 and number != op.sample_dim:
                raise target.refusal(op, f"is cut along {dim.name!r} into {degree}")
        if not np.array_equal(placement.devices, devices):
            raise target.refusal(
                op, f"runs on {_listed(placement.devices)}, but {graph.operators[first].name!r} on {_listed(devices)}"
            )
    if len(np.unique(devices)) < len(devices):
        raise target.refusal(graph.operators[first], "has several parts on one device")
    return devices


def _listed(devices: I32) -> str:
    numbers = [*map(str, devices[:8].tolist()), *(["…"] if len(devices) > 8 else [])]
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(numbers)}"


def _share(graph: OperatorGraph, parts: int, target: Target) -> int:
    """Return the samples of one of ``parts`` equal parts of the batch."""
    if graph.batch_size % parts:
        raise target.unsuited(f"a batch of {graph.batch_size} samples is no multiple of {parts} parts")
    return graph.batch_size // parts


def _of_program(graph: OperatorGraph, program: SpmdProgram, target: Target) -> Grid:
    axes = [_axis(graph, program, number, target) for number in range(len(program.mesh))]
    order = [
        number
        for kind in Axis
        for number, (axis, size) in enumerate(zip(axes, program.mesh, strict=True))
        if axis is kind and size > 1
    ]
    sizes = {kind: math.prod(program.mesh[number] for number in order if axes[number] is kind) for kind in Axis}
    tensors = [number for number in order if axes[number] is Axis.TENSOR]
    if len(tensors) > 1:
        op = next(op for op, rules in zip(graph.operators, program.rules, strict=True) if rules[tensors[1]].dim >= 0)
        raise target.refusal(
            op, f"is cut along two axes of the mesh, {tensors[0]} and {tensors[1]}, that cut no samples"
        )
    devices = np.arange(program.n_devices, dtype=np.int32).reshape(program.mesh)
    unused = [number for number in range(len(program.mesh)) if number not in order]
    data = sizes[Axis.DATA] * sizes[Axis.EXPERT]
    return Grid(
        devices=devices.transpose([*unused, *order]).reshape(1, data, sizes[Axis.TENSOR]),
        experts=sizes[Axis.EXPERT],
        kept=_kept(graph, program, [number for number in order if axes[number] is Axis.DATA], target),
        kind=ScheduleKind.GPIPE,
        micro_batches=1,
        stage=(0,) * len(graph.operators),
        recompute=False,
        tensor_axis=tensors[0] if tensors else -1,
        samples=_share(graph, data, target),
    )


def _axis(graph: OperatorGraph, program: SpmdProgram, number: int, target: Target) -> Axis:
    """Return what an axis of the mesh is for, by what every operator cuts along it."""
    if program.mesh[number] == 1:
        return Axis.DATA
    cuts = [rules[number].dim for rules in program.rules]
    samples = [index for index, op in enumerate(graph.operators) if cuts[index] >= 0 and cuts[index] == op.sample_dim]
    exceptions = [
        index for index, op in enumerate(graph.operators) if op.sample_dim >= 0 and cuts[index] != op.sample_dim
    ]
    if not exceptions:
        return Axis.DATA
    if not samples:
        return Axis.TENSOR
    weighted = [index for index in exceptions if graph.operators[index].weights]
    if weighted and all(cuts_experts(graph.operators[index], cuts[index]) for index in weighted):
        return Axis.EXPERT
    odd = graph.operators[(weighted or exceptions)[0]]
    cut = cuts[(weighted or exceptions)[0]]
    what = f"is cut along {odd.dims[cut].name!r}" if cut >= 0 else "is whole"
    raise target.refusal(
        odd, f"{what} on axis {number} of the mesh, where {graph.operators[samples[0]].name!r} cuts its samples"
    )


def cuts_experts(op: Operator, dim: int) -> bool:
    """Say whether a dimension counts experts: every expert has a matrix of its own, and inputs of its own."""
    if dim < 0 or op.dims[dim].role is Role.REDUCTION:
        return False
    return any(len(w.axes) >= 3 and w.axes[0].dim == dim for w in op.weights) and all(
        any(axis.dim == dim for axis in x.axes) for x in op.inputs
    )


def _kept(graph: OperatorGraph, program: SpmdProgram, data: list[int], target: Target) -> Kept:
    """Return what replicas along the axes ``data`` keep; all operators must treat large weights equally."""
    whole: Operator | None = None
    sliced: Operator | None = None
    for index, op in enumerate(graph.operators):
        count = len(op.inputs)
        for k in range(count, count + len(op.weights)):
            stored, used = program.stored[index][k], program.wanted(index, k)
            for axis, (form, use) in enumerate(zip(stored, used, strict=True)):
                if axis not in data and _slices(form) != _slices(use):
                    raise target.refusal(op, f"stores weight {op.weights[k - count].name!r} as {form} and uses {use}")
            if any(stored[axis].sliced for axis in data):
                sliced = sliced or op
            elif op.weights[k - count].elements >= SMALL:
                whole = whole or op
    if sliced is None:
        return Kept.STATE_SLICES if program.sharded_state else Kept.WHOLE
    if whole is not None:
        raise target.refusal(whole, f"keeps its weights whole, but {sliced.name!r} slices them over the data")
    return Kept.SLICES


def _slices(sharding: Sharding) -> int:
    return sharding.axis if sharding.sliced else -1

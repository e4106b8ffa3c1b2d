"""Reads a strategy as degrees of parallelism: stages of a pipeline x replicas of the data x slices of tensors.

Megatron-LM, torchtitan and DeepSpeed know a grid of devices whose axes each have one meaning, the same for all
operators.  `grid_of` finds this grid, or names the first operator that does not fit into it.  Four kinds of plans are
grids:

* data parallelism: every operator cuts its samples, and nothing else, over the same devices,
* pipelines whose stages are data parallel over equally many devices,
* SPMD programs on a mesh each of whose axes is for one thing (`meshes`),
* stages with such programs on equal meshes (`stages`).

Ranks follow the grid with tensor slices fastest, then positions, then replicas, then stages.  This is the order of
Megatron-LM (``tp-cp-ep-dp-pp``), of torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp) and of DeepSpeed's tensor
groups.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import OperatorGraph, PassOrder, Placement, StagedStrategy
from topoplan.arrays import I32
from topoplan.model.graph import Slices
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.distinct import distinct_values
from topoplan_engine.pass_orders import alternating_order, is_in_twos
from topoplan_exporter_launch.meshes import Kept, Places, places_of, sliced_along
from topoplan_exporter_launch.stages import devices_of_ranks, program_of, recomputed_of, rings_of, shared_of
from topoplan_exporter_launch.targets import Target
from topoplan_trainer_plans import PlanLike

__all__ = ["Grid", "grid_of"]

_SHARED = {0: Kept.WHOLE, 1: Kept.OPTIMIZER_SLICES, 2: Kept.STATE_SLICES}


@attrs.frozen(eq=False, kw_only=True)
class Grid:
    """Degrees of parallelism, and the devices that they are laid out on.

    Attributes:
        devices: (pipeline, data x context, tensor) device at each place; ranks are places in this order.
        context: how many neighbours along the replicas share a sample by its positions; 1 if none do.
        context_way: how attention gets all positions; see `meshes.Places`.
        zigzag: whether positions are dealt in pairs from both ends.
        experts: how many neighbours share the experts; 1 if none do.
        expert_tensor: how many devices share the matrices of each expert.
        kept: what a replica keeps.
        groups: of replicas; those of one group share what is in slices, those of different ones have copies.
        order: which pass of which stage each rank of the pipeline runs, in turn; one rank where there is no pipeline.
        stage: (n_ops,) stage (of an interleaved pipeline: chunk) of each operator.
        recompute: what runs again in backward passes, in the words of `topoplan_engine.recomputation`.
        program: of all operators, on the mesh of each stage; None where operators are data parallel.
        tensor_axes: axes of the program's mesh that cut tensors; see `meshes.Places`.
        samples: of a micro-batch of one replica.
        gradient_bytes: of a number of a gradient where it is summed; 0: as many as of a weight.
        gather_bytes: of a number of a weight where it is gathered; 0: as many as it has.
        gathers_ahead: whether weights that devices share are gathered ahead of forward passes.
        clips: whether updates wait for the norm of all gradients; None where the plan does not say.
        pairs: whether a forward and a backward pass that follow each other run at the same time.
    """

    devices: I32
    context: int = 1
    context_way: str = "gather"
    zigzag: bool = True
    experts: int = 1
    expert_tensor: int = 1
    kept: Kept = Kept.WHOLE
    groups: int = 1
    order: PassOrder
    stage: tuple[int, ...]
    recompute: str = "none"
    program: SpmdProgram | None = None
    tensor_axes: tuple[int, ...] = ()
    samples: int
    gradient_bytes: int = 0
    gather_bytes: int = 0
    gathers_ahead: bool = False
    clips: bool | None = None
    pairs: bool = False

    @property
    def pipeline(self) -> int:
        """Number of groups of devices that a micro-batch passes."""
        return int(self.devices.shape[0])

    @property
    def data(self) -> int:
        """Number of replicas."""
        return int(self.devices.shape[1]) // self.context

    @property
    def tensor(self) -> int:
        """Number of slices of tensors."""
        return int(self.devices.shape[2])

    @property
    def chunks(self) -> int:
        """Stages of one device; more than 1 in an interleaved pipeline."""
        return (max(self.stage) + 1) // self.pipeline

    @property
    def micro_batches(self) -> int:
        """Equal parts of a replica's share of the batch."""
        return self.order.n_micro_batches


def grid_of(plan: PlanLike, target: Target) -> Grid:
    """Return the grid of a plan.

    Raises:
        TopoplanError: the plan is no grid; the message names the operator and what ``target`` can express.
    """
    graph, strategy = target.searched(plan)
    if strategy.program is not None and not strategy.whole_batch:
        raise target.unsuited(
            f"the plan overlaps {strategy.micro_batches} micro-batches on all devices "
            "(schedule two-microbatch; -s spmd:schedule=whole-batch plans without)"
        )
    if isinstance(strategy, StagedStrategy):
        if strategy.pairs and is_in_twos(strategy.order):
            raise target.unsuited("the plan runs two micro-batches at the same time (overlap=all plans without)")
        of_stages = _of_pipeline if strategy.is_placed else _of_stages
        return of_stages(graph, strategy, target)
    devices = _replicas(graph, range(len(graph.operators)), strategy.placements, target)
    return Grid(
        devices=devices.reshape(1, -1, 1),
        order=alternating_order("1f1b", [0], 1),
        stage=(0,) * len(graph.operators),
        samples=_share(graph, len(devices), target),
    )


def _of_stages(graph: OperatorGraph, strategy: StagedStrategy, target: Target) -> Grid:
    """Return the grid of stages with programs; one that takes the whole batch says nothing of passes and clipping."""
    first, program = strategy.stages[0], strategy.program or program_of(graph, strategy, target)
    places = places_of(graph, program, rings_of(graph, strategy), target)
    level, shared = shared_of(graph, strategy, target)
    of_state = (Kept.STATE_SLICES, {*places.data_axes}) if program.sharded_state else (_SHARED[level], shared)
    kept_parts, groups = _kept(graph, program, places, of_state, target)
    rows = [stage.mesh.devices for stage in strategy.stages]
    grid = Grid(
        devices=devices_of_ranks(graph, strategy, rows, target)[:, places.devices],
        context=places.context,
        context_way=places.context_way,
        experts=places.experts,
        expert_tensor=places.expert_tensor,
        kept=kept_parts,
        groups=groups,
        order=strategy.order,
        stage=tuple(strategy.stage_of.tolist()),
        recompute=recomputed_of(graph, strategy, target),
        program=program,
        tensor_axes=places.tensor_axes,
        zigzag=all(stage.zigzag for stage in strategy.stages),
        samples=_share(graph, strategy.micro_batches * (len(places.devices) // places.context), target),
        gradient_bytes=first.gradient_bytes,
        gather_bytes=first.gather_bytes,
        gathers_ahead=first.zero.ahead,
        clips=strategy.clips,
        pairs=strategy.pairs,
    )
    if strategy.program is None:
        return grid
    return attrs.evolve(grid, order=alternating_order("1f1b", [0], 1), stage=(0,) * len(grid.stage), clips=None)


def _kept(
    graph: OperatorGraph, program: SpmdProgram, places: Places, shared: tuple[Kept, set[int]], target: Target
) -> tuple[Kept, int]:
    """Return what a replica keeps, and the groups of neighbouring replicas that share it, given what else is shared.

    Raises:
        TopoplanError: those that share are no neighbours.
    """
    kept_parts, axes = shared
    if sliced := sliced_along(graph, program, places, target):
        kept_parts, axes = Kept.SLICES, sliced
    if kept_parts is Kept.WHOLE:
        return kept_parts, 1
    apart = [axis for axis in places.replica_axes if axis not in axes]
    if apart != [*places.replica_axes[: len(apart)]] or (apart and not axes & set(places.replica_axes)):
        raise target.unsuited("the plan shares weights or state with replicas that are no neighbours")
    return kept_parts, math.prod(program.mesh[axis] for axis in apart)


def _of_pipeline(graph: OperatorGraph, strategy: StagedStrategy, target: Target) -> Grid:
    rows, recomputes = [], strategy.recomputes
    first_of = [graph.operators[stage.operators[0]] for stage in strategy.stages]
    for number, stage in enumerate(strategy.stages):
        rows.append(_replicas(graph, stage.operators.tolist(), strategy.placements, target))
        if len(rows[-1]) != len(rows[0]):
            what = f"begins stage {number} of {len(rows[-1])} devices, but stage 0 has {len(rows[0])}"
            raise target.refusal(first_of[number], what)
    if any(recomputes) and not all(recomputes):
        number = recomputes.index(True)
        what = f"is in stage {number}, which recomputes its forward pass; others do not"
        raise target.refusal(first_of[number], what)
    return Grid(
        devices=devices_of_ranks(graph, strategy, rows, target)[:, :, None],
        order=strategy.order,
        stage=tuple(strategy.stage_of.tolist()),
        recompute="full" if any(recomputes) else "none",
        samples=_share(graph, strategy.micro_batches * len(rows[0]), target),
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
    if len(distinct_values(devices)) < len(devices):
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

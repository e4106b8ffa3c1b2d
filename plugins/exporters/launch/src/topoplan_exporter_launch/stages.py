"""Reads a staged strategy as one program on equal meshes: what its stages have in common, or the first that differs."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import OperatorGraph, StagedStrategy
from topoplan.arrays import I32
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.program_strategies import program_of as program_of_parts
from topoplan_engine.recomputation import words_of_regions
from topoplan_exporter_launch.targets import Target

__all__ = ["devices_of_ranks", "program_of", "recomputed_of", "rings_of", "shared_of"]


def program_of(graph: OperatorGraph, strategy: StagedStrategy, target: Target) -> SpmdProgram:
    """Return the programs of all stages as one.

    Raises:
        TopoplanError: a stage has another mesh than the first one, or there are two copies of the model.
    """
    if strategy.copy_of.any():
        raise target.unsuited(f"the plan has two copies of the model in one pipeline (schedule {strategy.order.name})")
    first = strategy.stages[0].mesh
    for number, stage in enumerate(strategy.stages):
        if (stage.mesh.axes, stage.mesh.sizes) != (first.axes, first.sizes):
            raise target.refusal(
                graph.operators[stage.operators[0]],
                f"begins stage {number} on a mesh of {_sizes(stage.mesh.axes, stage.mesh.sizes)}, but stage 0 has one "
                f"of {_sizes(first.axes, first.sizes)}",
            )
    program = program_of_parts(attrs.evolve(strategy, one_stream=True))
    return attrs.evolve(program, gathers_again=any(stage.program.gathers_again for stage in strategy.stages))


def rings_of(graph: OperatorGraph, strategy: StagedStrategy) -> list[int]:
    """(n_ops) axis of the mesh along which an operator gets what it reads from neighbour to neighbour; -1 for none."""
    axis = np.full(len(graph.operators), -1, dtype=np.int32)
    for stage in strategy.stages:
        if len(stage.rings):
            axis[stage.operators] = stage.rings
    return axis.tolist()


def _sizes(axes: tuple[str, ...], sizes: tuple[int, ...]) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True))


def devices_of_ranks(graph: OperatorGraph, strategy: StagedStrategy, rows: Sequence[I32], target: Target) -> I32:
    """(pipeline, D) devices of each rank, given those of each stage, which are as many.

    Raises:
        TopoplanError: two chunks of one rank have its devices in different order.
    """
    devices: dict[int, I32] = {}
    for number, (row, rank) in enumerate(zip(rows, strategy.order.rank_of.tolist(), strict=True)):
        if not np.array_equal(devices.setdefault(rank, row), row):
            first = graph.operators[strategy.stages[number].operators[0]]
            raise target.refusal(first, f"begins stage {number} with devices in another order than that of its rank")
    return np.stack([devices[rank] for rank in range(strategy.order.n_ranks)])


def shared_of(graph: OperatorGraph, strategy: StagedStrategy, target: Target) -> tuple[int, set[int]]:
    """Return the level at which devices share gradients and optimizer state, and the axes along which they do.

    Raises:
        TopoplanError: stages differ in it, or in the bytes of gradients.
    """
    first = strategy.stages[0]
    for number, stage in enumerate(strategy.stages):
        op = graph.operators[stage.operators[0]]
        if stage.zero != first.zero:
            raise target.refusal(
                op, f"begins stage {number} with ZeRO {stage.zero.level}, shared otherwise than in stage 0"
            )
        if (stage.gradient_bytes, stage.gather_bytes) != (first.gradient_bytes, first.gather_bytes):
            raise target.refusal(op, f"begins stage {number} with gradients or weights of other bytes than stage 0")
    return first.zero.level, {axis for axis in first.zero.axes if first.mesh.sizes[axis] > 1}


def recomputed_of(graph: OperatorGraph, strategy: StagedStrategy, target: Target) -> str:
    """Return what runs again, in the words of `topoplan_engine.recomputation`.

    Raises:
        TopoplanError: regions are not the same modules or layers of all stages.
    """
    regions = np.full(len(graph.operators), -1, dtype=np.int64)
    for number, stage in enumerate(strategy.stages):
        first_region, numbers = number * len(regions), stage.regions
        regions[stage.operators] = np.where(
            numbers >= 0, first_region + numbers, np.where(numbers < -1, numbers - first_region, -1)
        )
    words = words_of_regions(regions.tolist(), graph)
    if not words:
        first = int(np.flatnonzero(regions >= 0)[0])
        raise target.refusal(
            graph.operators[first], "begins a region that runs again, and regions are neither layers nor modules of all"
        )
    return words

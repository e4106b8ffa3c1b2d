"""Staged strategies that tests share: one program as a stage, pipelines of single devices, and hybrids."""

from __future__ import annotations

import numpy as np

from topoplan import DeviceMesh, Stage, StagedStrategy, Zero
from topoplan.model.pass_order import PassOrder
from topoplan.model.sharding import REPLICATED
from topoplan_engine.pass_orders import Rows, alternating_order, pass_order, repeated_rows
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.sharding.stage_programs import stage_programs

__all__ = ["as_stages", "of_program", "order_of", "rule_of", "with_recomputation"]


def order_of(kind, ranks, micro_batches, chunks=1, recomputed=()) -> PassOrder:
    """The order of a kind of schedule; ``recomputed`` are the stages that have a pass for it."""
    later = [ranks - 1 - rank for rank in range(ranks)]
    warm_up = {
        "gpipe": [micro_batches * chunks] * ranks,
        "1f1b-deep": [2 * each for each in later],
        "interleaved": [2 * each + (chunks - 1) * ranks for each in later],
    }.get(kind, later)
    late = list(range(ranks)) if kind == "zero-bubble" else None
    order = alternating_order(kind, warm_up, micro_batches, chunks, weights_late=late)
    return with_recomputation(order, recomputed) if recomputed else order


def with_recomputation(order, chunks) -> PassOrder:
    """The order with a recomputation in front of each backward pass of some chunks."""
    spans = zip(order.rank_ptr[:-1].tolist(), order.rank_ptr[1:].tolist(), strict=True)
    kind = order.kind.astype(np.int32)
    ranks = [Rows(kind[a:b], order.chunk[a:b], order.micro_batch[a:b]) for a, b in spans]
    return pass_order(order.name, [repeated_rows(rows, np.isin(rows.chunk, list(chunks))) for rows in ranks])


def rule_of(op, cut):
    """The signature that cuts a dimension: its number, its name, or None for the whole operator."""
    dim = -1 if cut is None else cut if isinstance(cut, int) else [each.name for each in op.dims].index(cut)
    return next(
        rule
        for rule in signatures(op)
        if rule.dim == dim and (dim >= 0 or all(form == REPLICATED for form in rule.outputs))
    )


def as_stages(graph, stage_of, meshes, order, cuts, *, zero=None, regions=None, bucket=0) -> StagedStrategy:
    """Stages on meshes, whose operators are all cut by the same functions along the axes."""
    rules = [
        tuple(rule_of(op, cut(op)) for cut, _ in zip(cuts, meshes[stage].sizes, strict=True))
        for op, stage in zip(graph.operators, stage_of, strict=True)
    ]
    programs = stage_programs(graph, stage_of, [mesh.sizes for mesh in meshes], rules, bucket)
    numbers = np.array(stage_of)
    stages = [
        Stage(
            operators=np.flatnonzero(numbers == stage),
            mesh=mesh,
            body=programs[stage],
            zero=zero or Zero(),
            recomputed=() if regions is None else np.array(regions)[numbers == stage],
        )
        for stage, mesh in enumerate(meshes)
    ]
    return StagedStrategy.of(graph, stages, order, order.n_micro_batches)


def of_program(graph, program, zero=None) -> StagedStrategy:
    """The one stage of a program that takes the whole batch at once."""
    mesh = DeviceMesh(axes=[f"axis {k}" for k in range(len(program.mesh))], sizes=program.mesh)
    operators = np.arange(len(graph.operators))
    stage = Stage(operators=operators, mesh=mesh, body=program, zero=zero or Zero())
    return StagedStrategy.of(graph, [stage], order_of("1f1b", 1, 1), 1)

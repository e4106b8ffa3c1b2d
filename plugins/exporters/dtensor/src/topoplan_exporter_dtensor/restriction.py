"""Which strategies a PyTorch module runs under an exported file (`modules`, `pipelines`): what searchers keep to.

DTensor has any placement of tensors.  It has no overlap of micro-batches, no recomputation, and attention runs in every
process by itself, on samples and heads.
"""

from __future__ import annotations

from topoplan import (
    AxisUse,
    Cluster,
    Operator,
    OperatorGraph,
    PipelineLimits,
    Restriction,
    StagedStrategy,
    Strategy,
)
from topoplan.model.sharding import Signature
from topoplan_trainer_plans import why_not_written

__all__ = ["TORCH", "TorchRestriction", "cuts_positions_of_queries"]

_MODEL, _DATA, _EXPERT = AxisUse.MODEL, AxisUse.DATA, AxisUse.EXPERT


class TorchRestriction(Restriction):
    """What PyTorch runs of a file: any placements on one mesh, and pipelines of equally replicated stages."""

    name = "torch"
    meshes = (
        (_MODEL,),
        (_DATA, _MODEL),
        (_MODEL, _EXPERT),
        (_EXPERT, _MODEL),
        (_DATA, _MODEL, _EXPERT),
        (_DATA, _EXPERT, _MODEL),
    )
    shards_state = True
    pipelines = PipelineLimits(
        cuts="operators",
        schedules=("1f1b", "1f1b-deep", "gpipe", "zero-bubble"),
        recompute="none",
    )

    def allows(self, operator: Operator, use: AxisUse, signature: Signature) -> bool:
        """Say whether attention keeps whole samples and heads in one process."""
        return not cuts_positions_of_queries(operator, signature)

    def refusal(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> str:
        """Say why no file can be written, or nothing runs it."""
        from topoplan_exporter_dtensor.document import document_of

        if strategy.program is not None and not strategy.whole_batch:
            return "dtensor: the plan overlaps micro-batches on all devices, which DTensor does not"
        counts = [stage.mesh.devices.size for stage in strategy.stages] if isinstance(strategy, StagedStrategy) else []
        if number := next((k for k, count in enumerate(counts) if count != counts[0]), 0):
            unequal = f"stage {number} has {counts[number]} devices, but stage 0 has {counts[0]}"
            return f"dtensor: {unequal} (stages of torch.distributed.pipelining have equally many)"
        if isinstance(strategy, StagedStrategy) and not strategy.is_placed:
            for stage in strategy.stages:
                for position, number in enumerate(stage.operators.tolist()):
                    op = graph.operators[number]
                    if any(cuts_positions_of_queries(op, rule) for rule in stage.program.rules[position]):
                        return f"dtensor: operator {op.name!r} cuts positions of its query (cut samples and heads)"
        return why_not_written(document_of, graph, cluster, strategy)


def cuts_positions_of_queries(operator: Operator, signature: Signature) -> bool:
    """Say whether attention has slices of its query along another axis than of its keys."""
    if operator.kind != "scaled_dot_product_attention":
        return False
    query, keys = signature.inputs[:2]
    return query.sliced and query != keys


TORCH = TorchRestriction()

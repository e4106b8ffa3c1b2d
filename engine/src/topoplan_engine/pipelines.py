"""Pipelines of placed operators: stages as planners and files name them, under a schedule of a name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.placement import Placement
from topoplan.model.staged import StagedStrategy
from topoplan_engine.pass_orders import named_order

__all__ = ["pipeline_ranks", "pipeline_strategy"]


def pipeline_strategy(
    placements: Sequence[Placement],
    stage_of: Sequence[int] | np.ndarray,
    schedule: str,
    micro_batches: int,
    recompute: Sequence[bool] = (),
) -> StagedStrategy:
    """Return the pipeline of placed operators under a schedule.

    Args:
        placements: of every operator.
        stage_of: the stage of each operator, from 0 without gaps.  In an interleaved schedule a stage is a chunk, and
            chunk ``k`` runs on the devices of chunk ``k % ranks``; else stages have devices of their own.
        schedule: see `topoplan_engine.pass_orders.named_order`.
        micro_batches: equal parts of the batch.
        recompute: for each stage, whether it keeps its inputs only and runs its forward pass again before the backward
            one; empty for none.

    Raises:
        TopoplanError: there is no such schedule, or a stage has no operator.
    """
    stages = np.asarray(stage_of, dtype=np.int64)
    missing = np.setdiff1d(np.arange(stages.max(initial=0) + 1), stages)
    if stages.shape != (len(placements),) or not len(stages) or stages.min() < 0:
        raise TopoplanError("schedule: stage must name a stage, from 0 up, for every operator")
    if len(missing):
        raise TopoplanError(f"schedule: stage {missing[0]} of {stages.max() + 1} has no operator")
    count, ranks = int(stages.max()) + 1, int(stages.max()) + 1
    if schedule == "interleaved":
        ranks = pipeline_ranks(stages, placements)
        if count % ranks:
            raise TopoplanError(
                f"schedule: interleaved: {count} chunks on {ranks} groups of devices (needs a multiple)"
            )
    order = named_order(schedule, ranks, micro_batches, count // ranks, tuple(map(bool, recompute)))
    return StagedStrategy.placed(placements, stages.tolist(), order)


def pipeline_ranks(stages: np.ndarray, placements: Sequence[Placement]) -> int:
    """Return how many groups of devices a micro-batch passes before the first chunk that is on devices of chunk 0."""
    first = {device for of, each in zip(stages, placements, strict=True) if of == 0 for device in each.devices.tolist()}
    rerun_passes = [
        int(of)
        for of, each in zip(stages, placements, strict=True)
        if of > 0 and not first.isdisjoint(each.devices.tolist())
    ]
    return min(rerun_passes, default=int(stages.max()) + 1)

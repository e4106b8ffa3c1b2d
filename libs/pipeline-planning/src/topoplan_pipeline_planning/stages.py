"""From stages to a strategy: the operators of each stage are data parallel over its devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.schedule import Schedule, ScheduleKind
from topoplan.model.strategy import PipelineStrategy

__all__ = ["staged_strategy"]


def staged_strategy(
    graph: OperatorGraph,
    stages: Iterable[tuple[Sequence[int], Sequence[int]]],
    micro_batches: int,
    kind: ScheduleKind | str = ScheduleKind.ONE_F_ONE_B,
    recompute: Sequence[bool] = (),
) -> PipelineStrategy:
    """Return the strategy of operators on stages; `PipelineStrategy.check` checks its schedule.

    Args:
        graph: the model.
        stages: operators and devices of each stage, in order.  In an interleaved schedule groups of devices repeat.
        micro_batches: number of micro-batches.
        kind: the order of passes.
        recompute: for each stage, whether it recomputes its forward pass to save memory; empty for none.

    Raises:
        TopoplanError: an operator is in no stage or in two, or a stage has no device.
    """
    stage = np.full(len(graph.operators), -1, dtype=np.int32)
    devices_of_stage: list[Sequence[int]] = []
    for number, (operators, devices) in enumerate(stages):
        if not len(devices):
            raise TopoplanError(f"schedule: stage {number} has no device")
        for op in operators:
            if stage[op] >= 0:
                name = graph.operators[op].name
                raise TopoplanError(f"schedule: operator {name!r} is in stages {stage[op]} and {number}")
            stage[op] = number
        devices_of_stage.append(devices)
    if (stage < 0).any():
        raise TopoplanError(f"schedule: operator {graph.operators[int(np.argmin(stage))].name!r} is in no stage")
    devices_of_op = [devices_of_stage[number] for number in stage.tolist()]
    cuts = [op.sample_cut(len(devices)) for op, devices in zip(graph.operators, devices_of_op, strict=True)]
    placements = (Placement(cut, devices[: math.prod(cut)]) for cut, devices in zip(cuts, devices_of_op, strict=True))
    schedule = Schedule(kind=kind, micro_batches=micro_batches, stage=stage, recompute=recompute)
    return PipelineStrategy(tuple(placements), schedule)

"""From stages to a strategy: operators are data parallel over the devices of their stage, or whole on one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.staged import StagedStrategy
from topoplan_engine.pipelines import pipeline_strategy

__all__ = ["MOST_MICRO_BATCHES", "staged_strategy"]

#: Micro-batches of a pipeline that is simulated: each is some tasks of every operator, of some hundred bytes.
MOST_MICRO_BATCHES = 16_384


def staged_strategy(
    graph: OperatorGraph,
    stages: Iterable[tuple[Sequence[int], Sequence[int]]],
    micro_batches: int,
    kind: str = "1f1b",
    recompute: Sequence[bool] = (),
    whole: Mapping[int, float] = MappingProxyType({}),
) -> StagedStrategy:
    """Return the strategy of operators on stages; `StagedStrategy.check` checks its schedule.

    Whole operators are spread over the devices of their stage, the longest first, each on the device that has the
    least of them so far (Graham, SIAM J. Appl. Math. 17, 1969).

    Args:
        graph: the model.
        stages: operators and devices of each stage, in order.  In an interleaved schedule groups of devices repeat.
        micro_batches: number of micro-batches.
        kind: the order of passes (`topoplan_engine.pass_orders.named_order`).
        recompute: for each stage, whether it recomputes its forward pass to save memory; empty for none.
        whole: operators that are not cut, and the seconds of each.

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
    for op, device in _spread(stage.tolist(), devices_of_stage, whole).items():
        cuts[op], devices_of_op[op] = graph.operators[op].sample_cut(1), [device]
    placements = [Placement(cut, devices[: math.prod(cut)]) for cut, devices in zip(cuts, devices_of_op, strict=True)]
    return pipeline_strategy(placements, stage, kind, micro_batches, recompute)


def _spread(
    stage: Sequence[int], devices_of_stage: Sequence[Sequence[int]], whole: Mapping[int, float]
) -> dict[int, int]:
    """Return the device of each whole operator."""
    load = {device: 0.0 for devices in devices_of_stage for device in devices}
    device_of: dict[int, int] = {}
    for op, seconds in sorted(whole.items(), key=lambda item: -item[1]):
        device_of[op] = min(devices_of_stage[stage[op]], key=lambda device: load[device])
        load[device_of[op]] += seconds
    return device_of

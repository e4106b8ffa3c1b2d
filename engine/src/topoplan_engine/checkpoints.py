"""Activation checkpointing: regions of a model whose forward pass runs again in the backward pass.

Operators say in which region they lie (`topoplan.model.graph.Checkpoint`).  `checkpoint_regions` numbers the regions;
`repeated_operators` says whose forward pass runs again.  PyTorch's regions with ``use_reentrant=False`` stop as soon as
they have made the last tensor that their backward pass reads (torch.utils.checkpoint, `set_checkpoint_early_stop`): a
linear layer at the end reads its input, and does not run again.

    operators ─► regions ─► seconds of the backward pass (topoplan_engine.training_costs)
                     └────► what is kept between the passes (topoplan_operator_times.saved)
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import I32
from topoplan.model.graph import OperatorGraph
from topoplan_engine.training import gradient_flow, tensors_read

__all__ = ["checkpoint_regions", "repeated_operators"]


def checkpoint_regions(graph: OperatorGraph) -> I32:
    """(n_ops,) the region that each operator lies in; -1 for none, or one without a backward pass."""
    region = np.full(len(graph.operators), -1, dtype=np.int32)
    if all(op.checkpoint is None for op in graph.operators):
        return region
    count = -1
    for number, op in enumerate(graph.operators):
        if op.checkpoint is not None:
            count += op.checkpoint.begins or count < 0
            region[number] = count
    has_backward = np.zeros(count + 1, dtype=np.bool_)
    np.logical_or.at(has_backward, region[region >= 0], np.array(gradient_flow(graph).backward)[region >= 0])
    return np.where((region >= 0) & has_backward[region], region, np.int32(-1))


def repeated_operators(graph: OperatorGraph) -> tuple[bool, ...]:
    """(n_ops) whether the forward pass of each operator runs again in the backward pass."""
    region, flow = checkpoint_regions(graph), gradient_flow(graph)
    repeated = [False] * len(graph.operators)
    for count in range(int(region.max(initial=-1)) + 1):
        numbers = np.flatnonzero(region == count).tolist()
        until = 0  # operators of the region that run again
        for place, number in enumerate(numbers):
            op = graph.operators[number]
            if not flow.backward[number]:
                continue
            arguments, outputs = tensors_read(op, (*flow.inputs[number], *flow.weights[number]))
            if outputs or op.extras:
                until = place + 1
            elif arguments:
                until = place
        first = graph.operators[numbers[0]].checkpoint if numbers else None
        if first is not None and first.reentrant:
            until = len(numbers)
        for number in numbers[:until]:
            repeated[number] = True
    return tuple(repeated)

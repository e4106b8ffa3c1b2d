"""Lowering of programs that all devices run on one stream: their memory, micro-batch by micro-batch of each part.

Task graphs are those of `topoplan_engine.lowering.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.gradient_peaks import gradient_order
from topoplan_engine.lowering.memory_levels import Activations, activations_of
from topoplan_engine.lowering.spmd_costs import (
    DeviceCosts,
    gradient_bytes_of,
    operator_bytes,
    program_memory,
    program_memory_use,
    sum_of,
)
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.program_strategies import program_of

__all__ = ["ProgramLowering"]


class ProgramLowering(StagedLowering):
    """Lowers strategies with one stream; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return program_memory(strategy, self._graph, self._passes(strategy))

    def resting_memory(self, strategy: StagedStrategy) -> F64:
        """Return the same without gradients of activations."""
        return sum_of(operator_bytes(program_of(strategy), self._graph, self._passes(strategy)))

    def holds_gradients(self, strategy: StagedStrategy) -> bool:
        """Return whether gradients of activations are counted."""
        return gradient_bytes_of(self._passes(strategy)) is not None

    def memory_use(self, strategy: StagedStrategy) -> MemoryUse:
        """Return the bytes of `memory` by their use, rounded to whole bytes."""
        return program_memory_use(strategy, self._graph, self._passes(strategy))

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time: from the forward pass of an operator to its backward one.

        Gradients of activations come with the backward pass that makes them first, and go with that of their operator.
        """
        program, graph, copies = program_of(strategy), self._graph, strategy.micro_batches
        prices = self._passes(strategy)
        nbytes = np.stack([row.activations for row in operator_bytes(program, graph, prices)])
        tasks = np.flatnonzero(np.isin(taskgraph.kind, (TaskKind.FORWARD, TaskKind.BACKWARD)))
        device, forward = taskgraph.device[tasks], taskgraph.kind[tasks] == TaskKind.FORWARD
        share = nbytes[taskgraph.op[tasks], device] / copies
        change, finish = np.where(forward, share, -share), timeline.finish[tasks]
        gradients = gradient_bytes_of(prices)
        if gradients is None:
            return activations_of(device, finish, change)
        passes, of_pass = tasks[~forward], device[~forward]
        outputs, extras = gradients[:, taskgraph.op[passes]] / copies
        start, end = timeline.start[passes], timeline.finish[passes]
        arrival = np.minimum(self._made_at(taskgraph, passes, end), start)
        return activations_of(
            np.concatenate([device, of_pass, of_pass, of_pass]),
            np.concatenate([finish, arrival, start, end]),
            np.concatenate([change, outputs, extras, -outputs - extras]),
            np.concatenate([~forward, np.zeros(2 * len(passes), bool), np.ones(len(passes), bool)]),
        )

    def _made_at(self, taskgraph: TaskGraph, passes: I64, end: F64) -> F64:
        """Return when the first pass ends that makes the gradient of the output of each of some backward passes."""
        order, n_ops = gradient_order(self._graph), len(self._graph.operators)
        reader = np.arange(n_ops)  # an output that is not read has no gradient
        reader[order.producer] = np.repeat(np.arange(n_ops), np.diff(order.ptr))
        device, op = taskgraph.device[passes], taskgraph.op[passes]
        micro_batch = 0 if taskgraph.micro_batch is None else taskgraph.micro_batch[passes]
        ends = np.zeros((taskgraph.n_devices, n_ops, int(np.max(micro_batch)) + 1))
        ends[device, op, micro_batch] = end
        made_at: F64 = ends[device, reader[op], micro_batch]
        return made_at

    def _passes(self, strategy: StagedStrategy) -> Sequence[DeviceCosts]:
        """Return the prices of all operators at all places of the mesh."""
        costs = self._stages(strategy)[1][0]
        return costs.at(np.arange(len(costs.column))).passes

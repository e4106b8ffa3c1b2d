"""Lowering of programs of all devices that have one communication stream, as HiDup plans them.

Micro-batches take turns in each part of the program, so that one computes while another one communicates.  Task graphs
are those of `topoplan_engine.lowering.turns`.  Memory is counted with the whole batch in flight: no backward pass
begins before the last forward pass has ended.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.gradient_peaks import last_readers
from topoplan_engine.lowering.memory_levels import Activations, Changes, activations_of
from topoplan_engine.lowering.order import UNORDERED
from topoplan_engine.lowering.spmd_costs import gradients_of, operator_bytes
from topoplan_engine.lowering.stage_memory import StageBytes, StagedPeak, staged_peak
from topoplan_engine.lowering.staged import StagedLowering

__all__ = ["ProgramLowering"]


class ProgramLowering(StagedLowering):
    """Lowers strategies with one stream; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def resting_memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) bytes of `memory` without gradients of activations."""
        (stage,), total = self._bytes(strategy), np.zeros(self._cluster.n_devices)
        total[stage.devices] = stage.resting[stage.column]
        return total

    def holds_gradients(self, strategy: StagedStrategy) -> bool:
        """Return whether gradients of activations are counted."""
        return any(price.gradients is not None for price in self._stages(strategy)[1][0].passes)

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time: from the forward pass of an operator to its backward one.

        Gradients of activations come with the backward pass that makes them first, and go with that of their operator.
        """
        (stage,), (costs,) = self._stages(strategy)
        prices, copies = costs.passes, strategy.micro_batches
        nbytes = np.stack([row.activations for row in operator_bytes(stage.program, self._graph, prices)])
        column_of = np.zeros(taskgraph.n_devices, dtype=np.int64)
        column_of[stage.stage.mesh.devices] = costs.column
        tasks = np.flatnonzero(np.isin(taskgraph.kind, (TaskKind.FORWARD, TaskKind.BACKWARD)))
        device, forward = taskgraph.device[tasks], taskgraph.kind[tasks] == TaskKind.FORWARD
        share = nbytes[taskgraph.op[tasks], column_of[device]] / copies
        change, finish = np.where(forward, share, -share), timeline.finish[tasks]
        passes, of_pass = tasks[~forward], device[~forward]
        outputs, extras = gradients_of(prices)[:, taskgraph.op[passes]] / copies
        start, end = timeline.start[passes], timeline.finish[passes]
        arrival = np.minimum(self._made_at(taskgraph, passes, end), start)
        gradients = Changes.of_gradients(of_pass, arrival, start, end, outputs, extras)
        return activations_of([Changes(device, finish, change, ~forward), gradients])

    def _made_at(self, taskgraph: TaskGraph, passes: I64, end: F64) -> F64:
        """Return when the first pass ends that makes the gradient of the output of each of some backward passes."""
        n_ops = len(self._graph.operators)
        reader = last_readers(self._graph.edges.reshape(-1, 4)[:, [0, 2]], n_ops)
        reader = np.where(reader < 0, np.arange(n_ops), reader)  # an output that is not read has no gradient
        device, op = taskgraph.device[passes], taskgraph.op[passes]
        micro_batch = 0 if taskgraph.micro_batch is None else taskgraph.micro_batch[passes]
        ends = np.zeros((taskgraph.n_devices, n_ops, int(np.max(micro_batch)) + 1))
        ends[device, op, micro_batch] = end
        made_at: F64 = ends[device, reader[op], micro_batch]
        return made_at

    def _peak(self, strategy: StagedStrategy) -> StagedPeak:
        return staged_peak(UNORDERED, self._bytes(strategy), self._cluster.n_devices)

    def _bytes(self, strategy: StagedStrategy) -> list[StageBytes]:
        stages, costs = self._stages(strategy)
        return [StageBytes.of_program(strategy, self._graph, stages[0], costs[0])]

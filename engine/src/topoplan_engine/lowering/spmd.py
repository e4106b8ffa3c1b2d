"""Lowering of SPMD programs: their task graphs, their memory, and what they ask of the network.

`topoplan_engine.lowering.spmd_tasks` writes the tasks of all devices, `topoplan_engine.lowering.spmd_quotient` those of
one device for all equal ones; `topoplan_engine.lowering.spmd_costs` has seconds and bytes.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.gradient_peaks import gradient_order
from topoplan_engine.lowering.memory_levels import Activations, activations_of
from topoplan_engine.lowering.spmd_costs import (
    DeviceCosts,
    ProgramPrices,
    gradient_bytes_of,
    operator_bytes,
    program_memory,
    program_memory_use,
    sum_of,
)
from topoplan_engine.lowering.spmd_quotient import ProgramQuotient, program_quotient
from topoplan_engine.lowering.spmd_tasks import program_taskgraph
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.program_strategies import program_of

__all__ = ["SpmdLowering"]


class SpmdLowering:
    """Lowers SPMD programs; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction, *, one_task: bool = False) -> None:
        """Lower programs of a graph; ``one_task``: see `topoplan_engine.lowering.Lowering`."""
        self._graph, self._cluster, self._one_task = graph, cluster, one_task
        self._of_program = ProgramPrices(graph, cluster, costs)
        # The last program, with its number of micro-batches.
        self._priced: tuple[SpmdProgram, int, list[DeviceCosts]] | None = None

    def lower(self, strategy: StagedStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        return program_taskgraph(self._graph, strategy, self._prices(strategy), one_task=self._one_task)

    def n_tasks(self, strategy: StagedStrategy) -> int:
        """Return the passes of all devices in all micro-batches; collectives are fewer."""
        return 2 * len(self._graph.operators) * self._cluster.n_devices * strategy.micro_batches

    def class_key(self, strategy: StagedStrategy, in_turn_bytes: int) -> None:
        """Return None: see `symmetry`."""

    def symmetry(self, strategy: StagedStrategy, in_turn_bytes: int) -> None:
        """Return None: programs have quotients of their own (`program_quotient`)."""

    def program_quotient(self, strategy: StagedStrategy, in_turn_bytes: int) -> ProgramQuotient | None:
        """Return the iteration of one device for all; None unless all devices are equal, but for queues."""
        return program_quotient(self._graph, strategy, self._prices(strategy), self._cluster, in_turn_bytes)

    def memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return program_memory(strategy, self._graph, self._prices(strategy))

    def resting_memory(self, strategy: StagedStrategy) -> F64:
        """Return the same without gradients of activations."""
        return sum_of(operator_bytes(program_of(strategy), self._graph, self._prices(strategy)))

    def holds_gradients(self, strategy: StagedStrategy) -> bool:
        """Return whether gradients of activations are counted."""
        return gradient_bytes_of(self._prices(strategy)) is not None

    def memory_use(self, strategy: StagedStrategy) -> MemoryUse:
        """Return the bytes of `memory` by their use, rounded to whole bytes."""
        return program_memory_use(strategy, self._graph, self._prices(strategy))

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time: from the forward pass of an operator to its backward one.

        Gradients of activations come with the backward pass that makes them first, and go with that of their operator.
        """
        program, graph, copies = program_of(strategy), self._graph, strategy.micro_batches
        prices = self._prices(strategy)
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

    def demand(self, strategy: StagedStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return taskgraph_demand(self.lower(strategy), self._cluster)

    def _prices(self, strategy: StagedStrategy) -> list[DeviceCosts]:
        program, count = program_of(strategy), strategy.micro_batches
        if self._priced is None or self._priced[0] is not program or self._priced[1] != count:
            self._priced = program, count, self._of_program.of(program, count)
        return self._priced[2]

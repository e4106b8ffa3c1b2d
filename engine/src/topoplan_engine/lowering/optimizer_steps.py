"""Optimizer steps as tasks: what updates every weight once its gradient is summed, where the estimator prices it.

FlexFlow (`Simulator::simulate_runtime`, step 3a, simulator.cc) has an update task for every slice of a weight, which
takes no time.  Here each device that holds a slice gets one, behind the all-reduce of the slice's gradient, or behind
its backward task where nothing is summed.  With a parameter server the server alone updates, and sends the weights
(`topoplan_engine.simulation.gradients.with_parameter_server`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.placement import Placement
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.partition import replica_groups
from topoplan_engine.training import gradient_flow

__all__ = ["priced_steps", "with_optimizer_steps"]


@attrs.frozen
class _Step:
    """One update: its operator, device and seconds, and the tasks that it follows."""

    op: int
    device: int
    seconds: float
    after: tuple[int, ...]


def priced_steps(fragments: FragmentCache, placements: Sequence[Placement]) -> list[F64 | None]:
    """Return what `OptimizerCosts.optimizer_seconds` says of each operator."""
    costs = fragments.optimizer_costs
    if costs is None:
        return [None] * len(placements)
    return [costs.optimizer_seconds(op, p.degrees, p.devices) for op, p in enumerate(placements)]


def with_optimizer_steps(
    taskgraph: TaskGraph, fragments: FragmentCache, placements: Sequence[Placement], priced: Sequence[F64 | None]
) -> TaskGraph:
    """Append an update for every slice of a weight on every device that holds it.

    Args:
        taskgraph: lowered from the placements; its rows stay where they are.
        fragments: of the model.
        placements: of its operators.
        priced: see `priced_steps`.
    """
    steps = list(_steps(fragments, placements, priced))
    if not steps:
        return taskgraph
    count, total = len(steps), taskgraph.n_tasks + len(steps)
    src, dst = taskgraph.edges()
    tails = np.concatenate([src, np.concatenate([np.array(step.after, dtype=np.int64) for step in steps])])
    heads = np.concatenate([dst, np.repeat(taskgraph.n_tasks + np.arange(count), [len(step.after) for step in steps])])
    order = np.argsort(tails, kind="stable")

    def extended(column: I64 | I32 | F64, values: Sequence[float]) -> np.ndarray:
        return np.concatenate([column, np.array(values, dtype=column.dtype)])

    none = [-1] * count
    return attrs.evolve(
        taskgraph,
        kind=np.concatenate([taskgraph.kind, np.full(count, int(TaskKind.UPDATE), dtype=np.int8)]),
        device=extended(taskgraph.device, [step.device for step in steps]),
        seconds=extended(taskgraph.seconds, [step.seconds for step in steps]),
        size=extended(taskgraph.size, [0] * count),
        src=extended(taskgraph.src, none),
        dst=extended(taskgraph.dst, none),
        group=extended(taskgraph.group, none),
        op=extended(taskgraph.op, [step.op for step in steps]),
        collective=np.concatenate([taskgraph.collective, np.full(count, -1, dtype=np.int8)]),
        succ_ptr=indptr(np.bincount(tails, minlength=total)),
        succ=heads[order],
    )


def _steps(fragments: FragmentCache, placements: Sequence[Placement], priced: Sequence[F64 | None]) -> Iterator[_Step]:
    """Go through all updates: by operator, weight, slice and device; tasks are numbered as `build_taskgraph` does."""
    graph = fragments.graph
    first_part, all_parts = 0, sum(placement.parts for placement in placements)
    next_sum = 2 * all_parts
    for op, (operator, placement, seconds) in enumerate(zip(graph.operators, placements, priced, strict=True)):
        inside = fragments.cluster.gpus_per_device > 1 and operator.kind != "embedding"
        for number, weight in gradient_flow(graph).trained(operator, op):
            for parts in replica_groups(operator, weight, placement.degrees):
                holders, position = np.unique(placement.devices[parts], return_index=True)
                summed = graph.reduces_per_part or len(holders) > 1 or inside
                backward = tuple((2 * (first_part + parts) + 1).tolist())
                if seconds is not None:
                    for device, part in zip(holders.tolist(), parts[position].tolist(), strict=True):
                        after = (next_sum,) if summed else backward
                        yield _Step(op, device, float(seconds[number, part]), after)
                next_sum += summed
        first_part += placement.parts

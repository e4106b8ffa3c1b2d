"""Optimizer steps as tasks: what updates every weight once its gradient is summed, where the estimator prices it.

FlexFlow (`Simulator::simulate_runtime`, step 3a, simulator.cc) has an update task for every slice of a weight, which
takes no time.  Here each device that holds a slice gets one, behind the all-reduce of the slice's gradient, or behind
its backward task where nothing is summed.  With a parameter server the server alone updates, and sends the weights
(`topoplan_engine.simulation.gradients.with_parameter_server`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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


class _Steps(NamedTuple):
    """Updates of one slice of a weight.

    Attributes:
        op: the operator.
        devices, seconds: (n,) who holds the slice, and what each takes.
        after: the tasks that each follows.
    """

    op: int
    devices: I32
    seconds: F64
    after: I64


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
    counts = np.array([len(each.devices) for each in steps])
    count, total = int(counts.sum()), taskgraph.n_tasks + int(counts.sum())
    src, dst = taskgraph.edges()
    tails = np.concatenate([src, *(np.tile(each.after, len(each.devices)) for each in steps)])
    followed = np.repeat([len(each.after) for each in steps], counts)
    heads = np.concatenate([dst, np.repeat(taskgraph.n_tasks + np.arange(count), followed)])
    order = np.argsort(tails, kind="stable")

    def extended(column: I64 | I32 | F64, values: np.ndarray) -> np.ndarray:
        return np.concatenate([column, values.astype(column.dtype)])

    none = np.full(count, -1)
    return attrs.evolve(
        taskgraph,
        kind=np.concatenate([taskgraph.kind, np.full(count, int(TaskKind.UPDATE), dtype=np.int8)]),
        device=extended(taskgraph.device, np.concatenate([each.devices for each in steps])),
        seconds=extended(taskgraph.seconds, np.concatenate([each.seconds for each in steps])),
        size=extended(taskgraph.size, np.zeros(count)),
        src=extended(taskgraph.src, none),
        dst=extended(taskgraph.dst, none),
        group=extended(taskgraph.group, none),
        op=extended(taskgraph.op, np.repeat([each.op for each in steps], counts)),
        collective=np.concatenate([taskgraph.collective, np.full(count, -1, dtype=np.int8)]),
        succ_ptr=indptr(np.bincount(tails, minlength=total)),
        succ=heads[order],
    )


def _steps(fragments: FragmentCache, placements: Sequence[Placement], priced: Sequence[F64 | None]) -> Iterator[_Steps]:
    """Go through all updates, by operator, weight and slice; tasks are numbered as `build_taskgraph` does."""
    graph = fragments.graph
    first_part, all_parts = 0, sum(placement.parts for placement in placements)
    next_sum = 2 * all_parts
    for op, (operator, placement, seconds) in enumerate(zip(graph.operators, placements, priced, strict=True)):
        inside = fragments.cluster.gpus_per_device > 1 and operator.kind != "embedding"
        for number, weight in gradient_flow(graph).trained(operator, op):
            for parts in replica_groups(operator, weight, placement.degrees):
                holders, position = np.unique(placement.devices[parts], return_index=True)
                summed = graph.reduces_per_part or len(holders) > 1 or inside
                if seconds is not None:
                    after = np.array([next_sum]) if summed else 2 * (first_part + parts) + 1
                    yield _Steps(op, holders, seconds[number, parts[position]], after)
                next_sum += summed
        first_part += placement.parts

"""The search: it plans when it is built, then proposes its shortlist once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan import (
    Candidate,
    OperatorGraph,
    PlacedStrategy,
    Problem,
    Search,
    State,
    Strategy,
    TopoplanError,
)
from topoplan.errors import NoPlanFitsError
from topoplan_pipeline_planning.layers import Layers, OperatorColumns, layers_of, operator_columns
from topoplan_pipeline_planning.machine import RELEASED, Bandwidths, Machine
from topoplan_pipeline_planning.planning import best_of, shortlist
from topoplan_pipeline_planning.plans import HpgoPlan, early_backward_speedup
from topoplan_pipeline_planning.stages import MOST_MICRO_BATCHES, staged_strategy
from topoplan_searcher_hpgo import Hpgo
from topoplan_searcher_hpgo.baselines import Baselines, Memory, corrected, released, released_memory

__all__ = ["HpgoSearch", "strategy_of"]


class HpgoSearch(Search):
    """Proposes its plan and, for comparison, the best plan of each other family; ignores their costs."""

    def __init__(self, options: Hpgo, problem: Problem) -> None:
        graph, cluster = problem.graph, problem.cluster
        _check_fits(graph, float(cluster.device_memory.max()) * cluster.gpus_per_device)
        self._problem = problem
        columns = operator_columns(graph, problem.costs)
        self._layers = layers_of(graph, columns, limit=options.max_states, simplify=options.simplify)
        bandwidths = RELEASED if options.bandwidths == "released" else Bandwidths.of(cluster)
        self._machine = Machine(host=tuple(cluster.device_host.tolist()), bandwidths=bandwidths)
        plans = shortlist(self._layers, self._machine, graph.batch_size, options.micro_batch)
        self._plan = best_of(plans)
        self._queue = [
            self._plan,
            *(plan for plan in plans if plan is not self._plan and not _is_too_long(plan)),
        ]
        if _is_too_long(self._plan):
            raise TopoplanError(
                f"searcher hpgo: micro-batch is {options.micro_batch}, and the plan has {self._plan.micro_batches:,} "
                f"micro-batches of the {graph.batch_size:,} samples, of which {MOST_MICRO_BATCHES:,} are simulated at "
                f"most (take -s hpgo:micro-batch={math.ceil(graph.batch_size / MOST_MICRO_BATCHES)} or more)"
            )
        self._baselines_formulas = options.baselines
        self._baselines = _baselines(options, problem, columns, self._layers, self._machine)

    def ask(self) -> Sequence[Candidate]:
        """Propose the plans whose cuts can be priced, the best one first; then nothing."""
        if self.state is None:
            return []
        candidates = []
        for plan in self._queue:
            strategy = strategy_of(plan, self._layers, self._problem.graph)
            if all(
                self._problem.costs.supports(op, placement.degrees) for op, placement in enumerate(strategy.placements)
            ):
                comparison = "" if plan is self._plan else f"hpgo's best of its family {plan.family}, {plan.split}"
                candidates.append(Candidate(base=State(strategy, self.state.fabric), comparison=comparison))
        self._queue = []
        return candidates

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the plan with HPGO's estimates; ``speedup`` is relative to ``one_device_s``."""
        one_device = float(self._layers.seconds[-1])
        names = [op.name for op in self._problem.graph.operators]
        layers, devices = self._layers.count, self._machine.n_devices
        return {
            "speedup": self._plan.speedup,
            "split": self._plan.split,
            "family": self._plan.family,
            "pipelines": self._plan.pipelines,
            "micro_batches": self._plan.micro_batches,
            "early_backward_speedup": early_backward_speedup(self._plan, self._layers, self._machine),
            "planned_iteration_time_s": one_device / self._plan.speedup if self._plan.speedup else None,
            "one_device_s": one_device,
            "layers": layers,
            "left_out": f"one device each: {layers} layers for {devices} devices" if layers < devices else None,
            "stages": [
                {
                    "first": names[members[0]] if members else None,
                    "last": names[members[-1]] if members else None,
                    "start": stage.start,
                    "end": stage.end,
                    "replication": stage.replication,
                    "devices": list(stage.devices),
                    "operators": [names[op] for op in members],
                }
                for stage, members in zip(self._plan.stages, _members(self._plan, self._layers), strict=True)
            ],
            "baselines_formulas": self._baselines_formulas,
            "baselines": attrs.asdict(self._baselines),
        }


def _is_too_long(plan: HpgoPlan) -> bool:
    """Say whether a plan has more micro-batches than are simulated, and than its schedule is walked through."""
    return plan.micro_batches > MOST_MICRO_BATCHES


def strategy_of(plan: HpgoPlan, layers: Layers, graph: OperatorGraph) -> Strategy:
    """Return the strategy: operators are data parallel over the devices of their stage, under 1F1B.

    If a plan has several pipelines, their devices share each stage, with common micro-batches.  A micro-batch has at
    least one sample for every device of a stage.  HPGO's micro-batches of one sample may have fewer.
    """
    stages = [(ops, stage) for ops, stage in zip(_members(plan, layers), plan.stages, strict=True) if ops]
    samples = [op.dims[op.sample_dim].size for op in graph.operators if op.sample_dim >= 0]
    batch = math.gcd(graph.batch_size, *samples)
    most = min(plan.micro_batches, batch // max(len(stage.devices) for _, stage in stages))
    count = next((count for count in range(most, 1, -1) if batch % count == 0), 1)
    strategy = staged_strategy(graph, [(ops, stage.devices) for ops, stage in stages], count)
    return PlacedStrategy(strategy.placements) if len(stages) == 1 else strategy


def _members(plan: HpgoPlan, layers: Layers) -> list[list[int]]:
    """Return the operators of each stage: those that its last layer closes and the stage before does not."""
    members = []
    mask = np.zeros(layers.closed.shape[1], dtype=np.bool_)
    for stage in plan.stages:
        operators = layers.closed[stage.end - 1]
        members.append(np.flatnonzero(operators & ~mask).tolist())
        mask |= operators
    return members


def _check_fits(graph: OperatorGraph, memory: float) -> None:
    """Raise if the weights of an operator fit into no device, because stages do not cut weights."""
    for op in graph.operators:
        weights = sum(tensor.nbytes for tensor in op.weights)
        if weights > memory:
            raise NoPlanFitsError(
                f"searcher hpgo: model {graph.name!r}: the weights of {op.name!r} take {weights / 2**30:.1f} GiB, but "
                f"no device has more than {memory / 2**30:.1f} GiB "
                "(a stage keeps weights whole; use --memory-gb or mcmc)"
            )


def _baselines(
    options: Hpgo, problem: Problem, columns: OperatorColumns, layers: Layers, machine: Machine
) -> Baselines:
    batch = problem.graph.batch_size
    sample = float(layers.activations[-1]) / batch if options.sample_mb is None else options.sample_mb * 1e6
    if options.baselines == "released":
        return released(layers, machine, batch, released_memory(sample, options.weight_copies or 1.0))
    memory = Memory(
        device=float(problem.cluster.device_memory.min()), sample=sample, weight_copies=options.weight_copies or 3.0
    )
    return corrected(columns, machine, batch, memory)

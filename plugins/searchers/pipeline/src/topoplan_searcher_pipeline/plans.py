"""Pipelines as values: cuts, devices of each stage and schedule; and their costs."""

from __future__ import annotations

import itertools

import attrs
import numpy as np

from topoplan import OperatorGraph, Strategy
from topoplan.arrays import F64, I64
from topoplan.model.schedule import ScheduleKind
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.machine import Counts, Devices, Machine, transfer_loads
from topoplan_searcher_pipeline.stage_simulation import StageTimes, busiest, in_flight, iteration_seconds

__all__ = [
    "Pipeline",
    "PipelineCosts",
    "PipelinePlan",
    "devices_of",
    "members_of",
    "memory_of",
    "pipeline_costs",
    "schedule_pipeline",
    "strategy_of",
    "times_of",
]


@attrs.frozen
class Pipeline:
    """Stages and their devices.

    Attributes:
        cuts: the start of each stage; see `Columns`.
        counts: for each stage, its devices on each host.
    """

    cuts: tuple[int, ...]
    counts: tuple[Counts, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each stage."""
        return tuple(sum(counts) for counts in self.counts)

    @property
    def split(self) -> str:
        """Short text: the devices of each stage, and the starts of later stages (``8|8 @22``)."""
        return "|".join(map(str, self.sizes)) + "".join(f" @{cut}" for cut in self.cuts[1:])


@attrs.frozen
class PipelinePlan:
    """A pipeline under a schedule.

    Attributes:
        seconds: of one iteration, from `topoplan_searcher_pipeline.stage_simulation`.
        recompute: for each stage, whether it runs its forward passes twice.
    """

    seconds: float
    pipeline: Pipeline
    kind: ScheduleKind
    micro_batches: int
    recompute: tuple[bool, ...]


@attrs.frozen(kw_only=True, eq=False)
class PipelineCosts:
    """Seconds and bytes of the stages of a pipeline, for the whole batch; S stages, E pairs of stages with transfers.

    Attributes:
        replicated: every operator can be cut for the devices of its stage.
        forward, backward, weights: (S,) seconds of a device; ``backward`` includes ``weights``.
        persistent, activations: (S,) bytes of a device.
        input_bytes: (S,) bytes that a device receives from other stages.
        source, target, inside, egress, ingress: (E, ...) see `StageTimes`.
        first: (S,) index of the first operator of each stage in the next two columns.
        backward_before: (n,) seconds of the backward passes of all earlier operators of the stage.
        allreduce: (n,) seconds of the all-reduces of an operator and all earlier operators of the stage.
    """

    replicated: bool
    forward: F64
    backward: F64
    weights: F64
    persistent: F64
    activations: F64
    input_bytes: F64
    source: I64
    target: I64
    inside: F64
    egress: F64
    ingress: F64
    first: I64
    backward_before: F64
    allreduce: F64

    @property
    def busiest(self) -> float:
        """Seconds of computation of the busiest stage."""
        return float((self.forward + self.backward).max())


def pipeline_costs(pipeline: Pipeline, columns: Columns, machine: Machine) -> PipelineCosts | None:
    """Sum the columns over each stage; None if the columns have no row for the size of a stage."""
    rows = columns.rows(pipeline.sizes)
    if rows.min() < 0:
        return None
    starts = np.array(pipeline.cuts)
    ends = np.append(starts[1:], -1)

    def sums(column: np.ndarray) -> np.ndarray:
        return np.asarray(column[rows, ends] - column[rows, starts])

    counts = np.array(pipeline.counts, dtype=np.int32)
    nbytes = columns.sent(pipeline.cuts)
    source, target = np.nonzero(nbytes)
    inside, loads = np.zeros(len(source)), np.zeros((len(source), 2, counts.shape[1]))
    for pair, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        inside[pair] = transfer_loads(counts[a], counts[b], machine.outside, machine.inside, loads[pair])
    pair_bytes = nbytes[source, target]
    loads *= pair_bytes[:, None, None]
    members = members_of(pipeline, columns)
    lengths = np.array([len(ops) for ops in members])
    first = np.cumsum(lengths) - lengths
    ops, stage = np.concatenate(members), np.repeat(np.arange(len(rows)), lengths)
    backward = columns.operator_backward[rows[stage], ops]
    gradients = columns.operator_gradients[ops] * machine.allreduce(counts)[stage]
    return PipelineCosts(
        replicated=not sums(columns.unpriced).any(),
        forward=sums(columns.forward),
        backward=sums(columns.backward),
        weights=sums(columns.weight_gradient),
        persistent=sums(columns.kept),
        activations=sums(columns.activations),
        input_bytes=columns.crossing[starts] / np.array(pipeline.sizes),
        source=source,
        target=target,
        inside=inside * pair_bytes,
        egress=np.ascontiguousarray(loads[:, 0]),
        ingress=np.ascontiguousarray(loads[:, 1]),
        first=first,
        backward_before=_running(backward, first, stage) - backward,
        allreduce=_running(gradients, first, stage),
    )


def _running(column: F64, first: I64, stage: I64) -> F64:
    """Return running sums that restart at every stage."""
    total = np.cumsum(column)
    return total - (total - column)[first][stage]


def schedule_pipeline(
    pipeline: Pipeline,
    costs: PipelineCosts,
    kind: ScheduleKind,
    micro_batches: int,
    memory: float,
    *,
    recompute: bool,
    cutoff: float = np.inf,
) -> PipelinePlan | None:
    """Return a pipeline's plan under a schedule, timed by stage simulation.

    None if it does not fit into memory, if an operator cannot be cut, or if a lower bound reaches ``cutoff``.

    Args:
        pipeline, costs: the pipeline and its costs.
        kind, micro_batches: its schedule.
        memory: bytes of a device.
        recompute: stages that do not fit may run their forward passes twice.
        cutoff: only a plan that takes fewer seconds is useful.
    """
    if not costs.replicated or costs.busiest >= cutoff:
        return None
    peaks = memory_of(costs, kind, micro_batches)
    recomputes = peaks[0] > memory
    if recomputes.any() and (not recompute or (peaks[1][recomputes] > memory).any()):
        return None
    times = times_of(costs, micro_batches, recomputes)
    if busiest(micro_batches, times) >= cutoff:
        return None
    return PipelinePlan(
        iteration_seconds(kind, micro_batches, times), pipeline, kind, micro_batches, tuple(recomputes.tolist())
    )


def memory_of(costs: PipelineCosts, kind: ScheduleKind, micro_batches: int) -> F64:
    """(2, S) peak bytes of a device of each stage: without and with recomputation."""
    in_flight_share = in_flight(kind, len(costs.persistent), micro_batches) / micro_batches
    peaks = np.empty((2, len(in_flight_share)))
    peaks[0] = costs.persistent + in_flight_share * costs.activations
    peaks[1] = costs.persistent + in_flight_share * costs.input_bytes + costs.activations / micro_batches
    return peaks


def times_of(costs: PipelineCosts, micro_batches: int, recomputes: np.ndarray) -> StageTimes:
    """Return the times of the stages; ``recomputes`` (S,) marks the stages with recomputation."""
    share = 1.0 / micro_batches
    # The gradients of an operator are summed while the backward passes of earlier operators run.
    exposed_seconds = np.maximum.reduceat(costs.allreduce - share * costs.backward_before, costs.first)
    return StageTimes(
        forward=share * costs.forward,
        recompute=share * costs.forward * recomputes,
        backward=share * (costs.backward - costs.weights),
        weights=share * costs.weights,
        allreduce_tail=np.maximum(exposed_seconds, 0.0),
        source=costs.source,
        target=costs.target,
        inside=share * costs.inside,
        egress=share * costs.egress,
        ingress=share * costs.ingress,
    )


def devices_of(pipeline: Pipeline, machine: Machine) -> list[Devices]:
    """Return the devices of each stage: on every host the idle ones with the lowest numbers."""
    idle_devices = [list(np.flatnonzero(machine.host == h)) for h in range(len(machine.outside))]
    stages = []
    for counts in pipeline.counts:
        members = [int(idle_devices[h].pop(0)) for h, count in enumerate(counts) for _ in range(count)]
        stages.append(tuple(members))
    return stages


def members_of(pipeline: Pipeline, columns: Columns) -> list[list[int]]:
    """Return the operators of each stage."""
    cuts = [*pipeline.cuts, columns.n_cuts - 1]
    return [np.flatnonzero(columns.closed[b] & ~columns.closed[a]).tolist() for a, b in itertools.pairwise(cuts)]


def strategy_of(plan: PipelinePlan, graph: OperatorGraph, columns: Columns, machine: Machine) -> Strategy:
    """Return the strategy: operators are data parallel over the devices of their stage."""
    stages = zip(members_of(plan.pipeline, columns), devices_of(plan.pipeline, machine), strict=True)
    recompute = plan.recompute if any(plan.recompute) else ()
    return staged_strategy(graph, stages, plan.micro_batches, plan.kind, recompute)

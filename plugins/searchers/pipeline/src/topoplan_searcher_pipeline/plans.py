"""Pipelines as values: where they are cut, on how many devices of each host, under which schedule; and their costs."""

from __future__ import annotations

import itertools

import attrs
import numpy as np

from topoplan import OperatorGraph, PipelineStrategy, Placement, Schedule, Strategy
from topoplan.arrays import F64, I64
from topoplan.model.placement import data_parallel
from topoplan.model.schedule import ScheduleKind
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.machine import Counts, Devices, Machine, transfer_loads
from topoplan_searcher_pipeline.play import StageTimes, busiest, in_flight, played

__all__ = [
    "Pipeline",
    "Planned",
    "Whole",
    "devices_of",
    "members_of",
    "memory_of",
    "planned",
    "strategy_of",
    "times_of",
    "whole_of",
]


@attrs.frozen
class Pipeline:
    """Stages and their devices.

    Attributes:
        cuts: where each stage begins; see `Columns`.
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
        """In short: devices of each stage, and where the later ones start (``8|8 @22``)."""
        return "|".join(map(str, self.sizes)) + "".join(f" @{cut}" for cut in self.cuts[1:])


@attrs.frozen
class Planned:
    """A pipeline under a schedule.

    Attributes:
        seconds: of one iteration, as played (`topoplan_searcher_pipeline.play`).
        recompute: for each stage, whether it runs its forward passes twice.
    """

    seconds: float
    pipeline: Pipeline
    kind: ScheduleKind
    micro_batches: int
    recompute: tuple[bool, ...]


@attrs.frozen(kw_only=True, eq=False)
class Whole:
    """What the stages of a pipeline take and hold for the whole batch; S stages, E pairs that send.

    Attributes:
        replicated: every operator can be cut for the devices of its stage.
        forward, backward, weights: (S,) seconds of a device; the last is a part of the second.
        kept, activations: (S,) bytes of a device.
        entering_bytes: (S,) what a device gets from other stages.
        source, target, inside, leaving, entering: (E, ...) see `StageTimes`.
        first: (S,) the first operator of each stage in the two columns that follow.
        undone: (n,) seconds of backward passes before each operator of its stage.
        summing: (n,) seconds of the all-reduces up to each operator of its stage.
    """

    replicated: bool
    forward: F64
    backward: F64
    weights: F64
    kept: F64
    activations: F64
    entering_bytes: F64
    source: I64
    target: I64
    inside: F64
    leaving: F64
    entering: F64
    first: I64
    undone: F64
    summing: F64

    @property
    def busiest(self) -> float:
        """Seconds for which the busiest stage computes."""
        return float((self.forward + self.backward).max())


def whole_of(pipeline: Pipeline, columns: Columns, machine: Machine) -> Whole | None:
    """Sum a pipeline's stages; None where a stage has a number of devices that is not planned with."""
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
    moved = nbytes[source, target]
    loads *= moved[:, None, None]
    members = members_of(pipeline, columns)
    lengths = np.array([len(ops) for ops in members])
    first = np.cumsum(lengths) - lengths
    ops, stage = np.concatenate(members), np.repeat(np.arange(len(rows)), lengths)
    backward = columns.operator_backward[rows[stage], ops]
    gradients = columns.operator_gradients[ops] * machine.allreduce(counts)[stage]
    return Whole(
        replicated=not sums(columns.unpriced).any(),
        forward=sums(columns.forward),
        backward=sums(columns.backward),
        weights=sums(columns.weight_gradient),
        kept=sums(columns.kept),
        activations=sums(columns.activations),
        entering_bytes=columns.crossing[starts] / np.array(pipeline.sizes),
        source=source,
        target=target,
        inside=inside * moved,
        leaving=np.ascontiguousarray(loads[:, 0]),
        entering=np.ascontiguousarray(loads[:, 1]),
        first=first,
        undone=_running(backward, first, stage) - backward,
        summing=_running(gradients, first, stage),
    )


def _running(column: F64, first: I64, stage: I64) -> F64:
    """Return running sums that begin anew at every stage."""
    total = np.cumsum(column)
    return total - (total - column)[first][stage]


def planned(
    pipeline: Pipeline,
    whole: Whole,
    kind: ScheduleKind,
    micro_batches: int,
    memory: float,
    *,
    recompute: bool,
    cutoff: float = np.inf,
) -> Planned | None:
    """Play a pipeline; None where it does not fit into memory, cannot be cut like that or surely takes ``cutoff``.

    Args:
        pipeline, whole: what to play.
        kind, micro_batches: its schedule.
        memory: bytes of a device.
        recompute: stages that do not fit otherwise may run their forward passes twice.
        cutoff: only a plan of fewer seconds is of use.
    """
    if not whole.replicated or whole.busiest >= cutoff:
        return None
    peaks = memory_of(whole, kind, micro_batches)
    recomputes = peaks[0] > memory
    if recomputes.any() and (not recompute or (peaks[1][recomputes] > memory).any()):
        return None
    times = times_of(whole, micro_batches, recomputes)
    if busiest(micro_batches, times) >= cutoff:
        return None
    return Planned(played(kind, micro_batches, times), pipeline, kind, micro_batches, tuple(recomputes.tolist()))


def memory_of(whole: Whole, kind: ScheduleKind, micro_batches: int) -> F64:
    """(2, S) bytes that a device of each stage holds at most: as it is, and where it recomputes."""
    in_flight_share = in_flight(kind, len(whole.kept), micro_batches) / micro_batches
    peaks = np.empty((2, len(in_flight_share)))
    peaks[0] = whole.kept + in_flight_share * whole.activations
    peaks[1] = whole.kept + in_flight_share * whole.entering_bytes + whole.activations / micro_batches
    return peaks


def times_of(whole: Whole, micro_batches: int, recomputes: np.ndarray) -> StageTimes:
    """Return what the stages take; ``recomputes`` (S,) says which of them do."""
    share = 1.0 / micro_batches
    # Gradients are summed operator by operator, while those before are still computed.
    outlasting = np.maximum.reduceat(whole.summing - share * whole.undone, whole.first)
    return StageTimes(
        forward=share * whole.forward,
        again=share * whole.forward * recomputes,
        backward=share * (whole.backward - whole.weights),
        weights=share * whole.weights,
        summing=np.maximum(outlasting, 0.0),
        source=whole.source,
        target=whole.target,
        inside=share * whole.inside,
        leaving=share * whole.leaving,
        entering=share * whole.entering,
    )


def devices_of(pipeline: Pipeline, machine: Machine) -> list[Devices]:
    """Return the devices of each stage: on every host the lowest ones that are free."""
    free = [list(np.flatnonzero(machine.host == h)) for h in range(len(machine.outside))]
    stages = []
    for counts in pipeline.counts:
        members = [int(free[h].pop(0)) for h, count in enumerate(counts) for _ in range(count)]
        stages.append(tuple(members))
    return stages


def members_of(pipeline: Pipeline, columns: Columns) -> list[list[int]]:
    """Return the operators of each stage."""
    cuts = [*pipeline.cuts, columns.n_cuts - 1]
    return [np.flatnonzero(columns.closed[b] & ~columns.closed[a]).tolist() for a, b in itertools.pairwise(cuts)]


def strategy_of(plan: Planned, graph: OperatorGraph, columns: Columns, machine: Machine) -> Strategy:
    """Return the strategy: operators are data parallel over the devices of their stage."""
    placements: list[Placement | None] = [None] * len(graph.operators)
    stage = np.zeros(len(placements), dtype=np.int32)
    devices = devices_of(plan.pipeline, machine)
    for number, members in enumerate(members_of(plan.pipeline, columns)):
        for op in members:
            placements[op] = data_parallel(graph, op, devices[number])
            stage[op] = number
    schedule = Schedule(
        kind=plan.kind,
        micro_batches=plan.micro_batches,
        stage=stage,
        recompute=plan.recompute if any(plan.recompute) else (),
    )
    return PipelineStrategy(tuple(p for p in placements if p is not None), schedule)

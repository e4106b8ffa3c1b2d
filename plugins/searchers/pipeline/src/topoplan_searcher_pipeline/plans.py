"""Pipelines as values: cuts, devices of each stage and schedule; and their costs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import OperatorGraph, Strategy
from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel, kernel, part
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_searcher_pipeline.columns import Bools, Columns, StageColumns
from topoplan_searcher_pipeline.machine import Counts, Devices, Machine, allreduce_seconds, transfer_loads
from topoplan_searcher_pipeline.rooms import ScheduleRoom, room_for
from topoplan_searcher_pipeline.shared import Hosts, add_tied
from topoplan_searcher_pipeline.stage_simulation import ORDERS, StageTimes, busiest, in_flight, simulate
from topoplan_searcher_pipeline.whole import busiest_share

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
]

_ZERO_BUBBLE = ORDERS.index("zero-bubble")


@attrs.frozen(cache_hash=True)
class Pipeline:
    """Stages and their devices.

    Attributes:
        cuts: the start of each stage; see `Columns`.
        counts: for each stage, its devices on each host.
    """

    cuts: tuple[int, ...]
    counts: tuple[Counts, ...]

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each stage."""
        return tuple(map(sum, self.counts))

    @functools.cached_property
    def widest(self) -> int:
        """Devices of the stage that has the most."""
        return max(self.sizes)

    @property
    def split(self) -> str:
        """Short text: the devices of each stage, and the starts of later stages (``8|8 @22``)."""
        return "|".join(map(str, self.sizes)) + "".join(f" @{cut}" for cut in self.cuts[1:])

    @property
    def stages_text(self) -> str:
        """Numbers of stages and their devices, for messages: ``3 stages of 8 devices, 1 stage of 4 devices``."""
        runs = [(len(list(run)), size) for size, run in itertools.groupby(self.sizes)]
        return ", ".join(f"{n} stage{'s' * (n > 1)} of {size} device{'s' * (size > 1)}" for n, size in runs)


@attrs.frozen
class PipelinePlan:
    """A pipeline under a schedule.

    Attributes:
        seconds: of one iteration, from `topoplan_searcher_pipeline.stage_simulation`.
        recompute: for each stage, whether it runs its forward passes twice.
    """

    seconds: float
    pipeline: Pipeline
    kind: str
    micro_batches: int
    recompute: tuple[bool, ...]


class PipelineCosts(NamedTuple):
    """Seconds and bytes of the stages of a pipeline, for the whole batch; S stages, E pairs of stages with transfers.

    Seconds are those of as many passes as the columns say (`Columns.at`).

    Attributes:
        replicated: every operator can be cut for the devices of its stage.
        busiest: seconds of computation of the busiest stage.
        forward, backward, weights: (S,) seconds of a device; ``backward`` includes ``weights``.
        persistent, activations: (S,) bytes of a device.
        input_bytes: (S,) bytes that a device receives from other stages.
        rise: (S,) bytes of gradients of activations that the backward pass over the whole batch adds.
        deferred: (S,) bytes of the gradients of outputs that wait for a pass of the weights' gradients of their own.
        waiting, waiting_latency: (S,) seconds that each pass over the whole batch waits for messages between the
            devices of the stage, from or to operators that are not cut; and the latency that every pass waits beside.
        source, target, inside, egress, ingress: (E, ...) see `StageTimes`.
        latency: (E,) seconds that every message between hosts takes beside its bytes.
        returned: (E,) see `StageTimes`.
        first: (S,) index of the first operator of each stage in the next two columns.
        backward_before: (n,) seconds of the backward passes of all earlier operators of the stage.
        allreduce: (n,) seconds of the all-reduces of an operator and all earlier operators of the stage.
    """

    replicated: bool
    busiest: float
    forward: F64
    backward: F64
    weights: F64
    persistent: F64
    activations: F64
    input_bytes: F64
    waiting: F64
    waiting_latency: F64
    rise: F64
    deferred: F64
    source: I64
    target: I64
    inside: F64
    egress: F64
    ingress: F64
    latency: F64
    returned: F64
    first: I64
    backward_before: F64
    allreduce: F64


def pipeline_costs(pipeline: Pipeline, columns: Columns, machine: Machine) -> PipelineCosts | None:
    """Sum the columns over each stage; None if the columns have no row for the size of a stage."""
    rows = [columns.row_of_replicas.get(size, -1) for size in pipeline.sizes]
    if -1 in rows:
        return None
    counts = np.array(pipeline.counts, dtype=np.int32)
    cuts = np.array((*pipeline.cuts, columns.n_cuts - 1))
    (count, hosts), n = counts.shape, columns.closed.shape[1]
    most = count * (count - 1) // 2  # pairs of stages: nothing is sent to an earlier one
    stages, operators, loads = np.empty((10, count)), np.empty((2, n)), np.empty((2, most, hosts))
    ends, inside, first = np.empty((2, most), dtype=np.int64), np.empty((2, most)), np.empty(count, dtype=np.int64)
    room = _Room(
        np.empty((2, count, count)),
        np.empty(n, dtype=np.int64),
        np.empty((4, count), dtype=np.int64),
        np.empty(count),
        np.empty((2, hosts)),
        np.empty((5, pipeline.widest)),
    )
    written = _Written(stages, ends, inside, loads, first, operators)
    placed = Hosts(counts, machine.outside, machine.inside, machine.latency)
    pairs, replicated, busiest_seconds = _sum_stages(cuts, np.array(rows), placed, columns.of_stages, written, room)
    add_tied(columns, placed, room.stage_of, first, stages[3], operators[1])
    latency = np.where(loads[0, :pairs].any(axis=1), machine.latency, 0.0)
    sent = (*ends[:, :pairs], inside[0, :pairs], *loads[:, :pairs], latency, inside[1, :pairs])
    return PipelineCosts._make((replicated, busiest_seconds, *stages, *sent, first, *operators))


class _Written(NamedTuple):
    """What `_sum_stages` writes: the columns of `PipelineCosts`, those of equal shapes together.

    Attributes:
        stages: (10, S) ``forward`` to ``deferred``.
        ends, inside, loads: (2, P), (2, P), (2, P, H) ``source`` and ``target``, ``inside`` and ``returned``,
            ``egress`` and ``ingress``, with room for P pairs of stages.
        first: (S,) as there.
        operators: (2, n) ``backward_before`` and ``allreduce``.
    """

    stages: F64
    ends: I64
    inside: F64
    loads: F64
    first: I64
    operators: F64


class _Room(NamedTuple):
    """What `_sum_stages` writes into beside its results.

    Attributes:
        sent: (2, S, S) bytes that each stage sends to each later one, and those whose gradients come back; on the
            diagonal, what its devices send each other.
        stage_of: (n,) the stage of each operator.
        seen: (4, S) the last tensor that was found to be read by each stage: its cut operators, and the others; and the
            last one whose gradient each of them sends back.
        allreduce: (S,) seconds to all-reduce a byte.
        loads: (2, H) of `transfer_loads`.
        whole: (5, D) of `busiest_share`.
    """

    sent: F64
    stage_of: I64
    seen: I64
    allreduce: F64
    loads: F64
    whole: F64


@kernel  # type: ignore[untyped-decorator]
def _sum_stages(
    cuts: I64, rows: I64, hosts: Hosts, columns: StageColumns, costs: _Written, room: _Room
) -> tuple[int, bool, float]:
    """Write the costs of a pipeline; return how many pairs there are, ``replicated`` and ``busiest``.

    Args:
        cuts: (S+1,) starts of the stages, and the last cut.
        rows: (S,) row of each stage in the columns.
        hosts, columns: of stages and operators.
        costs: output.
        room: to write into.
    """
    _sum_transfers(cuts, hosts.counts, columns, room)
    _wait_inside(hosts, room, costs.stages)
    allreduce_seconds(hosts.counts, hosts.outside, hosts.inside, room.allreduce)
    replicated, n, pair, busiest_seconds = True, 0, 0, 0.0
    backward_seconds, summing_seconds = 0.0, 0.0  # of all operators so far
    for s in range(len(rows)):
        row, start, end = rows[s], cuts[s], cuts[s + 1]
        replicated = replicated and columns.unpriced[row, end] == columns.unpriced[row, start]
        costs.stages[0, s] = columns.forward[row, end] - columns.forward[row, start]
        costs.stages[1, s] = columns.backward[row, end] - columns.backward[row, start]
        costs.stages[2, s] = columns.weight_gradient[row, end] - columns.weight_gradient[row, start]
        costs.stages[3, s] = columns.kept[row, end] - columns.kept[row, start]
        costs.stages[4, s] = columns.activations[row, end] - columns.activations[row, start]
        costs.stages[8, s] = min(columns.rise_before[row, end], columns.rise_after[row, start])
        costs.stages[9, s] = columns.deferred[row, end] - columns.deferred[row, start]
        _add_whole(s, columns.closed[start], columns.closed[end], hosts.counts[s].sum(), columns, costs.stages, room)
        busiest_seconds = max(busiest_seconds, costs.stages[0, s] + costs.stages[1, s])
        costs.stages[5, s] = columns.crossing[start] / hosts.counts[s].sum()
        costs.first[s] = n
        backward_base, allreduce_base = 0.0, 0.0
        for op in range(columns.closed.shape[1]):
            if columns.closed[start, op] or not columns.closed[end, op]:
                continue
            backward = columns.operator_backward[row, op]
            gradients = columns.operator_gradients[op] * room.allreduce[s]
            backward_seconds += backward
            summing_seconds += gradients
            if n == costs.first[s]:
                backward_base, allreduce_base = backward_seconds - backward, summing_seconds - gradients
            costs.operators[0, n] = backward_seconds - backward_base - backward
            costs.operators[1, n] = summing_seconds - allreduce_base
            n += 1
        for target in range(s + 1, len(rows)):
            size = room.sent[0, s, target]
            if size == 0.0:
                continue
            costs.ends[0, pair], costs.ends[1, pair] = s, target
            counts = hosts.counts
            seconds = transfer_loads(counts[s], counts[target], hosts.outside, hosts.inside, room.loads)
            costs.inside[0, pair] = seconds * size
            costs.inside[1, pair] = room.sent[1, s, target] / size
            for h in range(counts.shape[1]):
                costs.loads[0, pair, h] = room.loads[0, h] * size
                costs.loads[1, pair, h] = room.loads[1, h] * size
            pair += 1
    return pair, replicated, busiest_seconds


@inline_kernel  # type: ignore[untyped-decorator]
def _add_whole(
    stage: int, before: Bools, until: Bools, devices: int, columns: StageColumns, stages: F64, room: _Room
) -> None:
    """Add to the sums of a stage (`_Written.stages`) what its busiest device has beyond an equal share."""
    if len(columns.whole.op) > 0 and devices > 1:
        forward, backward, persistent, activations = busiest_share(columns.whole, before, until, devices, room.whole)
        stages[0, stage] += forward
        stages[1, stage] += backward
        stages[3, stage] += persistent
        stages[4, stage] += activations


@inline_kernel  # type: ignore[untyped-decorator]
def _wait_inside(hosts: Hosts, room: _Room, stages: F64) -> None:
    """Write how long passes wait for messages inside stages, evenly over the devices, into `_Written.stages`."""
    for stage in range(len(hosts.counts)):
        devices, spanned, most, rate = 0, 0, 0, np.inf
        for h in range(hosts.counts.shape[1]):
            count = hosts.counts[stage, h]
            if count > 0:
                devices, spanned, most = devices + count, spanned + 1, max(most, count)
                rate = min(rate, hosts.outside[h])
        if spanned == 1:
            rate, most = np.inf, 1
            for h in range(hosts.counts.shape[1]):
                if hosts.counts[stage, h] > 0:
                    rate = hosts.inside[h]
        nbytes = room.sent[0, stage, stage]
        stages[6, stage] = nbytes / devices * most / rate
        stages[7, stage] = hosts.latency if nbytes > 0.0 and spanned > 1 else 0.0


@inline_kernel  # type: ignore[untyped-decorator]
def _sum_transfers(cuts: I64, counts: I32, columns: StageColumns, room: _Room) -> None:
    """Write ``room.sent``, the bytes that each stage sends to each later one, and those of gradients that come back.

    Every part of an operator sends to, or receives from, one other part at least.  What several operators of a stage
    read of a tensor is sent once; those that are not cut get all of it at one device.  Inside a stage, messages go
    between an operator that is not cut and one that is.  (S, H) ``counts`` are the devices of stages.
    """
    room.stage_of[:] = 0
    room.sent[:] = 0.0
    room.seen[:] = -1
    for stage in range(1, len(cuts) - 1):
        for op in range(len(room.stage_of)):
            if not columns.closed[cuts[stage], op]:
                room.stage_of[op] = stage
    for row in range(len(columns.edge)):
        producer, consumer = columns.edge[row]
        source, target = room.stage_of[producer], room.stage_of[consumer]
        kind = 1 if columns.whole.is_whole[consumer] else 0
        if source != target and columns.edge_returns[row] and room.seen[2 + kind, target] != columns.edge_tensor[row]:
            room.seen[2 + kind, target] = columns.edge_tensor[row]
            room.sent[1, source, target] += columns.edge_bytes[row]
        if room.seen[kind, target] == columns.edge_tensor[row]:
            continue
        room.seen[kind, target] = columns.edge_tensor[row]
        senders = 1 if columns.whole.is_whole[producer] else counts[source].sum()
        receivers = 1 if columns.whole.is_whole[consumer] else counts[target].sum()
        if source != target:
            room.sent[0, source, target] += columns.edge_bytes[row]
        elif senders != receivers:
            messages = max(senders, receivers) - 1  # the device of the whole one keeps its part
            room.sent[0, source, target] += columns.edge_bytes[row] * messages / (messages + 1)


def schedule_pipeline(
    pipeline: Pipeline,
    costs: PipelineCosts,
    schedules: Sequence[tuple[str, int]],
    memory: float,
    *,
    recompute: bool,
    cutoff: float,
    slower: float,
    stop: float,
    rooms: dict[tuple[int, ...], ScheduleRoom],
) -> list[PipelinePlan]:
    """Return a pipeline's plans under ``schedules``, in their order, timed by stage simulation.

    Those are left out that do not fit into memory, whose lower bound reaches ``cutoff``, or ``slower`` times the
    seconds of an earlier one, or whose simulation stops at ``stop``; and all if an operator cannot be cut.

    Args:
        pipeline, costs: the pipeline and its costs.
        schedules: each a schedule and its number of micro-batches.
        memory: bytes of a device.
        recompute: stages that do not fit may run their forward passes twice.
        cutoff, slower: only a plan that takes fewer seconds is useful.
        stop: seconds; see `simulate`.  Where ``slower`` is 1 no simulation runs longer than the fastest one before it.
        rooms: what earlier calls wrote into, to use again.
    """
    if not schedules or not costs.replicated or costs.busiest >= cutoff:
        return []
    numbers = np.array([(ORDERS.index(kind), count) for kind, count in schedules])
    room = room_for(costs.egress.shape, len(costs.forward), max(count for _, count in schedules), rooms)
    seconds, recomputes = np.empty(len(numbers)), np.empty((len(numbers), len(costs.forward)), dtype=np.bool_)
    _time_all(costs, numbers, memory, recompute, cutoff, slower, stop, room, seconds, recomputes)
    rows = zip(seconds.tolist(), schedules, recomputes.tolist(), strict=True)
    return [
        PipelinePlan(duration, pipeline, *schedule, tuple(row))
        for duration, schedule, row in rows
        if 0 <= duration < np.inf
    ]


def memory_of(costs: PipelineCosts, kind: str, micro_batches: int) -> F64:
    """(2, S) peak bytes of a device of each stage: without and with recomputation."""
    peaks = np.empty((2, len(costs.persistent)))
    _fill_peaks(costs, ORDERS.index(kind), micro_batches, peaks)
    return peaks


@part(_nrt=False)  # type: ignore[untyped-decorator]
def _schedule(
    costs: PipelineCosts,
    order: int,
    micro_batches: int,
    memory: float,
    recompute: bool,
    cutoff: float,
    stop: float,
    room: ScheduleRoom,
) -> float:
    """Return the seconds of a pipeline under a schedule; -1 if it does not fit or a lower bound reaches ``cutoff``.

    See `schedule_pipeline`; ``room.recomputes`` is a result, too.  The simulation stops at ``stop`` (see `simulate`).
    """
    _fill_peaks(costs, order, micro_batches, room.peaks)
    for s in range(len(costs.forward)):
        room.recomputes[s] = room.peaks[0, s] > memory
        if room.recomputes[s] and (not recompute or room.peaks[1, s] > memory):
            return -1.0
    _fill_times(costs, micro_batches, room)
    stages, sent = room.stages, (costs.source, costs.target, room.inside, room.loads[0], room.loads[1])
    times = StageTimes(stages[0], stages[1], stages[2], stages[3], stages[4], *sent, costs.latency, costs.returned)
    if busiest(micro_batches, times) >= cutoff:
        return -1.0
    return float(simulate(order, micro_batches, times, room.simulation, stop))


@kernel  # type: ignore[untyped-decorator]
def _time_all(
    costs: PipelineCosts,
    schedules: I64,
    memory: float,
    recompute: bool,
    cutoff: float,
    slower: float,
    stop: float,
    room: ScheduleRoom,
    seconds: F64,
    recomputes: NDArray[np.bool_],
) -> None:
    """Write the seconds of a pipeline under n schedules, negative or infinite where `schedule_pipeline` leaves it out.

    Args:
        costs, memory, recompute, cutoff, slower, stop: see `schedule_pipeline`.
        schedules: (n, 2) order and number of micro-batches.
        room: for the simulations.
        seconds, recomputes: (n,), (n, S) output; the stages with recomputation.
    """
    for turn in range(len(schedules)):
        seconds[turn] = -1.0
        if costs.busiest >= cutoff:
            continue
        order, count = schedules[turn, 0], schedules[turn, 1]
        longest = min(stop, cutoff) if slower == 1.0 else stop
        seconds[turn] = _schedule(costs, order, count, memory, recompute, cutoff, longest, room)
        if seconds[turn] >= 0.0:
            cutoff = min(cutoff, seconds[turn] * slower)
            for s in range(len(costs.forward)):
                recomputes[turn, s] = room.recomputes[s]


@kernel  # type: ignore[untyped-decorator]
def _fill_peaks(costs: PipelineCosts, order: int, micro_batches: int, peaks: F64) -> None:
    """Write the peaks of `memory_of`."""
    stages = len(costs.persistent)
    for s in range(stages):
        share = in_flight(order, s, stages, micro_batches) / micro_batches
        base = costs.persistent[s] + costs.rise[s] / micro_batches
        if order == _ZERO_BUBBLE:
            base += share * costs.deferred[s]
        peaks[0, s] = base + share * costs.activations[s]
        peaks[1, s] = base + share * costs.input_bytes[s] + costs.activations[s] / micro_batches


@part(_nrt=False)  # type: ignore[untyped-decorator]
def _fill_times(costs: PipelineCosts, micro_batches: int, room: ScheduleRoom) -> None:
    """Write the `StageTimes` of a micro-batch, with recomputation where ``room`` says so."""
    share = 1.0 / micro_batches
    stages, operators = len(costs.forward), len(costs.allreduce)
    for s in range(stages):
        waiting = share * costs.waiting[s] + costs.waiting_latency[s]
        room.stages[0, s] = share * costs.forward[s] + waiting
        room.stages[1, s] = room.stages[0, s] if room.recomputes[s] else 0.0
        room.stages[2, s] = share * (costs.backward[s] - costs.weights[s]) + waiting
        room.stages[3, s] = share * costs.weights[s]
        # The gradients of an operator are summed while the backward passes of earlier operators run.
        exposed = 0.0
        for op in range(costs.first[s], costs.first[s + 1] if s + 1 < stages else operators):
            exposed = max(exposed, costs.allreduce[op] - share * costs.backward_before[op])
        room.stages[4, s] = exposed
    for pair in range(len(costs.source)):
        room.inside[pair] = share * costs.inside[pair]
        for h in range(costs.egress.shape[1]):
            room.loads[0, pair, h] = share * costs.egress[pair, h]
            room.loads[1, pair, h] = share * costs.ingress[pair, h]


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
    """Return the strategy: operators are data parallel over the devices of their stage, or whole on one of them."""
    stages = zip(members_of(plan.pipeline, columns), devices_of(plan.pipeline, machine), strict=True)
    recompute = plan.recompute if any(plan.recompute) else ()
    whole = columns.at(plan.micro_batches).whole
    seconds = dict(zip(whole.op.tolist(), whole.prices[:2].sum(axis=0).tolist(), strict=True))
    return staged_strategy(graph, stages, plan.micro_batches, plan.kind, recompute, seconds)

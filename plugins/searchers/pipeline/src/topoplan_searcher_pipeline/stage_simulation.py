"""Stage simulation: simulates a schedule with one task for each stage, pass and micro-batch.

It takes microseconds, because it has far fewer tasks than a task graph.  The planner can therefore time every pipeline
under every schedule.  A stage runs its passes in the order of the schedule (`topoplan_engine.lowering.order`).  If
several later stages read a tensor, its stage sends it to each of them.  Transfers that leave or enter the same host
wait for each other, in order of readiness.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["ORDERS", "Room", "StageTimes", "busiest", "in_flight", "iteration_seconds", "simulate"]

#: Orders of passes that are planned for; kernels know their numbers.
ORDERS = ("gpipe", "1f1b-deep", "1f1b", "zero-bubble")
_GPIPE, _DEEP, _ONE_F_ONE_B, _ZERO_BUBBLE = range(len(ORDERS))


class StageTimes(NamedTuple):
    """Seconds of S stages and E pairs of stages between which something is sent, in ascending order.

    Attributes:
        forward, recompute: (S,) the forward pass of one micro-batch, and its recomputation (or 0).
        backward, weights: (S,) the backward pass without gradients of weights, and the gradients of weights.
        allreduce_tail: (S,) from the last pass to the end of the all-reduces.
        source, target: (E,) stages.
        inside: (E,) lower bound on a transfer, from the links inside hosts.
        egress, ingress: (E, H) for which a transfer occupies the sending and receiving interfaces of each host.
        latency: (E,) from then to its arrival.
        returned: (E,) the share of its bytes whose gradients go back; 0 if the source waits for none.
    """

    forward: F64
    recompute: F64
    backward: F64
    weights: F64
    allreduce_tail: F64
    source: I64
    target: I64
    inside: F64
    egress: F64
    ingress: F64
    latency: F64
    returned: F64


class Room(NamedTuple):
    """What a simulation of at most M micro-batches writes into; its contents do not matter before.

    Attributes:
        missing: (2, S, M) number of transfers that each pass still waits for, forward and backward.
        arrivals: (2, S, M) latest arrival of the transfers of each pass so far.
        depth: (S,) greatest number of micro-batches that each stage has started and not ended.
        counts: (3, S) number of passes that have run: forward, backward, gradients of weights.
        ends: (2, S) end of the last pass of each stage, and of its next one; infinite if that waits.  Infinite columns
            fill it up to a multiple of four.
        drain: (S,) seconds that pass at least from the last backward pass of each stage to the end of the iteration.
        network: (2, H) end of the last transfer that each host sends and receives.
        pair_ptr, pairs: (2, S+1), (2, E) compressed rows: the pairs of which each stage is the source, and those of
            which it is the target.
        host_count, hosts: (2, E), (2, E, H) the hosts whose sending and receiving interfaces a pair uses.
    """

    missing: I64
    arrivals: F64
    depth: I64
    counts: I64
    ends: F64
    drain: F64
    network: F64
    pair_ptr: I64
    pairs: I64
    host_count: I64
    hosts: I64

    @classmethod
    def of(cls, stages: int, micro_batches: int, pairs: int, hosts: int) -> Room:
        """Return room for so many stages, micro-batches, pairs of stages and hosts."""
        return cls(
            np.empty((2, stages, micro_batches), dtype=np.int64),
            np.empty((2, stages, micro_batches)),
            np.empty(stages, dtype=np.int64),
            np.empty((3, stages), dtype=np.int64),
            np.full((2, (stages + 3) // 4 * 4), np.inf),
            np.empty(stages),
            np.empty((2, hosts)),
            np.empty((2, stages + 1), dtype=np.int64),
            np.empty((2, pairs), dtype=np.int64),
            np.empty((2, pairs), dtype=np.int64),
            np.empty((2, pairs, hosts), dtype=np.int64),
        )


@kernel  # type: ignore[untyped-decorator]
def in_flight(order: int, stage: int, stages: int, micro_batches: int) -> int:
    """Return the greatest number of micro-batches that a stage has started and not ended.

    Args:
        order: number in `ORDERS`.
        stage, stages: the stage, and how many there are.
        micro_batches: of the batch.
    """
    depth = stages - stage
    if order == _GPIPE:
        depth = micro_batches
    elif order == _ZERO_BUBBLE:
        depth = stages
    elif order == _DEEP:
        depth = 2 * depth - 1
    return min(depth, micro_batches)


@kernel  # type: ignore[untyped-decorator]
def busiest(micro_batches: int, times: StageTimes) -> float:
    """Return the seconds of the busiest stage or host interface, a lower bound for every schedule."""
    seconds = 0.0
    for s in range(len(times.forward)):
        seconds = max(seconds, times.forward[s] + times.recompute[s] + times.backward[s] + times.weights[s])
    for h in range(times.egress.shape[1]):
        sending = receiving = 0.0  # gradients come where activations went
        for pair in range(len(times.source)):
            sending += times.egress[pair, h] + times.ingress[pair, h] * times.returned[pair]
            receiving += times.ingress[pair, h] + times.egress[pair, h] * times.returned[pair]
        seconds = max(seconds, sending, receiving)
    return micro_batches * seconds


def iteration_seconds(kind: str, micro_batches: int, times: StageTimes) -> float:
    """Return the seconds of one iteration; interleaved schedules are not supported."""
    room = Room.of(len(times.forward), micro_batches, *times.egress.shape)
    return float(simulate(ORDERS.index(kind), micro_batches, times, room, np.inf))


@kernel  # type: ignore[untyped-decorator]
def simulate(order: int, micro_batches: int, times: StageTimes, room: Room, cutoff: float) -> float:
    """Run all passes; the pass that ends first is next.  Return the seconds of one iteration.

    The simulation stops, and returns infinity, when it is certain that the iteration takes ``cutoff`` seconds or more:
    a stage has its other passes to run, and after its last one the stages before it have theirs.

    Args:
        order: number in `ORDERS`.  In ZB-H1 gradients of weights are deferred; otherwise they belong to the backward
            pass.
        micro_batches: of the batch.
        times: of all passes and transfers.
        room: for this simulation.
        cutoff: seconds.
    """
    defer_weights = order == _ZERO_BUBBLE
    _clear(micro_batches, times, room)
    _fill_drain(defer_weights, times, room)
    stages = len(times.forward)
    for stage in range(stages):
        room.depth[stage] = in_flight(_ONE_F_ONE_B if defer_weights else order, stage, stages, micro_batches)
    stage_end, ends, counts = room.ends[0], room.ends[1], room.counts
    for stage in range(stages):
        ends[stage] = _next_end(stage, defer_weights, micro_batches, times, room)
    for _ in range(2 * stages * micro_batches):
        # Of what is read out of an array numba looks whether it is a negative index, unless it is unsigned.
        soonest = np.uint32(_first_of(ends))
        stage_end[soonest] = ends[soonest]
        direction = np.uint32(0 if _goes_forward(soonest, micro_batches, room) else 1)
        number = np.uint32(counts[direction, soonest])
        counts[direction, soonest] += 1
        if cutoff < np.inf and _certain_end(soonest, defer_weights, micro_batches, times, room) >= cutoff:
            return np.inf
        for turn in range(room.pair_ptr[direction, soonest], room.pair_ptr[direction, soonest + np.uint32(1)]):
            pair = np.uint32(room.pairs[direction, turn])
            arrival = _send(pair, direction, stage_end[soonest], times, room)
            neighbour = np.uint32(times.source[pair] if direction else times.target[pair])
            room.missing[direction, neighbour, number] -= 1
            latest = room.arrivals[direction, neighbour, number]
            room.arrivals[direction, neighbour, number] = max(latest, arrival)
            # A stage that does not wait has all that its next pass reads.
            if ends[neighbour] == np.inf and room.missing[direction, neighbour, number] == 0:
                ends[neighbour] = _next_end(neighbour, defer_weights, micro_batches, times, room)
        ends[soonest] = _next_end(soonest, defer_weights, micro_batches, times, room)
    seconds = -np.inf
    for s in range(stages):
        if defer_weights:
            stage_end[s] += times.weights[s] * (micro_batches - counts[2, s])
        seconds = max(seconds, stage_end[s] + times.allreduce_tail[s])
    return seconds


@inline_kernel  # type: ignore[untyped-decorator]
def _first_of(ends: F64) -> int:
    """Return the stage whose next pass ends first, the first of equal ones.

    Four minima do not wait for each other as the steps of one do.
    """
    a, b, c, d = ends[0], ends[1], ends[2], ends[3]
    for s in range(4, len(ends), 4):
        a = ends[s] if ends[s] < a else a
        b = ends[s + 1] if ends[s + 1] < b else b
        c = ends[s + 2] if ends[s + 2] < c else c
        d = ends[s + 3] if ends[s + 3] < d else d
    a = b if b < a else a
    c = d if d < c else c
    minimum = c if c < a else a
    stage = 0
    while ends[stage] > minimum:
        stage += 1
    return stage


@inline_kernel  # type: ignore[untyped-decorator]
def _clear(micro_batches: int, times: StageTimes, room: Room) -> None:
    """Write what a simulation starts with."""
    stages = len(times.forward)
    room.counts[:] = 0
    room.ends[0, :stages] = 0.0
    room.ends[1, stages:] = np.inf
    room.network[:] = 0.0
    for direction in range(2):
        senders = times.target if direction else times.source
        receivers = times.source if direction else times.target
        place = 0
        for stage in range(stages):
            room.pair_ptr[direction, stage] = place
            awaited = 0
            for pair in range(len(senders)):
                if direction == 1 and times.returned[pair] == 0.0:
                    continue
                awaited += receivers[pair] == stage
                if senders[pair] == stage:
                    room.pairs[direction, place] = pair
                    place += 1
            for number in range(micro_batches):
                room.missing[direction, stage, number] = awaited
                room.arrivals[direction, stage, number] = 0.0
        room.pair_ptr[direction, stages] = place
        loads = times.ingress if direction else times.egress
        for pair in range(len(senders)):
            count = 0
            for h in range(loads.shape[1]):
                if loads[pair, h] > 0.0:
                    room.hosts[direction, pair, count] = h
                    count += 1
            room.host_count[direction, pair] = count


@inline_kernel  # type: ignore[untyped-decorator]
def _fill_drain(defer_weights: bool, times: StageTimes, room: Room) -> None:
    """Write ``room.drain``: the gradients of the last micro-batch go back through the stages, and are summed."""
    for stage in range(len(times.forward)):
        seconds = times.allreduce_tail[stage]
        for pair in range(len(times.source)):
            if times.target[pair] == stage and times.returned[pair] > 0.0:
                source = times.source[pair]
                backward = times.backward[source] + (0.0 if defer_weights else times.weights[source])
                seconds = max(seconds, times.inside[pair] * times.returned[pair] + backward + room.drain[source])
        room.drain[stage] = seconds


@inline_kernel  # type: ignore[untyped-decorator]
def _certain_end(stage: int, defer_weights: bool, micro_batches: int, times: StageTimes, room: Room) -> float:
    """Return a lower bound on the seconds of the iteration, from the end of the last pass of a stage."""
    backward = times.recompute[stage] + times.backward[stage] + (0.0 if defer_weights else times.weights[stage])
    forward_seconds = (micro_batches - room.counts[0, stage]) * times.forward[stage]
    backward_seconds = (micro_batches - room.counts[1, stage]) * backward
    # Sums in another order than those of the simulation: what is only rounded up must not stop it.
    return float((room.ends[0, stage] + forward_seconds + backward_seconds + room.drain[stage]) * (1.0 - 1e-9))


@inline_kernel  # type: ignore[untyped-decorator]
def _goes_forward(stage: int, micro_batches: int, room: Room) -> bool:
    """Whether the next pass of a stage is a forward pass."""
    n_forward, n_backward = room.counts[0, stage], room.counts[1, stage]
    return bool(n_forward < micro_batches and n_forward - n_backward < room.depth[stage])


@inline_kernel  # type: ignore[untyped-decorator]
def _next_end(stage: int, defer_weights: bool, micro_batches: int, times: StageTimes, room: Room) -> float:
    """Return the end of the next pass of a stage; infinite if it waits for another stage or has run all.

    Deferred gradients of weights that come before this pass are run.

    Args:
        stage: the stage.
        defer_weights: see `simulate`.
        micro_batches: of the batch.
        times, room: of the simulation.
    """
    counts, arrivals, stage_end = room.counts, room.arrivals, room.ends[0]
    n_forward, n_backward = counts[0, stage], counts[1, stage]
    while defer_weights and counts[2, stage] < n_backward:
        if n_backward - counts[2, stage] <= stage and n_backward < micro_batches:
            break
        stage_end[stage] += times.weights[stage]
        counts[2, stage] += 1
    if _goes_forward(stage, micro_batches, room):
        if room.missing[0, stage, np.uint32(n_forward)] > 0:
            return np.inf
        return float(max(stage_end[stage], arrivals[0, stage, np.uint32(n_forward)]) + times.forward[stage])
    if n_backward == micro_batches or room.missing[1, stage, np.uint32(n_backward)] > 0:
        return np.inf
    end = (
        max(stage_end[stage] + times.recompute[stage], arrivals[1, stage, np.uint32(n_backward)])
        + times.backward[stage]
    )
    return float(end if defer_weights else end + times.weights[stage])


@inline_kernel  # type: ignore[untyped-decorator]
def _send(pair: int, direction: int, ready: float, times: StageTimes, room: Room) -> float:
    """Return the arrival time of a transfer that is ready at ``ready``; update the end times of the hosts.

    Gradients go the other way (``direction`` 1): hosts receive where they sent activations.
    """
    share = times.returned[pair] if direction else 1.0
    arrival = ready + times.inside[pair] * share
    for way in range(2):
        loads = times.ingress if way else times.egress
        ends = room.network[1 - way if direction else way]
        for turn in range(room.host_count[way, pair]):
            h = np.uint32(room.hosts[way, pair, turn])
            ends[h] = max(ends[h], ready) + loads[pair, h] * share
            arrival = max(arrival, ends[h] + times.latency[pair])
    return float(arrival)

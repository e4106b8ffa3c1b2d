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
from topoplan.model.schedule import ScheduleKind
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["StageTimes", "busiest", "in_flight", "iteration_seconds"]


class StageTimes(NamedTuple):
    """Seconds of S stages and E pairs of stages between which something is sent, in ascending order.

    Attributes:
        forward, recompute: (S,) the forward pass of one micro-batch, and its recomputation (or 0).
        backward, weights: (S,) the backward pass without gradients of weights, and the gradients of weights.
        allreduce_tail: (S,) from the last pass to the end of the all-reduces.
        source, target: (E,) stages.
        inside: (E,) lower bound on a transfer, from the links inside hosts.
        egress, ingress: (E, H) for which a transfer occupies the sending and receiving interfaces of each host.
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


def in_flight(kind: ScheduleKind, stages: int, micro_batches: int) -> I64:
    """(S,) greatest number of micro-batches that a stage has started and not ended."""
    if kind is ScheduleKind.GPIPE:
        return np.full(stages, micro_batches)
    if kind is ScheduleKind.ZERO_BUBBLE:
        return np.full(stages, min(stages, micro_batches))
    depth = np.arange(stages, 0, -1)
    return np.asarray(np.minimum(2 * depth - 1 if kind is ScheduleKind.DEEP else depth, micro_batches))


def busiest(micro_batches: int, times: StageTimes) -> float:
    """Return the seconds of the busiest stage or host interface, a lower bound for every schedule."""
    passes = times.forward + times.recompute + times.backward + times.weights
    network = (times.egress + times.ingress).sum(axis=0)  # either way: gradients come where activations went
    return micro_batches * float(max(passes.max(), network.max()))


def iteration_seconds(kind: ScheduleKind, micro_batches: int, times: StageTimes) -> float:
    """Return the seconds of one iteration; interleaved schedules are not supported."""
    stages, hosts = len(times.forward), times.egress.shape[1]
    window = in_flight(ScheduleKind.ONE_F_ONE_B if kind is ScheduleKind.ZERO_BUBBLE else kind, stages, micro_batches)
    missing = np.zeros((2, stages, micro_batches), dtype=np.int64)
    missing[0] = np.bincount(times.target, minlength=stages)[:, None]
    missing[1] = np.bincount(times.source, minlength=stages)[:, None]
    arrivals, stage_end, network = np.zeros(missing.shape), np.zeros(stages), np.zeros((2, hosts))
    counts = np.zeros((3, stages), dtype=np.int64)
    _run_passes(kind is ScheduleKind.ZERO_BUBBLE, window, times, missing, arrivals, counts, stage_end, network)
    return float((stage_end + times.allreduce_tail).max())


@kernel  # type: ignore[untyped-decorator]
def _run_passes(
    defer_weights: bool,
    window: I64,
    times: StageTimes,
    missing: I64,
    arrivals: F64,
    counts: I64,
    stage_end: F64,
    network: F64,
) -> None:
    """Run all passes; the pass that ends first is next.

    Args:
        defer_weights: gradients of weights are deferred as in ZB-H1; otherwise they belong to the backward pass.
        window: (S,) see `in_flight`.
        times: of all passes and transfers.
        missing: (2, S, M) number of transfers that each pass still waits for, forward and backward.
        arrivals: (2, S, M) latest arrival of the transfers of each pass so far.
        counts: (3, S) number of passes that have run: forward, backward, gradients of weights.
        stage_end: (S,) end of the last pass of each stage.
        network: (2, H) end of the last transfer that each host sends and receives.
    """
    source, target, inside, egress, ingress = times.source, times.target, times.inside, times.egress, times.ingress
    stages, count = arrivals.shape[1], arrivals.shape[2]
    for _ in range(2 * stages * count):
        stage, first, is_forward = _next_pass(defer_weights, window, times, missing, arrivals, counts, stage_end)
        stage_end[stage] = first
        direction = 0 if is_forward else 1
        number = counts[direction, stage]
        counts[direction, stage] += 1
        for pair in range(len(source)):
            if is_forward and source[pair] == stage:
                arrival = _send(first, inside[pair], egress[pair], ingress[pair], network[0], network[1])
                neighbour = target[pair]
            elif not is_forward and target[pair] == stage:
                arrival = _send(first, inside[pair], ingress[pair], egress[pair], network[0], network[1])
                neighbour = source[pair]
            else:
                continue
            missing[direction, neighbour, number] -= 1
            arrivals[direction, neighbour, number] = max(arrivals[direction, neighbour, number], arrival)
    if defer_weights:
        for s in range(stages):
            stage_end[s] += times.weights[s] * (count - counts[2, s])


@inline_kernel  # type: ignore[untyped-decorator]
def _next_pass(
    defer_weights: bool, window: I64, times: StageTimes, missing: I64, arrivals: F64, counts: I64, stage_end: F64
) -> tuple[int, float, bool]:
    """Return the stage of the pass that ends first, its end, and whether it is a forward pass.

    Deferred gradients of weights that come before the next pass of their stage are run.  Arguments are those of
    `_run_passes`.
    """
    count = arrivals.shape[2]
    stage, first, is_forward = -1, np.inf, False
    for s in range(arrivals.shape[1]):
        n_forward, n_backward = counts[0, s], counts[1, s]
        while defer_weights and counts[2, s] < n_backward and (n_backward - counts[2, s] > s or n_backward == count):
            stage_end[s] += times.weights[s]
            counts[2, s] += 1
        if n_forward < count and n_forward - n_backward < window[s]:
            if missing[0, s, n_forward] == 0:
                finish = max(stage_end[s], arrivals[0, s, n_forward]) + times.forward[s]
                if finish < first:
                    stage, first, is_forward = s, finish, True
        elif n_backward < count and missing[1, s, n_backward] == 0:
            finish = max(stage_end[s] + times.recompute[s], arrivals[1, s, n_backward]) + times.backward[s]
            if not defer_weights:
                finish += times.weights[s]
            if finish < first:
                stage, first, is_forward = s, finish, False
    return stage, first, is_forward


@inline_kernel  # type: ignore[untyped-decorator]
def _send(ready: float, inside: float, egress: F64, ingress: F64, sending: F64, receiving: F64) -> float:
    """Return the arrival time of a transfer that is ready at ``ready``; update the end times of the hosts."""
    arrival = ready + inside
    for h in range(len(egress)):
        if egress[h] > 0.0:
            sending[h] = max(sending[h], ready) + egress[h]
            arrival = max(arrival, sending[h])
        if ingress[h] > 0.0:
            receiving[h] = max(receiving[h], ready) + ingress[h]
            arrival = max(arrival, receiving[h])
    return arrival

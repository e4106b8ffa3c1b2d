"""Playing a schedule: stages and the transfers between them, pass by pass.

What a simulator does with thousands of tasks is done here with one task for each stage and micro-batch, in
microseconds, so that every pipeline that the planner considers can be played under every schedule.  A stage runs its
passes in the order of the schedule, as `topoplan_engine.lowering.order` has it.  What several later stages read is
sent to
each of them by the stage that makes it.  Transfers wait for each other where they leave or enter the same host; which
comes first is decided by which is ready first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.schedule import ScheduleKind
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["StageTimes", "busiest", "in_flight", "played"]


class StageTimes(NamedTuple):
    """Seconds of S stages and E pairs of stages between which something is sent, in ascending order.

    Attributes:
        forward, again: (S,) the forward pass of one micro-batch, and the same again where the stage recomputes, or 0.
        backward, weights: (S,) the backward pass without gradients of weights, and those.
        summing: (S,) for which all-reduces outlast the last pass.
        source, target: (E,) stages.
        inside: (E,) that a transfer takes at least, inside hosts.
        leaving, entering: (E, H) for which a transfer keeps the interfaces of each host busy.
    """

    forward: F64
    again: F64
    backward: F64
    weights: F64
    summing: F64
    source: I64
    target: I64
    inside: F64
    leaving: F64
    entering: F64


def in_flight(kind: ScheduleKind, stages: int, micro_batches: int) -> I64:
    """(S,) micro-batches that every stage has begun and not done at a time, at most."""
    later = np.arange(stages, 0, -1)
    most = {
        ScheduleKind.GPIPE: np.full(stages, micro_batches),
        ScheduleKind.DEEP: 2 * later - 1,
        ScheduleKind.ZERO_BUBBLE: np.full(stages, stages),
    }.get(kind, later)
    return np.asarray(np.minimum(most, micro_batches))


def busiest(micro_batches: int, times: StageTimes) -> float:
    """Return the seconds for which the busiest stage or host interface is busy: no schedule takes less."""
    passes = times.forward + times.again + times.backward + times.weights
    network = (times.leaving + times.entering).sum(axis=0)  # either way: gradients come where activations went
    return micro_batches * float(max(passes.max(), network.max()))


def played(kind: ScheduleKind, micro_batches: int, times: StageTimes) -> float:
    """Return the seconds of one iteration; interleaved schedules are not played."""
    stages, hosts = len(times.forward), times.leaving.shape[1]
    ahead = in_flight(ScheduleKind.ONE_F_ONE_B if kind is ScheduleKind.ZERO_BUBBLE else kind, stages, micro_batches)
    missing = np.zeros((2, stages, micro_batches), dtype=np.int64)
    missing[0] = np.bincount(times.target, minlength=stages)[:, None]
    missing[1] = np.bincount(times.source, minlength=stages)[:, None]
    counts = np.zeros((3, stages), dtype=np.int64)
    arrived, free, network = np.zeros(missing.shape), np.zeros(stages), np.zeros((2, hosts))
    put_off = kind is ScheduleKind.ZERO_BUBBLE
    _play(
        put_off, ahead, times.forward, times.again, times.backward, times.weights, times.source, times.target,
        times.inside, times.leaving, times.entering, missing, arrived, counts, free, network,
    )  # fmt: skip
    return float((free + times.summing).max())


@kernel  # type: ignore[untyped-decorator]
def _play(
    put_off: bool, ahead: I64, forward: F64, recompute: F64, backward: F64, weights: F64,
    source: I64, target: I64, inside: F64, leaving: F64, entering: F64,
    missing: I64, arrived: F64, counts: I64, free: F64, network: F64,
) -> None:  # fmt: skip
    """Run all passes, always the one that ends first.

    Args:
        put_off: gradients of weights wait as in ZB-H1; otherwise they belong to the backward pass.
        ahead: (S,) see `in_flight`.
        missing: (2, S, M) transfers that each pass waits for, forward and backward.
        arrived: (2, S, M) when the last of those that have come came.
        counts: (3, S) passes that were run: forward, backward, gradients of weights.
        free: (S,) when each stage is free again.
        network: (2, H) when each host can send and receive again.
    """
    stages, count = arrived.shape[1], arrived.shape[2]
    for _ in range(2 * stages * count):
        stage, first, is_forward = -1, np.inf, False
        for s in range(stages):
            started, ended = counts[0, s], counts[1, s]
            while put_off and counts[2, s] < ended and (ended - counts[2, s] > s or ended == count):
                free[s] += weights[s]
                counts[2, s] += 1
            if started < count and started - ended < ahead[s]:
                if missing[0, s, started] == 0:
                    finish = max(free[s], arrived[0, s, started]) + forward[s]
                    if finish < first:
                        stage, first, is_forward = s, finish, True
            elif ended < count and missing[1, s, ended] == 0:
                finish = max(free[s] + recompute[s], arrived[1, s, ended]) + backward[s]
                if not put_off:
                    finish += weights[s]
                if finish < first:
                    stage, first, is_forward = s, finish, False
        free[stage] = first
        way = 0 if is_forward else 1
        number = counts[way, stage]
        counts[way, stage] += 1
        for pair in range(len(source)):
            if is_forward and source[pair] == stage:
                arrival = _send(first, inside[pair], leaving[pair], entering[pair], network[0], network[1])
                other = target[pair]
            elif not is_forward and target[pair] == stage:
                arrival = _send(first, inside[pair], entering[pair], leaving[pair], network[0], network[1])
                other = source[pair]
            else:
                continue
            missing[way, other, number] -= 1
            arrived[way, other, number] = max(arrived[way, other, number], arrival)
    if put_off:
        for s in range(stages):
            free[s] += weights[s] * (count - counts[2, s])


@inline_kernel  # type: ignore[untyped-decorator]
def _send(ready: float, inside: float, leaving: F64, entering: F64, sending: F64, receiving: F64) -> float:
    """Return when a transfer has arrived that is ready at a time, and keep the hosts busy."""
    arrived = ready + inside
    for h in range(len(leaving)):
        if leaving[h] > 0.0:
            sending[h] = max(sending[h], ready) + leaving[h]
            arrived = max(arrived, sending[h])
        if entering[h] > 0.0:
            receiving[h] = max(receiving[h], ready) + entering[h]
            arrived = max(arrived, receiving[h])
    return arrived

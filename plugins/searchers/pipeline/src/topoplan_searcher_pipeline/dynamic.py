"""The dynamic program: pipelines built from the last stage to the first, on every set of devices worth telling apart.

A cell holds the best end of a pipeline that begins at some cut with some devices taken, for a number of stages: the one
of the least seconds by `topoplan_searcher_pipeline.latency` (DAPPLE, section 4, splits stages off in the same way, from
the other end).  One row of cells, those of one number of stages, leads to the next one in one call of a kernel.

Latency does not decide alone how good an end is, so that cells are no proof of optimality.  Ends that cannot lead to
an iteration within `_SLACK` of the best one known are left out: what is left of the model keeps the devices that are
left busy for long enough.  That makes the cells few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.schedule import ScheduleKind
from topoplan_engine.kernels.jit import kernel
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.latency import all_forward, early_backward, outlasting
from topoplan_searcher_pipeline.machine import Moves, transfer_loads

__all__ = ["ORDERS", "Found", "Task", "pipelines"]

#: Orders of passes that are planned for.
ORDERS = (ScheduleKind.GPIPE, ScheduleKind.DEEP, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE)

#: How much slower than the best pipeline known one may be that is looked at.
_SLACK = 1.25
#: Pipelines of each number of stages, which take different numbers of devices of hosts; and how much slower all but
#: the first may be.
_WAYS, _NEARLY = 3, 1.1


class Task(NamedTuple):
    """What is planned for.

    Attributes:
        columns: the model.
        moves: the machine.
        micro_batches: of the batch.
        widest: the most devices that a stage may have: samples of a micro-batch.
        order: the order of passes, one of `ORDERS`.
        memory: bytes of a device.
        recompute: stages that do not fit may run their forward passes twice.
    """

    columns: Columns
    moves: Moves
    micro_batches: int
    widest: int
    order: ScheduleKind
    memory: float
    recompute: bool


class Found(NamedTuple):
    """A pipeline: seconds by the latency model, where stages start, and their devices on each host of the machine."""

    seconds: float
    cuts: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]


class _Row(NamedTuple):
    """(O, C) cells of one number of stages.

    Attributes:
        total: seconds of an iteration, all-reduces included.
        latency, around, tail, network: see `topoplan_searcher_pipeline.latency`.
        ahead, back: the slowest forward and backward pass or transfer of a micro-batch.
        move, end: the move of the first stage, and the cut behind it.
    """

    total: F64
    latency: F64
    around: F64
    tail: F64
    network: F64
    ahead: F64
    back: F64
    move: I32
    end: I32


def pipelines(task: Task, best: float, most_stages: int) -> Iterator[Found]:
    """Yield the best pipelines of each number of stages that has any within reach of ``best`` seconds.

    Args:
        task: what to plan for.
        best: seconds of some plan; infinite if none is known.
        most_stages: stop there.
    """
    columns, moves = task.columns, task.moves
    shape = (len(moves.used), columns.n_cuts)
    limit = np.array([best * _SLACK])
    rows = [_row(shape)]
    rows[0].total[0, -1] = 0.0
    for column in rows[0][1:7]:
        column[0, -1] = 0.0
    source = np.repeat(np.arange(shape[0]), np.diff(moves.ptr))
    row_of = np.searchsorted(columns.replicas, moves.size).astype(np.int32)  # moves have no other sizes
    for stages in range(1, most_stages + 1):
        following = _row(shape)
        _stage(
            stages, rows[-1], following, limit, _SLACK, row_of, *_arrays(columns), *_moves(moves),
            task.micro_batches, task.widest, ORDERS.index(task.order), task.memory, task.recompute,
            np.empty((2, len(moves.outside))),
        )  # fmt: skip
        rows.append(following)
        if not np.isfinite(following.total).any():
            break
        whole = following.total[:, 0]
        for place, occupancy in enumerate(np.argsort(whole, kind="stable")[:_WAYS].tolist()):
            worst = limit[0] if place == 0 else limit[0] / _SLACK * _NEARLY
            if np.isfinite(whole[occupancy]) and whole[occupancy] <= worst:
                yield _trace(rows, occupancy, source, moves)


def _row(shape: tuple[int, int]) -> _Row:
    values = np.full((7, *shape), np.inf)
    ends = np.full((2, *shape), -1, dtype=np.int32)
    return _Row(*values, *ends)


def _arrays(columns: Columns) -> tuple[F64 | I32 | I64, ...]:
    return (
        columns.forward, columns.backward, columns.weight_gradient, columns.kept, columns.activations, columns.unpriced,
        columns.gradients, columns.crossing, columns.before_ptr, columns.before,
    )  # fmt: skip


def _moves(moves: Moves) -> tuple[F64 | I32, ...]:
    return (
        moves.ptr, moves.size, moves.target, moves.before, moves.after, moves.allreduce, moves.used,
        moves.outside, moves.inside,
    )  # fmt: skip


def _trace(rows: list[_Row], occupancy: int, source: I64, moves: Moves) -> Found:
    """Follow the moves back from a whole pipeline; number hosts as the machine does."""
    seconds, cut = float(rows[-1].total[occupancy, 0]), 0
    steps: list[tuple[int, int]] = []
    for row in reversed(rows[1:]):
        move = int(row.move[occupancy, cut])
        steps.append((cut, move))
        occupancy, cut = int(source[move]), int(row.end[occupancy, cut])
    hosts, counts = moves.first, []
    for _, move in reversed(steps):
        real = np.zeros(len(hosts), dtype=np.int64)
        real[hosts] = moves.before[move]
        counts.append(tuple(real.tolist()))
        hosts = hosts[moves.renumbered[move]]
    return Found(seconds, tuple(cut for cut, _ in steps), tuple(counts[::-1]))


@kernel  # type: ignore[untyped-decorator]
def _stage(
    stages: int, finished: _Row, following: _Row, limit: F64, slack: float, row_of: I32,
    forward: F64, backward: F64, weight_gradient: F64, persistent: F64, activations: F64, unpriced: I32, gradients: F64,
    crossing: F64, before_ptr: I64, before: I32,
    ptr: I32, size: I32, target: I32, counts_before: I32, counts_after: I32, allreduce: F64, used: I32,
    outside: F64, inside: F64,
    micro_batches: int, widest: int, order: int, memory: float, recompute: bool, loads: F64,
) -> None:  # fmt: skip
    """Put one more stage before all ends of ``finished``; ``limit`` falls as whole pipelines are found."""
    in_flight = micro_batches if order == 0 else 2 * stages - 1 if order == 1 else stages
    in_flight_share = min(in_flight, micro_batches) / micro_batches
    devices = 0
    for occupancy in range(len(used)):
        devices = max(devices, used[occupancy])
    for occupancy in range(len(used)):
        for end in range(1, len(crossing)):
            if finished.total[occupancy, end] == np.inf:
                continue
            for move in range(ptr[occupancy], ptr[occupancy + 1]):
                if size[move] > widest:
                    continue
                row, to = row_of[move], target[move]
                unused = devices - used[to]
                transfer = network = 0.0
                if stages > 1:
                    transfer = transfer_loads(
                        counts_before[move], counts_after[finished.move[occupancy, end]], outside, inside, loads
                    )
                    for h in range(len(outside)):
                        transfer = max(transfer, loads[0, h], loads[1, h])
                        network += (loads[0, h] + loads[1, h]) / len(outside)
                    transfer *= crossing[end] / micro_batches
                    network *= crossing[end] / micro_batches
                network += finished.network[occupancy, end]
                # All-reduces of what is before a cut are left to do when the backward pass has come to it.
                rate = allreduce[move] if size[move] > 1 else 0.0
                after, undone = end, -np.inf
                for cut in range(before_ptr[end], before_ptr[end + 1]):
                    start = before[cut]
                    undone = max(undone, rate * gradients[after] - backward[row, start] / micro_batches)
                    after = start
                    if start and (
                        unused == 0 or forward[0, start] + backward[0, start] > limit[0] * min(unused, widest * 64)
                    ):
                        continue
                    ahead = forward[row, end] - forward[row, start]
                    back = backward[row, end] - backward[row, start]
                    if ahead + back > limit[0]:
                        break
                    if unpriced[row, end] != unpriced[row, start]:
                        continue
                    room = memory - (persistent[row, end] - persistent[row, start])
                    inner = activations[row, end] - activations[row, start]
                    if inner * in_flight_share > room:
                        if (
                            not recompute
                            or inner / micro_batches + crossing[start] / size[move] * in_flight_share > room
                        ):
                            continue
                        back += ahead
                    ahead, back = ahead / micro_batches, back / micro_batches
                    summing = undone - rate * gradients[start] + backward[row, start] / micro_batches
                    deferred = 0.0
                    if order == 3:
                        deferred = (weight_gradient[row, end] - weight_gradient[row, start]) / micro_batches
                        back -= deferred
                    around = ahead + back + 2.0 * transfer + finished.around[occupancy, end]
                    most_ahead = max(ahead, transfer, finished.ahead[occupancy, end])
                    most_back = max(back, transfer, finished.back[occupancy, end])
                    if order == 0:
                        latency = all_forward(most_ahead, most_back, micro_batches, around, network)
                    else:
                        latency = early_backward(
                            ahead, back, deferred, transfer, in_flight, micro_batches,
                            finished.latency[occupancy, end], finished.around[occupancy, end], network,
                        )  # fmt: skip
                    tail = outlasting(back, transfer, deferred + summing, finished.tail[occupancy, end])
                    total = latency + tail
                    if total > limit[0] or total >= following.total[to, start]:
                        continue
                    following.total[to, start] = total
                    following.latency[to, start] = latency
                    following.around[to, start] = around
                    following.tail[to, start] = tail
                    following.network[to, start] = network
                    following.ahead[to, start] = most_ahead
                    following.back[to, start] = most_back
                    following.move[to, start] = move
                    following.end[to, start] = end
                    if start == 0:
                        limit[0] = min(limit[0], total * slack)

"""The dynamic program: pipelines from the last stage to the first, on every set of devices worth telling apart.

A cell holds the best end of a pipeline that begins at some cut with some devices taken, for a number of stages: the one
of the least seconds by `topoplan_searcher_pipeline.latency` (DAPPLE, section 4, splits stages off in the same way, from
the other end).  One row of cells, those of one number of stages, leads to the next one in one call of a kernel.

Latency does not decide alone how good an end is, so that cells are no proof of optimality.  Ends that cannot lead to
an iteration within `SLACK` of the best one known are left out: the operators before them would keep the unused
devices busy for too long.  That makes the cells few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel, interrupted, kernel, raise_interrupt
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.latency import all_forward, early_backward, outlasting
from topoplan_searcher_pipeline.machine import MovePairs, Moves, transfer_loads
from topoplan_searcher_pipeline.stage_simulation import ORDERS
from topoplan_searcher_pipeline.whole import WholeOperators, rounded_share

__all__ = ["SLACK", "Ends", "PipelineEstimate", "Task", "ends_of"]

#: How much slower than the best known pipeline an end may be.
SLACK = 1.25
#: Relative difference that rounding may make.
_ROUNDING = 1e-9
#: Numbers of some orders, as kernels know them.
_GPIPE, _DEEP, _ZERO_BUBBLE = (ORDERS.index(order) for order in ("gpipe", "1f1b-deep", "zero-bubble"))


class Task(NamedTuple):
    """What is planned for.

    Attributes:
        columns: the model.
        moves: the machine.
        pairs: of its moves; prices that a task computes are there for the next one.
        micro_batches: of the batch.
        widest: the most devices that a stage may have: samples of a micro-batch.
        order: the order of passes, one of `ORDERS`.
        memory: bytes of a device.
        recompute: stages that do not fit may run their forward passes twice.
    """

    columns: Columns
    moves: Moves
    pairs: MovePairs
    micro_batches: int
    widest: int
    order: str
    memory: float
    recompute: bool


class PipelineEstimate(NamedTuple):
    """A pipeline: seconds by the latency model, where stages start, and their devices on each host of the machine."""

    seconds: float
    cuts: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]


class _Table(NamedTuple):
    """What the kernel writes: rows of cells, of which those of the values are used in turn.

    Attributes:
        values: (2, 7, O, C) the values of `_Row`; even numbers of stages have the first half.
        move, end: (S, O, C) of `_Row`, for each number of stages from 1 on.
        whole: (S, O) ``total`` of whole pipelines.
    """

    values: F64
    move: I32
    end: I32
    whole: F64

    @classmethod
    def empty(cls, stages: int, occupancies: int, cuts: int) -> _Table:
        """Return room for so many rows; the kernel fills it."""
        shape = (stages, occupancies, cuts)
        return cls(
            np.empty((2, 7, *shape[1:])),
            np.empty(shape, dtype=np.int32),
            np.empty(shape, dtype=np.int32),
            np.empty(shape[:2]),
        )


class _Row(NamedTuple):
    """(O, C) cells of one number of stages.

    Attributes:
        total: seconds of an iteration, all-reduces included; infinite for an empty cell.
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


class _Costs(NamedTuple):
    """The columns of `Columns` that the kernel reads.

    Attributes:
        backward_share: (R, C) ``backward`` of a micro-batch.
        seconds: (C,) forward and backward on one device.
        row: (D + 1,) of each number of devices of a stage: the row of so many replicas.
    """

    forward: F64
    backward: F64
    backward_share: F64
    seconds: F64
    weight_gradient: F64
    kept: F64
    activations: F64
    rise_before: F64
    rise_after: F64
    unpriced: I32
    gradients: F64
    crossing: F64
    returning: F64
    whole: WholeOperators
    before_ptr: I64
    before: I32
    row: I64

    @classmethod
    def of(cls, columns: Columns, micro_batches: int) -> _Costs:
        """Pick the columns."""
        derived = {
            "backward_share": columns.backward / micro_batches,
            "seconds": columns.forward[0] + columns.backward[0],
            "row": np.searchsorted(columns.replicas, np.arange(columns.replicas[-1] + 1)),
        }
        return cls(**derived, **{name: getattr(columns, name) for name in cls._fields if name not in derived})


class _Limits(NamedTuple):
    """Numbers of a `Task`, and of the whole search.

    Attributes:
        order: number in `ORDERS`.
        devices: of the cluster.
    """

    micro_batches: int
    widest: int
    order: int
    memory: float
    recompute: bool
    devices: int


class _Stage(NamedTuple):
    """A stage that is put before an end: what does not depend on the cut at which it starts.

    Attributes:
        number: stages of the pipeline, this one included.
        occupancy, end, move: of the end, the cut between both, and the move that places the stage.
        row: of its number of replicas in `_Costs`.
        transfer, returned: seconds of a micro-batch to the next stage, and of its gradients back.
        network: see `topoplan_searcher_pipeline.latency`, of the whole pipeline.
        rate: seconds to sum a byte of gradients.
        in_flight: micro-batches that it has begun and not done at a time.
    """

    number: int
    occupancy: int
    end: int
    move: int
    row: int
    transfer: float
    returned: float
    network: float
    rate: float
    in_flight: int


class _Cell(NamedTuple):
    """The values of one cell of a `_Row`."""

    total: float
    latency: float
    around: float
    tail: float
    network: float
    ahead: float
    back: float


class Ends(NamedTuple):
    """The whole pipelines of a task, which `follow` finds in the rows of cells.

    Attributes:
        seconds: of each number of stages, those of the best pipelines, ascending; infinite where there are fewer.
        occupancies: (S, P) the last cell of each of them.
        table: rows of cells.
        moves: of the task.
    """

    seconds: list[list[float]]
    occupancies: I64
    table: _Table
    moves: Moves

    def follow(self, indices: Sequence[tuple[int, int]]) -> list[PipelineEstimate]:
        """Return some pipelines; ``indices`` has their number of stages, from 0, and rank."""
        if not indices:
            return []
        rows = np.array([row for row, _ in indices])
        ends = np.array([self.occupancies[index] for index in indices])
        cuts = np.empty((len(rows), int(rows.max()) + 1), dtype=np.int64)
        counts = np.zeros((*cuts.shape, len(self.moves.first)), dtype=np.int64)
        hosts = np.empty((2, len(self.moves.first)), dtype=np.int64)
        source = np.repeat(np.arange(len(self.moves.used)), np.diff(self.moves.ptr))
        _follow_all(self.table.move, self.table.end, rows, ends, source, self.moves, cuts, counts, hosts)
        return [
            PipelineEstimate(self.seconds[row][rank], tuple(starts[: row + 1]), tuple(map(tuple, devices[: row + 1])))
            for (row, rank), starts, devices in zip(indices, cuts.tolist(), counts.tolist(), strict=True)
        ]


def ends_of(task: Task, limit: float, most_stages: int, number: int) -> Ends:
    """Run the dynamic program.

    Args:
        task: what to plan for.
        limit: seconds that no end may exceed.
        most_stages: stop there.
        number: of pipelines of each number of stages to return.
    """
    moves, table = task.moves, _Table.empty(most_stages, len(task.moves.used), task.columns.n_cuts)
    order, devices = ORDERS.index(task.order), int(moves.used.max())
    limits = _Limits(task.micro_batches, task.widest, order, task.memory, task.recompute, devices)
    costs = _Costs.of(task.columns, task.micro_batches)
    loads = np.empty((2, len(moves.outside)))
    n_rows = _add_stages(table, np.array([limit]), costs, moves, task.pairs, limits, loads)
    if n_rows < 0:
        raise_interrupt()
    best = np.argsort(table.whole[:n_rows], axis=1, kind="stable")[:, :number]
    return Ends(np.take_along_axis(table.whole[:n_rows], best, axis=1).tolist(), best, table, moves)


@kernel  # type: ignore[untyped-decorator]
def _follow_all(
    steps: I32,
    ends: I32,
    rows: I64,
    occupancies: I64,
    source: I64,
    moves: Moves,
    cuts: I64,
    counts: I64,
    hosts: I64,
) -> None:
    """Follow the moves back from n whole pipelines; see `_follow`, which has one of each column and row."""
    for number in range(len(rows)):
        _follow(steps, ends, rows[number], occupancies[number], source, moves, cuts[number], counts[number], hosts)


@inline_kernel  # type: ignore[untyped-decorator]
def _follow(
    steps: I32,
    ends: I32,
    row: int,
    occupancy: int,
    source: I64,
    moves: Moves,
    cuts: I64,
    counts: I64,
    hosts: I64,
) -> None:
    """Write the cuts of a pipeline, and its devices in the numbering of the machine.

    Args:
        steps, ends: ``move`` and ``end`` of a `_Table`.
        row, occupancy: of the whole pipeline.
        source: (E,) the occupancy from which each move leads.
        moves: all of them.
        cuts, counts: (S,), (S, H) output, of which the first ``row`` + 1 are written; counts are zero.
        hosts: (2, H) room.
    """
    first, cut = moves.first, 0
    for step in range(row + 1):
        cuts[step] = cut
        counts[step, 0] = move = steps[row - step, occupancy, cut]
        occupancy, cut = source[move], ends[row - step, occupancy, cut]
    for h in range(len(first)):
        hosts[0, h] = first[h]
    for step in range(row, -1, -1):
        move = counts[step, 0]
        now, ahead = hosts[(row - step) % 2], hosts[(row - step + 1) % 2]
        for h in range(len(first)):
            counts[step, now[h]] = moves.before[move, h]
            ahead[h] = now[moves.renumbered[move, h]]


@kernel  # type: ignore[untyped-decorator]
def _add_stages(
    table: _Table,
    limit: F64,
    costs: _Costs,
    moves: Moves,
    pairs: MovePairs,
    limits: _Limits,
    loads: F64,
) -> int:
    """Fill the rows of a table, from the last stage to the first; return how many have a cell, -1 if interrupted.

    Args:
        table: output.
        limit: (1,) seconds that no end may exceed; falls as whole pipelines are completed.
        costs, moves, pairs, limits: what is planned for.
        loads: (2, H) room for `transfer_loads`.
    """
    table.values[0, 0] = np.inf
    table.values[0, :, 0, -1] = 0.0
    most = len(table.whole)
    for stages in range(1, most + 1):
        if interrupted():
            return -1
        now, before = table.values[stages % 2], table.values[(stages - 1) % 2]
        now[0] = np.inf
        last = max(stages - 2, 0)  # of one stage there is no earlier move
        shorter = _row(before, table.move[last], table.end[last])
        longer = _row(now, table.move[stages - 1], table.end[stages - 1])
        written = _add_stage(stages, shorter, longer, limit, costs, moves, pairs, limits, loads)
        for occupancy in range(len(moves.used)):
            table.whole[stages - 1, occupancy] = longer.total[occupancy, 0]
        if written == 0:
            return stages - 1
    return most


@inline_kernel  # type: ignore[untyped-decorator]
def _row(values: F64, move: I32, end: I32) -> _Row:
    """Return the columns of a row."""
    return _Row(values[0], values[1], values[2], values[3], values[4], values[5], values[6], move, end)


@inline_kernel  # type: ignore[untyped-decorator]
def _add_stage(
    stages: int,
    shorter: _Row,
    longer: _Row,
    limit: F64,
    costs: _Costs,
    moves: Moves,
    pairs: MovePairs,
    limits: _Limits,
    loads: F64,
) -> int:
    """Put one more stage before all ends of ``shorter``; return how many cells were written, rewritten ones too.

    Args:
        stages: of the pipelines in ``longer``.
        shorter, longer: cells that are complete, and empty ones that are written.
        limit, costs, moves, pairs, limits, loads: see `_add_stages`.
    """
    written = 0
    in_flight = limits.micro_batches if limits.order == _GPIPE else stages
    if limits.order == _DEEP:
        in_flight = 2 * stages - 1
    for occupancy in range(len(moves.used)):
        for end in range(1, len(costs.crossing)):
            if shorter.total[occupancy, end] == np.inf:
                continue
            for move in range(moves.ptr[occupancy], moves.ptr[occupancy + 1]):
                if moves.size[move] > limits.widest:
                    continue
                transfer = returned = network = 0.0
                if stages > 1:
                    transfer, network = _transfer(move, shorter.move[occupancy, end], moves, pairs, loads)
                    nbytes = costs.crossing[end] / limits.micro_batches
                    back = costs.returning[end] / limits.micro_batches
                    returned = transfer * back
                    transfer *= nbytes
                    network *= 0.5 * (nbytes + back)
                network += shorter.network[occupancy, end]
                rate = moves.allreduce[move] if moves.size[move] > 1 else 0.0
                row = costs.row[moves.size[move]]
                stage = _Stage(stages, occupancy, end, move, row, transfer, returned, network, rate, in_flight)
                written += _write_cells(stage, shorter, longer, limit, costs, moves, limits)
    return written


@inline_kernel  # type: ignore[untyped-decorator]
def _transfer(move: int, next_move: int, moves: Moves, pairs: MovePairs, loads: F64) -> tuple[float, float]:
    """Seconds of a byte between the stages of two moves, and those that interfaces are busy with it, on average."""
    pair = pairs.ptr[next_move] + move - moves.ptr[moves.target[next_move]]
    if not np.isnan(pairs.seconds[pair]):
        return pairs.seconds[pair], pairs.network[pair]
    hosts = len(moves.outside)
    seconds = transfer_loads(moves.before[move], moves.after[next_move], moves.outside, moves.inside, loads)
    network = 0.0
    for h in range(hosts):
        seconds = max(seconds, loads[0, h], loads[1, h])
        network += (loads[0, h] + loads[1, h]) / hosts
    pairs.seconds[pair], pairs.network[pair] = seconds, network
    return seconds, network


@inline_kernel  # type: ignore[untyped-decorator]
def _write_cells(
    stage: _Stage, shorter: _Row, longer: _Row, limit: F64, costs: _Costs, moves: Moves, limits: _Limits
) -> int:
    """Start a stage at every cut at which it may start, and write the cells that this makes better; count them."""
    written = 0
    # Of what is read out of an array numba looks whether it is a negative index, unless it is unsigned.
    row, end, micro_batches = np.uint32(stage.row), stage.end, limits.micro_batches
    target = np.uint32(moves.target[stage.move])
    unused = limits.devices - moves.used[target]
    share, at_end = 1.0 / micro_batches, (stage.occupancy, end)
    shorter_tail = shorter.tail[at_end] - stage.returned
    most_sent = max(stage.transfer, stage.returned, stage.network)
    shorter_latency = (stage.transfer + stage.returned) + max(
        shorter.latency[at_end], shorter.around[at_end] + (micro_batches - 1) * most_sent
    )
    # The operators before the stage keep all unused devices busy for at least these seconds.
    most = limit[0] * min(unused, limits.widest * 64)
    # All-reduces of what is before a cut are left to do when the backward pass has come to it.
    after, undone = np.uint32(end), -np.inf
    first, last = costs.before_ptr[end], costs.before_ptr[end + 1]
    while first < last - 1:
        start = np.uint32(costs.before[first])
        if start == 0 or (unused != 0 and costs.seconds[start] <= most):
            break
        undone = max(undone, stage.rate * costs.gradients[after] - costs.backward_share[row, start])
        after = start
        first += 1
    for k in range(first, last):
        start = np.uint32(costs.before[k])
        undone = max(undone, stage.rate * costs.gradients[after] - costs.backward_share[row, start])
        after = start
        ahead = costs.forward[row, end] - costs.forward[row, start]
        back = costs.backward[row, end] - costs.backward[row, start]
        # The cuts that follow are further away from the end, and the stage longer.
        if ahead + back > limit[0]:
            break
        if len(costs.whole.op) > 0:
            ahead, back = _with_whole(ahead, back, start, end, moves.size[stage.move], costs.whole)
        summing = undone - stage.rate * costs.gradients[start] + costs.backward_share[row, start]
        # Without divisions, a lower bound on what `_cell` returns; the margin is for rounding.
        tail = max(0.0, summing, shorter_tail - (ahead + back) * share)
        bound = (max(ahead + back, shorter_latency + ahead * share) + tail) * (1.0 - _ROUNDING)
        if bound >= limit[0] or bound >= longer.total[target, start]:
            continue
        if costs.unpriced[row, end] != costs.unpriced[row, start]:
            continue
        if _exceeds_memory(stage, start, False, costs, moves, limits):
            if not limits.recompute or _exceeds_memory(stage, start, True, costs, moves, limits):
                continue
            back += ahead
        cell = _cell(stage, start, ahead / micro_batches, back / micro_batches, summing, shorter, costs, limits)
        if cell.total > limit[0] or cell.total >= longer.total[target, start]:
            continue
        _write_cell(longer, target, start, cell, stage)
        written += 1
        if start == 0:
            limit[0] = min(limit[0], cell.total * SLACK)
            most = limit[0] * min(unused, limits.widest * 64)
    return written


@inline_kernel  # type: ignore[untyped-decorator]
def _with_whole(
    ahead: float, back: float, start: int, end: int, devices: int, whole: WholeOperators
) -> tuple[float, float]:
    """Return the seconds of the passes of a stage where operators that are not cut have no equal shares."""
    count = whole.number[end] - whole.number[start]
    forward, backward = whole.forward[end] - whole.forward[start], whole.backward[end] - whole.backward[start]
    return ahead + rounded_share(count, forward, devices), back + rounded_share(count, backward, devices)


@inline_kernel  # type: ignore[untyped-decorator]
def _write_cell(row: _Row, occupancy: int, start: int, cell: _Cell, stage: _Stage) -> None:
    """Write a cell, and the stage and cut that lead to it."""
    row.total[occupancy, start] = cell.total
    row.latency[occupancy, start] = cell.latency
    row.around[occupancy, start] = cell.around
    row.tail[occupancy, start] = cell.tail
    row.network[occupancy, start] = cell.network
    row.ahead[occupancy, start] = cell.ahead
    row.back[occupancy, start] = cell.back
    row.move[occupancy, start] = stage.move
    row.end[occupancy, start] = stage.end


@inline_kernel  # type: ignore[untyped-decorator]
def _exceeds_memory(stage: _Stage, start: int, recompute: bool, costs: _Costs, moves: Moves, limits: _Limits) -> bool:
    """Whether a stage from ``start`` on needs more memory than a device has, with recomputation or without."""
    row, end = stage.row, stage.end
    share = min(stage.in_flight, limits.micro_batches) / limits.micro_batches
    room = limits.memory - (costs.kept[row, end] - costs.kept[row, start])
    room -= min(costs.rise_before[row, end], costs.rise_after[row, start]) / limits.micro_batches
    activations = costs.activations[row, end] - costs.activations[row, start]
    if not recompute:
        return bool(activations * share > room)
    return bool(activations / limits.micro_batches + costs.crossing[start] / moves.size[stage.move] * share > room)


@inline_kernel  # type: ignore[untyped-decorator]
def _cell(
    stage: _Stage,
    start: int,
    ahead: float,
    back: float,
    summing: float,
    shorter: _Row,
    costs: _Costs,
    limits: _Limits,
) -> _Cell:
    """Return the pipeline of a stage and the end behind it.

    Args:
        stage, start: the stage, and the cut at which it starts.
        ahead, back: seconds of its passes of one micro-batch.
        summing: seconds of all-reduces that are left to do after the last backward pass.
        shorter, costs, limits: see `_add_stages`.
    """
    row, end, at_end = stage.row, stage.end, (stage.occupancy, stage.end)
    micro_batches, transfer, returned = limits.micro_batches, stage.transfer, stage.returned
    deferred = 0.0
    if limits.order == _ZERO_BUBBLE:
        deferred = (costs.weight_gradient[row, end] - costs.weight_gradient[row, start]) / micro_batches
        back -= deferred
    around = ahead + back + (transfer + returned) + shorter.around[at_end]
    most_ahead = max(ahead, transfer, shorter.ahead[at_end])
    most_back = max(back, returned, shorter.back[at_end])
    if limits.order == _GPIPE:
        latency = all_forward(most_ahead, most_back, micro_batches, around, stage.network)
    else:
        latency = early_backward(
            ahead,
            back,
            deferred,
            transfer,
            returned,
            stage.in_flight,
            micro_batches,
            shorter.latency[at_end],
            shorter.around[at_end],
            stage.network,
        )
    tail = outlasting(back, returned, deferred + summing, shorter.tail[at_end])
    return _Cell(latency + tail, latency, around, tail, stage.network, most_ahead, most_back)

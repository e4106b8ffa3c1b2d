"""Compiled estimates: what the passes of units take, and the iteration and the memory of many plans of one pass order.

    tasks of a unit on links ─► `run_tasks`: seconds of each kind of pass
    units of each chunk ─► seconds and bytes of its passes ─► the order of passes, run with them ─► `price_plans`

Micro-batches beyond those of the order only repeat what a pipeline does in between.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.pass_order import Pass
from topoplan.model.taskgraph import Collective
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.lowering.pass_peaks import WHOLE, most_of_passes
from topoplan_searcher_stated.balancing import balance

__all__ = ["PRICES", "RAN", "OrderColumns", "PlanRows", "Room", "price_plans", "room_of", "run_tasks"]

#: Columns of what a pass of a unit takes, in seconds: of the longest chain of its tasks, where exchanges of weights and
#: their gradients take no time; of what comes first and waits for nothing from other stages, operators that run again;
#: of computing; of exchanges of weights and their gradients, one after the other; of those that gather weights; and
#: until the last of these ends.
_PATH, _AHEAD, _COMPUTING, _WEIGHTS, _GATHERS, _SUMMED = range(6)
RAN = 6

#: Columns of a plan's price: seconds of the iteration; bytes of the fullest device; those that stay, of the device that
#: has most of them.
PRICES = 3

_FORWARD, _BACKWARD, _LAST = int(Pass.FORWARD), int(Pass.BACKWARD), int(Pass.WEIGHTS)
#: Places of the kinds of a unit's tasks in columns; see `topoplan_searcher_stated.unit_costs.KINDS`.
_F, _B, _W, _SUMS, _END = range(5)
_ALL_GATHER = int(Collective.ALL_GATHER)
_BY_BYTES = 2


class OrderColumns(NamedTuple):
    """A pass order with n passes on R ranks and C chunks.

    Attributes:
        rank_ptr: (R + 1,) passes of each rank.
        kind, chunk: (n,) of each pass.
        whole: (n,) whether it is a backward pass that makes the gradients of weights, too.
        need: (n,) the pass of another chunk that it waits for; -1 for none.
        border: (n,) the border of chunks in between; -1 within a chunk, C - 1 more on the way back.
        in_turn: (n,) all passes, each behind what it needs.
        rank_of: (C,) rank of each chunk.
        part: (C,) which part of the model each chunk has; several copies of the model have the same parts.
        hop: (C,) way to the next chunk: 0 for the same rank, 1 for the next one, 2 for the one before.
    """

    rank_ptr: I64
    kind: I64
    chunk: I64
    whole: np.ndarray
    need: I64
    border: I64
    in_turn: I64
    rank_of: I64
    part: I64
    hop: I64


class PlanRows(NamedTuple):
    """N plans of one pass order, whose units have the numbers 0 to U - 1.

    Attributes:
        counts: (N, parts) layers of each part of the model; divided by the kernel where ``balanced``.
        balanced: (N,) 0 for ``counts`` as they are, 1 for layers divided so that the slowest chunk takes the least
            time, 2 for those such that the most bytes that stay on a chunk are least.
        micro_batches: (N,) of the batch, beyond those of the order.
        zero: (N,) level of ZeRO.
        ran: (N, U, kinds, RAN) seconds of units.
        sent: (N, U) bytes that each device sends to the next unit.
        hop: (N, 2, R) seconds per byte from each rank to the next one, and to the one before.
        stays: (N, U) bytes that stay.
        gathered, change, rise: (N, U), (N, U, 5) and (N, U, 4) as in `UnitColumns`.
        placeholders: (N, U, shapes) likewise.
        passed: (N, 3, U) likewise.
        border: (N, 4, U) likewise.
        ahead, layer, outside, accumulated: (N, U) likewise.
        fetched: (N, 2, U) likewise.
    """

    counts: I64
    balanced: I64
    micro_batches: I64
    zero: I64
    ran: F64
    sent: F64
    hop: F64
    stays: F64
    gathered: F64
    placeholders: F64
    change: F64
    rise: F64
    passed: F64
    border: F64
    ahead: F64
    layer: F64
    outside: F64
    fetched: F64
    accumulated: F64


class Room(NamedTuple):
    """What `price_plans` writes into; its contents do not matter before.

    Attributes:
        end: (n,) of passes.
        passes: (4, C) seconds; change: (5, C) bytes.
        between: (2, 2 * C) over each border, forward and back: seconds of sending, and by how much earlier the pass
            behind it begins, with what waits for nothing.
        links: (2, 2, R) of the way to the next rank and to the one before: when it is free again, and seconds of
            sending of all passes.
        chunks: (9, C) ahead, end, last pass, stays, rise, gathered, accumulated of each chunk; what
            `most_of_passes` works in.
        bounds: (2, C) first layer of each chunk, and the first behind it.
        layers: (3, L + 1) and cuts: (C, L + 1) for `balance`.
    """

    end: F64
    passes: F64
    change: F64
    between: F64
    links: F64
    chunks: F64
    bounds: I64
    layers: F64
    cuts: F64


def room_of(passes: int, chunks: int, ranks: int, places: int) -> Room:
    """Return room for orders of so many passes, and models of so many places."""
    return Room(
        end=np.empty(passes),
        passes=np.empty((4, chunks)),
        change=np.empty((5, chunks)),
        between=np.empty((2, 2 * chunks)),
        links=np.empty((2, 2, ranks)),
        chunks=np.empty((9, chunks)),
        bounds=np.empty((2, chunks), dtype=np.int64),
        layers=np.empty((3, places + 1)),
        cuts=np.empty((chunks, places + 1)),
    )


_AHEAD_ROW, _END_ROW, _LAST_ROW, _STAYS, _RISE, _GATHERED, _ACCUMULATED, _IN_PEAK = range(8)


@kernel  # type: ignore[untyped-decorator]
def run_tasks(
    durations: F64,
    computing: F64,
    collective: I64,
    parameter: np.ndarray,
    before_ptr: I64,
    before: I64,
    first: I64,
    leading: I64,
    room: F64,
    ran: F64,
) -> None:
    """Fill ``ran`` (R, kinds of units, RAN), given (R, T) seconds of all tasks and of those that compute."""
    for row in range(len(durations)):
        seconds = durations[row]
        for number in range(len(first) - 1):
            start_row, end = first[number], first[number + 1]
            weights = gathers = computed = summed = 0.0
            exchanges = 0
            for task in range(start_row, end):
                computed += computing[row, task]
                if parameter[task]:
                    exchanges += 1
                    weights += seconds[task]
                    if collective[task] == _ALL_GATHER:
                        gathers += seconds[task]
            if exchanges:
                for task in range(start_row, end):
                    start = 0.0
                    for edge in range(before_ptr[task], before_ptr[task + 1]):
                        start = max(start, room[before[edge]])
                    room[task] = start + seconds[task]
                    if parameter[task]:
                        summed = max(summed, room[task])
            path = ahead = 0.0
            for task in range(start_row, end):
                start = 0.0
                for edge in range(before_ptr[task], before_ptr[task + 1]):
                    start = max(start, room[before[edge]])
                room[task] = start if parameter[task] else start + seconds[task]
                path = max(path, room[task])
                if task < start_row + leading[number]:
                    ahead = max(ahead, room[task])
            result = ran[row, number]
            result[_PATH], result[_AHEAD], result[_COMPUTING] = path, ahead, computed
            result[_WEIGHTS], result[_GATHERS], result[_SUMMED] = weights, gathers, summed


@inline_kernel
def _with_gathers(ran: F64, kind: int, units: I64, low: int, high: int, back: bool) -> float:
    """Return the seconds of a pass of units whose weights are gathered for it, in the order of the pass.

    The weights of two units are there at a time, and sums of gradients share their communicator.
    """
    free = computed = before_last = last = 0.0
    for place in range(low, high):
        now = ran[units[low + high - 1 - place if back else place], kind]
        free = max(free, before_last) + now[_GATHERS]
        gathered = free
        if place > low:  # sums of the unit before, which the gather went ahead of
            before = ran[units[low + high - place if back else place - 1], kind]
            free = max(free, last) + before[_WEIGHTS] - before[_GATHERS]
        computed = max(computed, gathered) + now[_PATH]
        before_last, last = last, computed
    return max(computed, free)


@inline_kernel
def _pass_seconds(ran: F64, kind: int, zero: int, units: I64, low: int, high: int) -> float:
    """Return the seconds of one kind of pass of units, one after the other."""
    if zero == 3:
        gathering: float = _with_gathers(ran, kind, units, low, high, kind != _F)
        return gathering
    path = weights = 0.0
    for place in range(low, high):
        path += ran[units[place], kind, _PATH]
        weights += ran[units[place], kind, _WEIGHTS]
    return max(path, weights) if zero == 2 else path  # sums of gradients run beside them, micro-batch by micro-batch


@inline_kernel
def _share_border(plans: PlanRows, plan: int, before: int, unit: int, splits: bool, chunk: int, room: Room) -> float:
    """Count what a unit reads of the one before it in its chunk once, as a stage does.

    Of an operator that runs again it is kept until its backward pass, whoever reads it; any other operator keeps it for
    its own.  Returned is by how much a backward pass of both changes otherwise than those of the units do.
    """
    plain, repeated, late = plans.border[plan, 0, unit], plans.border[plan, 1, unit], plans.border[plan, 2, unit]
    more = plain if plans.border[plan, 3, before] > 0 else -repeated
    moved = -late if splits else 0.0  # to the pass of the gradients of weights
    room.change[_FORWARD, chunk] += more
    room.change[WHOLE, chunk] -= more
    room.change[_BACKWARD, chunk] -= more + moved
    room.change[_LAST, chunk] += moved
    changed: float = -more - moved
    return changed


@inline_kernel
def _unit_rise(plans: PlanRows, plan: int, place: int, low: int, high: int, units: I64) -> float:
    """Return the most bytes of a unit's backward pass, with what its neighbours in the chunk gather and sum meanwhile.

    FSDP2 sums the gradients of the layer behind in fp32; behind the last layer, that one stays.
    """
    unit = units[place]
    first = last = stays = 0.0
    if place > low:
        before = units[place - 1]
        first = plans.ahead[plan, before]
        if plans.layer[plan, unit] == 0:
            stays = plans.layer[plan, before]
    if place < high - 1:
        last = 2 * plans.layer[plan, units[place + 1]]
    most = 0.0
    for group in range(4):
        if plans.rise[plan, unit, group] >= 0:
            more = max(first, stays) if group & 1 else stays
            most = max(most, plans.rise[plan, unit, group] + more + (last if group & 2 else 0.0))
    return most


@inline_kernel
def _gather_pool(fetched: F64, low: int, high: int, units: I64) -> float:
    """Return the bytes that FSDP2 holds of two units of weights that are gathered one after the other."""
    before = most = 0.0
    for place in range(low, high):
        before += fetched[0, units[place]]
    most = before
    for place in range(low, high):
        layer = fetched[1, units[place]]
        if layer > 0:
            most = max(most, before + layer)
            before = layer
    return most


@inline_kernel
def _hand_on(order: OrderColumns, plans: PlanRows, plan: int, chunk: int, first: int, last: int, room: Room) -> None:
    """Count what a chunk sent to another rank until its backward pass, and not what it received a second time.

    Of what runs again, in pipelines that have a tensor for each message.
    """
    passed, border, more = plans.passed[plan], plans.border[plan], 0.0
    if order.part[chunk] > 0 and order.hop[chunk - 1] and passed[0, first] > 0:
        more -= border[1, first]
    if order.part[chunk] < plans.counts.shape[1] - 1 and order.hop[chunk] and border[3, last] > 0:
        more += passed[1, last]
    room.change[_FORWARD, chunk] += more
    room.change[WHOLE, chunk] -= more
    room.change[_BACKWARD, chunk] -= more


@inline_kernel
def _price_chunks(
    order: OrderColumns, plans: PlanRows, plan: int, splits: bool, units: I64, n_layers: int, room: Room
) -> None:
    """Fill in what the units of each chunk take and keep together."""
    counts, ran, zero = plans.counts[plan], plans.ran[plan], plans.zero[plan]
    change, gathered, outside = plans.change[plan], plans.gathered[plan], plans.outside[plan]
    fetched, accumulated = plans.fetched[plan], plans.accumulated[plan]
    for chunk in range(len(order.rank_of)):
        low = 0
        for before in range(order.part[chunk]):
            low += counts[before]
        high = low + counts[order.part[chunk]]
        if order.part[chunk] == len(counts) - 1:
            high = len(units)
        room.bounds[0, chunk], room.bounds[1, chunk] = low, high
        room.passes[_FORWARD, chunk] = _pass_seconds(ran, _F, zero, units, low, high)
        room.passes[1, chunk] = 0.0
        room.passes[_BACKWARD, chunk] = _pass_seconds(ran, _B, zero, units, low, high)
        room.passes[_LAST, chunk] = _pass_seconds(ran, _W, zero, units, low, high)
        room.chunks[_AHEAD_ROW, chunk] = ran[units[high - 1], _B, _AHEAD]
        end = stays = together = 0.0
        for kind in range(5):
            room.change[kind, chunk] = 0.0
        bytes_left = highest = tables = gradients = border = summed = 0.0
        for place in range(low, high):
            tables += outside[units[place]]
        for place in range(high - 1, low - 1, -1):
            unit = units[place]
            for kind in (_SUMS, _END):
                end += ran[unit, kind, _COMPUTING] + ran[unit, kind, _WEIGHTS]
            stays += plans.stays[plan, unit]
            beside = tables - outside[unit] + gradients  # tables of other units, and gradients of those behind
            highest = max(highest, bytes_left + beside + _unit_rise(plans, plan, place, low, high, units))
            gradients += fetched[0, unit]
            summed += accumulated[unit]
            bytes_left += change[unit, _BACKWARD] + border
            together = max(together, gathered[unit] + tables - outside[unit])
            if place > low:
                if fetched[1, unit] == 0:  # of two layers that follow each other both are there
                    together = max(together, 2 * min(gathered[unit], gathered[units[place - 1]]))
                border = _share_border(plans, plan, units[place - 1], unit, splits, chunk, room)
            for kind in range(5):
                room.change[kind, chunk] += change[unit, kind]
        _hand_on(order, plans, plan, chunk, units[low], units[high - 1], room)
        room.chunks[_END_ROW, chunk] = end
        room.chunks[_STAYS, chunk] = stays + _gather_pool(fetched, low, high, units)
        room.chunks[_RISE, chunk], room.chunks[_GATHERED, chunk] = highest, together
        in_pipeline = len(order.rank_of) > 1 or (len(order.kind) > 1 and order.kind[1] == _FORWARD)
        room.chunks[_ACCUMULATED, chunk] = summed if in_pipeline else 0.0


@inline_kernel
def _chunk_buffers(order: OrderColumns, plans: PlanRows, plan: int, chunk: int, units: I64, room: Room) -> float:
    """Return the bytes for a micro-batch that a chunk holds throughout for what stages send each other."""
    passed, low, high = plans.passed[plan], room.bounds[0, chunk], room.bounds[1, chunk]
    total = 0.0
    is_staged = False
    if order.part[chunk] > 0 and order.hop[chunk - 1]:
        total += passed[0, units[low]]
        is_staged = True
    if order.part[chunk] < plans.counts.shape[1] - 1 and order.hop[chunk]:
        total += passed[1, units[high - 1]]
        is_staged = True
    if is_staged:
        for place in range(low, high):
            total += passed[2, units[place]]
    return total


@inline_kernel
def _price_borders(order: OrderColumns, plans: PlanRows, plan: int, units: I64, room: Room) -> None:
    """Fill in the seconds from each chunk to the next one, and back."""
    n_chunks = len(order.rank_of)
    for chunk in range(n_chunks - 1):
        seconds = 0.0
        if order.hop[chunk]:
            per_byte = plans.hop[plan, order.hop[chunk] - 1, order.rank_of[chunk]]
            seconds = plans.sent[plan, units[room.bounds[1, chunk] - 1]] * per_byte
        room.between[0, chunk] = room.between[0, n_chunks - 1 + chunk] = seconds
        room.between[1, chunk], room.between[1, n_chunks - 1 + chunk] = 0.0, room.chunks[_AHEAD_ROW, chunk]


@inline_kernel
def _arrival(order: OrderColumns, border: int, sent: float, room: Room) -> float:
    """Return when what is sent over a border arrives: what was sent the same way before comes first."""
    seconds, last = room.between[0, border], len(order.rank_of) - 1
    chunk, is_back = border % last, border >= last
    if seconds == 0.0:
        return sent
    way, rank = order.hop[chunk] - 1, order.rank_of[chunk + is_back]
    if room.links.shape[2] == 2:
        way = 0  # the next rank is the one before
    elif is_back:
        way = 1 - way
    arrived: float = max(sent, room.links[0, way, rank]) + seconds
    room.links[0, way, rank] = arrived
    room.links[1, way, rank] += seconds
    return arrived


@inline_kernel
def _run_order(order: OrderColumns, room: Room) -> None:
    """Fill in when each pass ends, and when the last pass of each chunk does."""
    room.links[:] = 0.0
    for chunk in range(len(order.rank_of)):
        room.chunks[_LAST_ROW, chunk] = 0.0
    for number in range(len(order.in_turn)):
        row = order.in_turn[number]
        kind, chunk, need = order.kind[row], order.chunk[row], order.need[row]
        start = 0.0
        if need >= 0:
            start = room.end[need]
            if order.border[row] >= 0:
                start = _arrival(order, order.border[row], start, room) - room.between[1, order.border[row]]
        if row > order.rank_ptr[order.rank_of[chunk]]:
            start = max(start, room.end[row - 1])
        seconds = room.passes[kind, chunk]
        if order.whole[row]:
            seconds += room.passes[_LAST, chunk]
        room.end[row] = max(0.0, start) + seconds
        if order.whole[row] or kind == _LAST:
            room.chunks[_LAST_ROW, chunk] = max(room.chunks[_LAST_ROW, chunk], room.end[row])


@inline_kernel
def _rank_work(order: OrderColumns, rank: int, room: Room) -> float:
    """Return the seconds of all passes of a rank."""
    work = 0.0
    for row in range(order.rank_ptr[rank], order.rank_ptr[rank + 1]):
        work += room.passes[order.kind[row], order.chunk[row]]
        if order.whole[row]:
            work += room.passes[_LAST, order.chunk[row]]
    return work


@inline_kernel
def _rank_end(order: OrderColumns, rank: int, ran: F64, zero: int, last_kind: int, units: I64, room: Room) -> float:
    """Return when a rank has summed its gradients and updated its weights.

    Sums begin while the last pass of a chunk runs, as soon as there is a gradient, and follow each other.
    """
    free = after = 0.0
    ends, before, ended = room.chunks[_LAST_ROW], -1.0, -1
    while True:
        chunk = -1  # the chunk whose last pass ends next; of equal ones that with the smallest number
        for each in range(len(order.rank_of)):
            later = ends[each] > before or (ends[each] == before and each > ended)
            if order.rank_of[each] == rank and later and (chunk < 0 or ends[each] < ends[chunk]):
                chunk = each
        if chunk < 0:
            return free + after
        before, ended = ends[chunk], chunk
        after += room.chunks[_END_ROW, chunk]
        low, high = room.bounds[0, chunk], room.bounds[1, chunk]
        if zero < 2:
            start = ends[chunk]
            for place in range(low, high):
                start -= ran[units[place], last_kind, _PATH]
            for place in range(high - 1, low - 1, -1):
                part = ran[units[place], last_kind]
                free = max(start + part[_SUMMED], free + part[_WEIGHTS])
                start += part[_PATH]
        free = max(free, ends[chunk])


@inline_kernel
def _rank_bytes(order: OrderColumns, rank: int, room: Room) -> float:
    """Return the most bytes of activations, and of what comes and goes, of a rank."""
    first, end, chunks = order.rank_ptr[rank], order.rank_ptr[rank + 1], room.chunks
    most, _, _ = most_of_passes(
        order.kind,
        order.chunk,
        order.whole,
        first,
        end,
        room.change,
        chunks[_RISE],
        chunks[_GATHERED],
        chunks[_ACCUMULATED],
        chunks[_IN_PEAK:],
    )
    nbytes: float = most
    return nbytes


@inline_kernel
def _rank_stays(
    order: OrderColumns, plans: PlanRows, plan: int, rank: int, micro_batches: int, units: I64, room: Room
) -> float:
    """Return the bytes that stay on a rank, those of each shape of placeholders once."""
    stays = 0.0
    for chunk in range(len(order.rank_of)):
        if order.rank_of[chunk] == rank:
            stays += room.chunks[_STAYS, chunk]
            stays += _chunk_buffers(order, plans, plan, chunk, units, room) * (
                micro_batches + plans.micro_batches[plan]
            )
    for shape in range(plans.placeholders.shape[2]):
        most = 0.0
        for chunk in range(len(order.rank_of)):
            if order.rank_of[chunk] == rank:
                for place in range(room.bounds[0, chunk], room.bounds[1, chunk]):
                    most = max(most, plans.placeholders[plan, units[place], shape])
        stays += most
    return stays


@inline_kernel
def _balance_layers(order: OrderColumns, plans: PlanRows, plan: int, units: I64, n_layers: int, room: Room) -> None:
    """Divide the layers of a plan among its parts by their seconds, or by their bytes; see `PlanRows.balanced`."""
    room.layers[:] = 0.0
    for layer in range(len(units)):
        if plans.balanced[plan] == _BY_BYTES:
            room.layers[0, layer] = plans.stays[plan, units[layer]]
            continue
        for kind in (_F, _B, _W):
            seconds = _pass_seconds(plans.ran[plan], kind, plans.zero[plan], units, layer, layer + 1)
            room.layers[0, layer] += seconds
        room.layers[1, layer] = plans.sent[plan, units[layer]]
    for chunk in range(len(order.rank_of) - 1):
        part = order.part[chunk]
        if order.hop[chunk] and part < plans.counts.shape[1] - 1:
            per_byte = plans.hop[plan, order.hop[chunk] - 1, order.rank_of[chunk]]
            room.layers[2, part] = max(room.layers[2, part], per_byte)
    balance(room.layers, n_layers, room.cuts, plans.counts[plan])


@kernel  # type: ignore[untyped-decorator]
def price_plans(
    order: OrderColumns,
    micro_batches: int,
    splits: bool,
    units: I64,
    n_layers: int,
    plans: PlanRows,
    room: Room,
    prices: F64,
) -> None:
    """Fill ``prices`` (N, PRICES), and the layers of plans that are balanced.

    Args:
        order: of passes.
        micro_batches: of the order.
        splits: whether gradients of weights are a pass of their own.
        units: (L or L + 1,) unit of each layer, and of what is behind the last one, if anything is.
        n_layers: L.
        plans: that are priced.
        room: to work in.
        prices: to fill.
    """
    for plan in range(len(prices)):
        if plans.balanced[plan]:
            _balance_layers(order, plans, plan, units, n_layers, room)
        _price_chunks(order, plans, plan, splits, units, n_layers, room)
        _price_borders(order, plans, plan, units, room)
        _run_order(order, room)
        seconds = memory = resting = busiest = sending = 0.0
        for rank in range(len(order.rank_ptr) - 1):
            busiest = max(busiest, _rank_work(order, rank, room))
            sending = max(sending, room.links[1, 0, rank], room.links[1, 1, rank])
            last_kind = _W if splits else _B
            seconds = max(seconds, _rank_end(order, rank, plans.ran[plan], plans.zero[plan], last_kind, units, room))
            stays = _rank_stays(order, plans, plan, rank, micro_batches, units, room)
            resting = max(resting, stays)
            memory = max(memory, stays + _rank_bytes(order, rank, room))
        prices[plan, 0] = seconds + plans.micro_batches[plan] * max(busiest, sending) / micro_batches
        prices[plan, 1], prices[plan, 2] = memory, resting

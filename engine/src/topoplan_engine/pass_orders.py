"""How pass orders are made, and what they say before anything is simulated.

`alternating_order` makes the order of every schedule that warms up with forward passes and then alternates: GPipe,
1F1B, interleaved, ZB-H1, ZB-H2.  `block_order` makes that of a schedule which repeats one block of passes for every
micro-batch: the V-shaped family.  `ideal_times` runs an order on ranks that take given seconds for each pass and send
in no time, which is the setting of the published bubble formulas; `kept_passes` counts the activations that are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.pass_order import Pass, PassOrder
from topoplan_engine.csr import indptr

__all__ = [
    "ORDERS",
    "Block",
    "Rows",
    "alternating_order",
    "alternating_rows",
    "backward_at_once",
    "block_order",
    "bubble",
    "ideal_times",
    "is_in_twos",
    "kept_passes",
    "named_order",
    "order_in_twos",
    "pass_order",
    "repeated_rows",
]


#: Names of the orders that `named_order` makes.
ORDERS = ("gpipe", "1f1b", "1f1b-deep", "interleaved", "zero-bubble")


class Rows(NamedTuple):
    """(n,) passes of one rank, in order: `topoplan.model.pass_order.Pass`, chunk and micro-batch."""

    kind: I32
    chunk: I32
    micro_batch: I32


def pass_order(name: str, rows: Sequence[Rows]) -> PassOrder:
    """Return the order whose ranks run these rows."""
    kind, chunk, micro_batch = (np.concatenate(column) for column in zip(*rows, strict=True))
    pointers = indptr([len(each.kind) for each in rows])
    return PassOrder(name=name, rank_ptr=pointers, kind=kind, chunk=chunk, micro_batch=micro_batch)


def alternating_order(
    name: str, warm_up: Sequence[int], micro_batches: int, chunks: int = 1, weights_late: Sequence[int] | None = None
) -> PassOrder:
    """Return an order whose ranks warm up with forward passes, then run a forward and a backward pass in turn.

    Args:
        name: of the schedule.
        warm_up: for each rank, forward passes before the first backward pass, less one.
        micro_batches: of the batch; a multiple of the ranks where there are several chunks.
        chunks: of each rank; chunk ``k`` of the model is on rank ``k % ranks``.
        weights_late: for each rank, by how many micro-batches the gradients of weights are put off; None: they are a
            part of the backward pass.
    """
    ranks = len(warm_up)
    late = [None] * ranks if weights_late is None else weights_late
    rows = [alternating_rows(ranks, chunks, micro_batches, rank, warm_up[rank], late[rank]) for rank in range(ranks)]
    return pass_order(name, rows)


@functools.lru_cache(maxsize=256)
def named_order(
    name: str, ranks: int, micro_batches: int, chunks: int = 1, recompute: tuple[bool, ...] = ()
) -> PassOrder:
    """Return the order of a schedule that planners of pipelines choose from.

    GPipe warms up with all forward passes; 1F1B with one for each rank to come, its deep form with two, which hides
    transfers that take as long as passes (DAPPLE, section 3.2); the interleaved schedule with two and all chunks but
    the last one of ``ranks`` micro-batches.  ZB-H1 (``zero-bubble``) is 1F1B whose rank ``s`` puts off the gradients of
    weights by ``s`` micro-batches, so that gradients of inputs arrive sooner and every rank has as many micro-batches
    in flight.

    Args:
        name: one of `ORDERS`.
        ranks: of the pipeline.
        micro_batches: of the batch; a multiple of ``ranks`` if interleaved.
        chunks: of each rank; one in all but the interleaved schedule.
        recompute: for each chunk of the model, whether it runs forward again before its backward pass; empty for none.

    Raises:
        TopoplanError: there is no such order.

    Example:
        >>> print(named_order("1f1b", 2, 2, recompute=(True, False)))
        rank 0: F0 F1 R0 B0 R1 B1
        rank 1: F0 B0 F1 B1
    """
    if name not in ORDERS:
        raise TopoplanError(f"schedule: kind {name!r} is unknown (must be {', '.join(ORDERS)})")
    if micro_batches < 1:
        raise TopoplanError(f"schedule: {micro_batches} micro-batches (must be at least 1)")
    if len(recompute) not in (0, ranks * chunks):
        raise TopoplanError(
            f"schedule: recompute has {len(recompute)} values for {ranks * chunks} stages (one each, or none)"
        )
    if name == "interleaved" and micro_batches % ranks:
        raise TopoplanError(
            f"schedule: interleaved: {micro_batches} micro-batches on {ranks} groups of devices "
            f"(needs a multiple of {ranks})"
        )
    later = range(ranks)[::-1]
    warm_up = {
        "gpipe": [micro_batches * chunks] * ranks,
        "1f1b-deep": [2 * each for each in later],
        "interleaved": [2 * each + (chunks - 1) * ranks for each in later],
    }
    late = range(ranks) if name == "zero-bubble" else [None] * ranks
    ahead = warm_up.get(name, later)
    rows = [alternating_rows(ranks, chunks, micro_batches, rank, ahead[rank], late[rank]) for rank in range(ranks)]
    if any(recompute):
        rows = [repeated_rows(each, np.array(recompute)[each.chunk]) for each in rows]
    return pass_order(name, rows)


def alternating_rows(
    ranks: int, chunks: int, micro_batches: int, rank: int, warm_up: int, weights_late: int | None
) -> Rows:
    """Return the passes of one rank; see `alternating_order`.

    Several chunks keep ``ranks`` micro-batches together, chunk after chunk (Megatron-LM, schedules.py).
    """
    total = micro_batches * chunks
    warm_up = min(warm_up, total)
    passes = np.arange(total)
    turn, place = np.divmod(passes, chunks * ranks)
    if chunks > 1:
        chunk, place = np.divmod(place, ranks)
        micro = turn * ranks + place
    else:
        chunk, micro = np.zeros(total, dtype=np.int64), passes
    forward = np.where(passes < warm_up, passes, 2 * passes - warm_up)
    backward = np.where(passes < total - warm_up, warm_up + 2 * passes + 1, total + passes)
    forward_chunk, backward_chunk = chunk * ranks + rank, (chunks - 1 - chunk) * ranks + rank
    # Two places for each pass: the one behind it is free.
    keys, kinds = [2 * forward, 2 * backward], [Pass.FORWARD, Pass.BACKWARD]
    numbers, micros = [forward_chunk, backward_chunk], [micro, micro]
    if weights_late is not None:
        delayed = 2 * backward[np.minimum(passes + weights_late, total - 1)] + 1
        keys.append(np.where(passes + weights_late < total, delayed, 4 * total + passes))
        kinds, numbers, micros = [*kinds, Pass.WEIGHTS], [*numbers, backward_chunk], [*micros, micro]
    order = np.argsort(np.concatenate(keys))
    kind = np.repeat(np.array(kinds, dtype=np.int32), total)
    return Rows(
        kind[order], np.concatenate(numbers).astype(np.int32)[order], np.concatenate(micros).astype(np.int32)[order]
    )


def repeated_rows(rows: Rows, repeated: np.ndarray) -> Rows:
    """Return the rows with a recomputation in front of each backward pass that is marked; (n,) ``repeated``."""
    backward = (rows.kind == Pass.BACKWARD) & repeated
    copies = 1 + backward
    row = np.repeat(np.arange(len(copies)), copies)
    kind = rows.kind[row]
    kind[np.cumsum(copies)[backward] - 2] = Pass.RECOMPUTE
    return Rows(kind, rows.chunk[row], rows.micro_batch[row])


def order_in_twos(order: PassOrder) -> PassOrder:
    """Return the order of twice as many micro-batches, of which two run each pass: back in the opposite order.

    >>> print(order_in_twos(alternating_order("1f1b", [1, 0], 2)))
    rank 0: F0 F1 F2 F3 B1 B0 B3 B2
    rank 1: F0 F1 B1 B0 F2 F3 B3 B2
    """
    row, second = np.repeat(np.arange(len(order.kind)), 2), np.tile([0, 1], len(order.kind))
    turn = np.where(order.kind[row] >= Pass.BACKWARD, 1 - second, second)
    return PassOrder(
        name=f"{order.name} in twos",
        rank_ptr=2 * order.rank_ptr,
        kind=order.kind[row],
        chunk=order.chunk[row],
        micro_batch=2 * order.micro_batch[row] + turn,
    )


def is_in_twos(order: PassOrder) -> bool:
    """Return whether an order is one of `order_in_twos`."""
    columns = np.stack([order.kind, order.chunk, order.micro_batch // 2])
    if columns.shape[1] % 2 or (order.rank_ptr % 2).any() or (columns[:, ::2] != columns[:, 1::2]).any():
        return False
    backward = order.kind[::2] >= Pass.BACKWARD
    return bool((order.micro_batch[::2] % 2 == backward).all())


def backward_at_once(order: PassOrder, chunk: int) -> np.ndarray:
    """(micro-batches,) whether the backward pass of a chunk comes right behind its forward pass on its rank.

    A pass that runs again for the backward pass may be in between.

    >>> backward_at_once(named_order("1f1b", 2, 3), 0).tolist(), backward_at_once(named_order("1f1b", 2, 3), 1).tolist()
    ([False, False, False], [True, True, True])
    """
    rows = order.row_of[:, chunk]
    between: np.ndarray = rows[Pass.BACKWARD] - rows[Pass.FORWARD] - 1
    at_once: np.ndarray = between == (rows[Pass.RECOMPUTE] >= 0)
    return at_once


class Block(NamedTuple):
    """When one micro-batch runs its passes in a schedule that repeats; the next one does ``interval`` later.

    Attributes:
        forward, backward: (chunks,) begin of each pass, every one of them one unit long.
        interval: units from one micro-batch to the next.
    """

    forward: I64
    backward: I64
    interval: int


def block_order(
    name: str, rank_of: Sequence[int], block: Block, micro_batches: int, *, forward_sooner: bool = False
) -> PassOrder:
    """Return the order of a schedule that repeats one block for each micro-batch.

    Each rank runs its passes in the order of their begins, gradients of weights in the units that are left.  Where a
    pass has to wait, at the begin and at the end of the batch, gradients of weights that are put off come sooner
    (`_filled`); after the last forward pass of a rank they wait until nothing else is there to do.

    Source: Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS 2024), section 3: building blocks.

    Args:
        name: of the schedule.
        rank_of: (chunks,) rank of each.
        block: no two passes of one rank begin at the same unit, modulo the interval.
        micro_batches: of the batch.
        forward_sooner: whether forward passes, too, come sooner where a rank would be idle.
    """
    ranks = np.array(rank_of)
    rows = []
    for rank in range(int(ranks.max()) + 1):
        chunks = np.flatnonzero(ranks == rank)
        starts = _starts_on_rank(block, chunks)
        when = (starts[None] + block.interval * np.arange(micro_batches)[:, None]).ravel()
        order = np.argsort(when, kind="stable")
        kind = np.tile(np.repeat([Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHTS], len(chunks)), micro_batches)
        micro_batch = np.repeat(np.arange(micro_batches), len(starts))
        columns = (kind, np.tile(chunks, 3 * micro_batches), micro_batch)
        rows.append(Rows(*(column[order].astype(np.int32) for column in columns)))
    return _filled(pass_order(name, rows), forward_sooner)


def _starts_on_rank(block: Block, chunks: I64) -> I64:
    """(3 * chunks,) begins of forward, backward and weight passes of the chunks of one rank."""
    forward, backward = block.forward[chunks], block.backward[chunks]
    occupied = set(np.concatenate([forward, backward]) % block.interval)
    weights = np.empty(len(chunks), dtype=np.int64)
    for place in np.argsort(backward):
        unit = int(backward[place]) + 1
        while unit % block.interval in occupied:
            unit += 1
        occupied.add(unit % block.interval)
        weights[place] = unit
    return np.concatenate([forward, backward, weights])


def _filled(order: PassOrder, forward_sooner: bool) -> PassOrder:
    """Return the order with passes that need not wait in what would be idle units, if all passes take one unit.

    Gradients of weights come sooner, or later once a rank has run its last forward pass.  With ``forward_sooner``,
    forward passes of a rank's first chunk come sooner where it keeps fewer activations than ``order`` does at most.

    Invariants: passes of one chunk and kind keep their order; a rank is idle only where nothing can run.
    """
    kind, needs, most = order.kind.tolist(), _need_of(order), kept_passes(order).tolist()
    is_done = bytearray(len(kind) + 1)
    is_done[-1] = True  # what needs nothing
    ranks = [_Remaining.of(order, rank) for rank in range(order.n_ranks)]
    result: list[list[int]] = [[] for _ in ranks]
    n_kept = [0] * len(ranks)

    def choice(rank: int) -> int:
        remaining = ranks[rank]
        weights, main = remaining.weights[-1], _first(remaining.main, is_done)
        can_run = main >= 0 and is_done[needs[main]]
        if can_run and (weights < 0 or main < weights or main > remaining.last_forward):
            return main
        if weights >= 0 and is_done[needs[weights]]:
            return weights
        if can_run:
            return main
        if not forward_sooner or n_kept[rank] >= most[rank]:
            return -1
        ahead = _first(remaining.forward, is_done)
        return ahead if ahead >= 0 and is_done[needs[ahead]] else -1

    n_remaining = len(kind)
    while n_remaining:
        starts = [(rank, row) for rank in range(len(ranks)) if (row := choice(rank)) >= 0]
        for rank, row in starts:
            is_done[row] = True
            if kind[row] == Pass.WEIGHTS:
                ranks[rank].weights.pop()
            result[rank].append(row)
            n_kept[rank] += {Pass.FORWARD: 1, Pass.WEIGHTS: -1}.get(kind[row], 0)
        n_remaining -= len(starts)
    rows = np.concatenate([np.array(each) for each in result])
    columns = {name: getattr(order, name)[rows] for name in ("kind", "chunk", "micro_batch")}
    return PassOrder(name=order.name, rank_ptr=order.rank_ptr, **columns)


class _Remaining(NamedTuple):
    """The passes of a rank that are not placed yet, the next one last, with -1 in front.

    Attributes:
        weights: gradients of weights.
        main: all others; those that are placed may be among them, as among ``forward``.
        forward: forward passes of the rank's first chunk.
        last_forward: its last forward pass of all.
    """

    weights: list[int]
    main: list[int]
    forward: list[int]
    last_forward: int

    @classmethod
    def of(cls, order: PassOrder, rank: int) -> _Remaining:
        """Return all passes of a rank."""
        first, end = order.rank_ptr[rank : rank + 2].tolist()
        kind, rows = order.kind[first:end], np.arange(first, end)
        of_weights, forward = kind == Pass.WEIGHTS, kind == Pass.FORWARD
        of_first_chunk = forward & (order.chunk[first:end] == order.chunk[first])
        weights, main, ahead = ([-1, *rows[some][::-1].tolist()] for some in (of_weights, ~of_weights, of_first_chunk))
        return cls(weights, main, ahead, int(rows[forward][-1]))


def _first(queue: list[int], is_done: bytearray) -> int:
    """Return the next pass of a queue that is not placed, and take away those that are; -1 for none."""
    while queue[-1] >= 0 and is_done[queue[-1]]:
        queue.pop()
    return queue[-1]


def _need_of(order: PassOrder) -> list[int]:
    """Return the pass that each one needs of others: of another chunk, or its backward pass; -1 for none."""
    need = np.full(len(order.kind), -1)
    tails, heads = order.needs
    need[heads] = tails
    weights = order.kind == Pass.WEIGHTS
    need[weights] = order.row_of[Pass.BACKWARD][order.chunk[weights], order.micro_batch[weights]]
    return need.tolist()


def ideal_times(order: PassOrder, seconds: F64) -> tuple[F64, F64]:
    """Return begin and end of each pass where each begins as soon as its rank and what it needs are done.

    Args:
        order: of passes.
        seconds: (4, n_chunks) of each kind of pass; backward passes without one for weights take both.
    """
    tails, heads = order.edges
    waits = np.bincount(heads, minlength=len(order.kind)).tolist()
    followers: list[list[int]] = [[] for _ in waits]
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        followers[tail].append(head)
    own_pass = order.row_of[Pass.WEIGHTS][order.chunk, order.micro_batch] >= 0
    duration = seconds[order.kind, order.chunk]
    duration = np.where(
        (order.kind == Pass.BACKWARD) & ~own_pass, duration + seconds[Pass.WEIGHTS, order.chunk], duration
    )
    start, ready = [0.0] * len(waits), [row for row, count in enumerate(waits) if not count]
    lengths = duration.tolist()
    for row in ready:
        for head in followers[row]:
            start[head] = max(start[head], start[row] + lengths[row])
            waits[head] -= 1
            if not waits[head]:
                ready.append(head)
    starts = np.array(start)
    return starts, starts + duration


def bubble(order: PassOrder, seconds: F64) -> float:
    """Return the most seconds that a rank is idle between its first and its last pass; see `ideal_times`.

    Example:
        1F1B on four ranks is idle for three forward and backward passes, whatever the number of micro-batches:

        >>> order = alternating_order("1f1b", [3, 2, 1, 0], micro_batches=8)
        >>> bubble(order, np.ones((4, 4)))
        9.0
    """
    start, end = ideal_times(order, seconds)
    first, last = order.rank_ptr[:-1], order.rank_ptr[1:] - 1
    work = np.add.reduceat(end - start, first)
    return float((end[last] - start[first] - work).max())


def kept_passes(order: PassOrder) -> I64:
    """(n_ranks,) the most forward passes of each rank whose activations are kept at a time.

    They are kept from the begin of the forward pass to the end of the last pass that needs them, which is that of the
    gradients of weights where it is one of its own.
    """
    weights = order.row_of[Pass.WEIGHTS][order.chunk, order.micro_batch]
    frees = (order.kind == Pass.WEIGHTS) | ((order.kind == Pass.BACKWARD) & (weights < 0))
    change = (order.kind == Pass.FORWARD).astype(np.int64) - np.append(False, frees[:-1])
    # What the last pass of a rank frees is occupied off in the first row of the next one.
    most: I64 = np.maximum.reduceat(np.cumsum(change), order.rank_ptr[:-1])
    return most

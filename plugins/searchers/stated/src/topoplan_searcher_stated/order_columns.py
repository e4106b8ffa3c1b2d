"""Pass orders as estimates need them: what each pass waits for, in an order in which nothing waits for a later one."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan import PassOrder
from topoplan.arrays import I64
from topoplan.model.pass_order import Pass
from topoplan_engine.lowering.pass_peaks import whole_passes
from topoplan_searcher_stated.construct import order_of
from topoplan_searcher_stated.plan_kernels import OrderColumns

__all__ = ["EstimatedOrder", "estimated_order"]

#: Micro-batches for each rank after which a pipeline only repeats itself.
_REPEATS = 2


class EstimatedOrder(NamedTuple):
    """A pass order, its columns, and what follows.

    Attributes:
        order: of as many micro-batches as show how it continues.
        columns: of it.
        parts: of the model; several copies have the same.
        splits: whether gradients of weights are a pass of their own.
        apart: whether the first and the last part of the model are on different ranks.
    """

    order: PassOrder
    columns: OrderColumns
    parts: int
    splits: bool
    apart: bool


def estimated_order(schedule: str, ranks: int, micro_batches: int) -> EstimatedOrder:
    """Return the order of a schedule, with no more micro-batches than show how it continues.

    Raises:
        TopoplanError: there is no such schedule, or it has none for so many.
    """
    shown = _REPEATS * ranks + micro_batches % ranks
    order = _estimated_order(schedule, ranks, min(micro_batches, shown))
    if micro_batches > shown and _keeps_all(order.order):  # the more there are, the more it keeps
        order = _estimated_order(schedule, ranks, micro_batches)
    return order


def _keeps_all(order: PassOrder) -> bool:
    """Whether some rank runs all forward passes before the first backward pass, such as in GPipe."""
    for rank in range(order.n_ranks):
        kind = order.kind[order.rank_ptr[rank] : order.rank_ptr[rank + 1]]
        first = int((kind == Pass.BACKWARD).argmax())
        if (kind[:first] == Pass.FORWARD).sum() == (kind == Pass.FORWARD).sum():
            return True
    return False


@functools.lru_cache(maxsize=1024)
def _estimated_order(schedule: str, ranks: int, micro_batches: int) -> EstimatedOrder:
    order = order_of(schedule, ranks, micro_batches)
    forward = order.row_of[Pass.FORWARD]
    copies = (forward >= 0).argmax(axis=1).tolist()  # chunks of one copy have the same micro-batches
    part = np.array([copies[:chunk].count(copy) for chunk, copy in enumerate(copies)])
    n, n_chunks = len(order.kind), order.n_chunks
    need, border = np.full((2, n), -1, dtype=np.int64)
    tails, heads = (ends.astype(np.int64) for ends in order.needs)
    source, target = order.chunk[tails].astype(np.int64), order.chunk[heads].astype(np.int64)
    need[heads] = tails
    border[heads] = np.where(source == target, -1, np.minimum(source, target) + (source > target) * (n_chunks - 1))
    step = np.append(np.diff(order.rank_of), 0) % ranks
    hop = np.select([step == 0, step == 1, step == ranks - 1], [0, 1, 2], 1)
    columns = OrderColumns(
        rank_ptr=order.rank_ptr.astype(np.int64),
        kind=order.kind.astype(np.int64),
        chunk=order.chunk.astype(np.int64),
        whole=whole_passes(order),
        need=need,
        border=border,
        in_turn=_in_turn(order, need),
        rank_of=order.rank_of.astype(np.int64),
        part=part,
        hop=hop.astype(np.int64),
    )
    parts, splits = int(part.max()) + 1, bool((order.row_of[Pass.WEIGHTS] >= 0).any())
    return EstimatedOrder(order, columns, parts, splits, apart=bool(order.rank_of[0] != order.rank_of[parts - 1]))


def _in_turn(order: PassOrder, need: I64) -> I64:
    """(n,) all passes, each behind the one before it on its rank and what it needs."""
    needs, is_done = need.tolist(), bytearray(len(need) + 1)
    is_done[-1] = True  # what needs nothing
    next_rows, ends = order.rank_ptr[:-1].tolist(), order.rank_ptr[1:].tolist()
    result: list[int] = []
    waiting = list(range(order.n_ranks))
    while waiting:
        for rank in waiting:
            row = next_rows[rank]
            while row < ends[rank] and is_done[needs[row]]:
                is_done[row] = True
                result.append(row)
                row += 1
            next_rows[rank] = row
        waiting = [rank for rank in waiting if next_rows[rank] < ends[rank]]
    return np.array(result)

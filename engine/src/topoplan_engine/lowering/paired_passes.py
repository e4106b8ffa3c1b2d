"""Which passes of a rank run at the same time, and in which order their parts are computed.

A forward and a backward pass that follow each other on a rank may be a *pair*: what one of them sends between its parts
hides behind what the other one computes.  A *part* is what is computed between two waits for experts.  The parts of a
pair take turns, those of the backward pass first, as its first one is short: it ends with what experts get back.

    computed   B1 F1   B2   F2   B3 F3      B: of layers in the opposite order: gradients of what experts answered,
    sent        B>   F>   B>   F>   ..         experts, attention; F: attention, experts, what follows them

The order is fixed before anything is simulated, as trainers fix it when they launch kernels (DeepSeek-V3, figure 4;
Megatron-LM, ``model_chunk_schedule_plan.py``), so that a part that takes longer delays what follows and reorders
nothing.

Pairs of a rank are those of a forward and the backward pass behind it, as DualPipe has them, or of a backward and the
forward pass behind it, as Megatron's interleaved schedule has them behind one more forward pass.  A pair waits for all
that one of the two needs.  Where neighbours need both of its results in turn, as in 1F1B without chunks, pairs make
them wait for each other: then the passes of that order follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from topoplan.model.pass_order import Pass, PassOrder

__all__ = ["in_turns", "paired_rows"]

#: What passes compute and send when pairs are chosen, in equal units: experts' traffic is half of what is computed.
_COMPUTED = {Pass.FORWARD: 2, Pass.RECOMPUTE: 2, Pass.BACKWARD: 4, Pass.WEIGHTS: 2}
_SENT = {Pass.FORWARD: 1, Pass.RECOMPUTE: 1, Pass.BACKWARD: 2, Pass.WEIGHTS: 0}

_Item = TypeVar("_Item")


def in_turns(forward: Sequence[_Item], backward: Sequence[_Item]) -> list[_Item]:
    """Return the parts of a forward and a backward pass in the order in which a device computes them.

    >>> in_turns(["F1", "F2", "F3"], ["B1", "B2", "B3", "B4"])
    ['B1', 'F1', 'B2', 'F2', 'B3', 'F3', 'B4']
    """
    first, second = (forward, backward) if len(backward) == 1 < len(forward) else (backward, forward)
    count = min(len(first), len(second))
    turns = [part for two in zip(first, second, strict=False) for part in two]
    return [*turns, *first[count:], *second[count:]]


def paired_rows(order: PassOrder) -> list[list[tuple[int, ...]]]:
    """Return the rows of an order, rank by rank: two that are a pair together, all others by themselves.

    Of the two ways to pair, and none, that is chosen which ends first if passes take what `_COMPUTED` and `_SENT` say.

    Args:
        order: of the passes of a pipeline.

    Examples:
        Two micro-batches on one rank: the second one runs forward while the first one runs back.

        >>> rows = PassOrder(name="in turn", rank_ptr=[0, 4], kind=[0, 2, 0, 2], chunk=[0] * 4,
        ...                  micro_batch=[0, 0, 1, 1])
        >>> paired_rows(rows)
        [[(0,), (1, 2), (3,)]]
    """
    needs = _needs(order)
    kinds = order.kind.tolist()
    ways = [
        _run(order, [list(_pairs(range(*bounds), kinds, needs, first)) for bounds in _bounds(order)], needs)
        for first in (Pass.FORWARD, Pass.BACKWARD, None)
    ]
    return min(ways, key=lambda way: way[0])[1]


def _bounds(order: PassOrder) -> list[tuple[int, int]]:
    pointers = order.rank_ptr.tolist()
    return list(pairwise(pointers))


def _needs(order: PassOrder) -> list[list[int]]:
    """Return the rows whose data each row needs."""
    needs: list[list[int]] = [[] for _ in order.kind]
    for tail, head in zip(*(ends.tolist() for ends in order.needs), strict=True):
        needs[head].append(tail)
    for kind in (Pass.BACKWARD, Pass.WEIGHTS):
        before = order.row_of[Pass.FORWARD if kind == Pass.BACKWARD else Pass.BACKWARD]
        has_both = (order.row_of[kind] >= 0) & (before >= 0)
        for tail, head in zip(before[has_both].tolist(), order.row_of[kind][has_both].tolist(), strict=True):
            needs[head].append(tail)
    return needs


def _pairs(
    rows: Sequence[int], kinds: Sequence[int], needs: Sequence[Sequence[int]], first: Pass | None
) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a rank, two that follow each other together where the first one is of a kind."""
    pair_kinds = None if first is None else [first, Pass.BACKWARD if first == Pass.FORWARD else Pass.FORWARD]
    place = 0
    while place < len(rows):
        row, *after = rows[place : place + 2]
        two = [kinds[row], *(kinds[each] for each in after)] == pair_kinds and row not in needs[after[0]]
        yield (row, *after) if two else (row,)
        place += 1 + two


def _run(
    order: PassOrder, items: list[list[tuple[int, ...]]], needs: Sequence[Sequence[int]]
) -> tuple[int, list[list[tuple[int, ...]]]]:
    """Return when the ranks of a pipeline have run what they are given, and that.

    A pair whose two passes wait for each other by way of other ranks is taken apart.
    """
    kinds, end_of = order.kind.tolist(), [-1] * len(order.kind)
    clock, place = [0] * order.n_ranks, [0] * order.n_ranks
    readers: dict[int, set[int]] = {}
    for rank, (start, stop) in enumerate(_bounds(order)):
        for row in range(start, stop):
            for tail in needs[row]:
                readers.setdefault(tail, set()).add(rank)
    waiting = list(range(order.n_ranks))
    while any(place[rank] < len(items[rank]) for rank in range(order.n_ranks)):
        if not waiting:
            waiting.append(_take_apart(items, place, needs, end_of))
        rank = waiting.pop()
        while place[rank] < len(items[rank]):
            item = items[rank][place[rank]]
            before = [end_of[tail] for row in item for tail in needs[row] if tail not in item]
            if before and min(before) < 0:
                break
            seconds = sum(_COMPUTED[Pass(kinds[row])] for row in item)
            seconds += _SENT[Pass(kinds[item[0]])] if len(item) == 1 else 0
            clock[rank] = max([clock[rank], *before]) + seconds
            place[rank] += 1
            for row in item:
                end_of[row] = clock[rank]
                waiting += sorted(readers.get(row, set()) - {rank, *waiting})
    return max(clock), items


def _take_apart(
    items: list[list[tuple[int, ...]]], place: list[int], needs: Sequence[Sequence[int]], end_of: Sequence[int]
) -> int:
    """Take the first pair apart whose first pass could run; return its rank."""
    for rank, (of_rank, number) in enumerate(zip(items, place, strict=True)):
        pair = of_rank[number] if number < len(of_rank) else ()
        if len(pair) == 2 and all(end_of[tail] >= 0 for tail in needs[pair[0]]):
            of_rank[number : number + 1] = [(row,) for row in pair]
            return rank
    raise AssertionError("an order of passes runs to its end")

"""The most that a device holds while its rank runs passes in their order: of plans, and of estimates of plans.

    bytes that passes of each chunk bring and free ─┐
    what they have for a moment beside them ────────┴► along the order of a rank ─► the fullest moment

Ranks run passes in a fixed order, so that the peak does not depend on how long passes take.  Lowered pipelines of
placed operators, lowered stages of programs and estimates of plans differ only in how they count the bytes of a pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass, PassOrder
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["WHOLE", "PassPeak", "most_of_passes", "peaks_of", "whole_passes"]

#: A backward pass that makes the gradients of weights, too; numbered behind `Pass`.
WHOLE = len(Pass)
_BACKWARD, _LAST = int(Pass.BACKWARD), int(Pass.WEIGHTS)


class PassPeak(NamedTuple):
    """The fullest moment of each of K devices.

    Attributes:
        most: (K,) bytes at that moment.
        row: (K,) the pass of the order that is run then; -1 where nothing is held at any time.
        summed: (K,) bytes of gradients that are being summed then.
        kept: (K,) bytes of the first kind that passes brought and did not free yet.
    """

    most: F64
    row: I64
    summed: F64
    kept: F64


@inline_kernel
def most_of_passes(
    kind: I64,
    chunk: I64,
    whole: NDArray[np.bool_],
    first: int,
    end: int,
    change: F64,
    rise: F64,
    gathered: F64,
    accumulated: F64,
    room: F64,
) -> tuple[float, int, float]:
    """Return the most bytes of a device of one rank, the pass in which it has them (-1: none), and those being summed.

    A backward pass begins with what is there before it, and raises that; any other one ends with what is there behind
    it.  Gradients that are accumulated whole are there from the first backward pass of a chunk to its last pass.

    Args:
        kind, chunk, whole: (n,) of all passes; see `whole_passes`.
        first, end: passes of the rank.
        change: (5, C) bytes that are there after a pass of each kind and chunk and were not before, `WHOLE` last.
        rise: (C,) what a backward pass has at most beyond those at its begin.
        gathered: (C,) what is there while any other pass runs, but for that of gradients of weights.
        accumulated: (C,) gradients that are summed whole.
        room: (2, C) to work in: the last pass of each chunk, and whether its gradients are being summed.
    """
    last, summing = room[0], room[1]
    for row in range(first, end):
        last[chunk[row]], summing[chunk[row]] = row, 0.0
    level = most = summed = summed_then = 0.0
    fullest = -1
    for row in range(first, end):
        now, of = kind[row], chunk[row]
        changed = change[WHOLE if whole[row] else now, of]
        if now == _BACKWARD:
            if not summing[of]:
                summed += accumulated[of]
                summing[of] = 1.0
            nbytes = level + summed + rise[of]
        else:
            nbytes = level + summed + changed + (0.0 if now == _LAST else gathered[of])
        if nbytes > most:
            most, fullest, summed_then = nbytes, row, summed
        level += changed
        if row == last[of] and summing[of]:
            summed -= accumulated[of]
    return most, fullest, summed_then


@kernel  # type: ignore[untyped-decorator]
def _fill(
    kind: I64,
    chunk: I64,
    whole: NDArray[np.bool_],
    rank_ptr: I64,
    rank: I64,
    change: F64,
    of_first: F64,
    rise: F64,
    gathered: F64,
    accumulated: F64,
    room: F64,
    nbytes: F64,
    rows: I64,
) -> None:
    """Fill ``nbytes`` (3, K) and ``rows`` (K,), columns of `PassPeak`; ``of_first`` are changes of the first kind."""
    for k in range(len(rank)):
        first, end = rank_ptr[rank[k]], rank_ptr[rank[k] + 1]
        most, fullest, summed = most_of_passes(
            kind, chunk, whole, first, end, change[k], rise[k], gathered, accumulated, room
        )
        of_kind = 0.0
        for row in range(first, fullest + 1):
            if row < fullest or kind[row] != _BACKWARD:
                of_kind += of_first[k, WHOLE if whole[row] else kind[row], chunk[row]]
        nbytes[0, k], nbytes[1, k], nbytes[2, k], rows[k] = most, summed, of_kind, fullest


def peaks_of(
    order: PassOrder,
    rank: I64 | I32,
    change: F64,
    rise: F64,
    gathered: F64 | None = None,
    accumulated: F64 | None = None,
) -> PassPeak:
    """Return the fullest moment of each of K devices; see `most_of_passes`.

    Args:
        order: of the passes of C chunks.
        rank: (K,) of each device.
        change: (kinds, K, 5, C) bytes.
        rise: (K, C) bytes.
        gathered, accumulated: (C,) bytes; None: none.

    Two micro-batches of one chunk, forward and then back, each of which keeps 8 bytes and has 3 more as it runs back:

    >>> order = PassOrder(name="", rank_ptr=[0, 4], kind=[0, 0, 2, 2], chunk=[0] * 4, micro_batch=[0, 1, 0, 1])
    >>> change = np.array([8.0, 0, -8, 0, -8]).reshape(1, 1, 5, 1)
    >>> peak = peaks_of(order, np.zeros(1, int), change, np.array([[3.0]]))
    >>> peak.most.tolist(), peak.row.tolist(), peak.kept.tolist()
    ([19.0], [2], [16.0])
    """
    count, none = len(rank), np.zeros(order.n_chunks)
    nbytes, rows = np.zeros((3, count)), np.full(count, -1)
    _fill(
        order.kind.astype(np.int64),
        order.chunk.astype(np.int64),
        whole_passes(order),
        order.rank_ptr.astype(np.int64),
        rank.astype(np.int64),
        change.sum(axis=0),
        change[0],
        rise,
        none if gathered is None else gathered,
        none if accumulated is None else accumulated,
        np.empty((2, order.n_chunks)),
        nbytes,
        rows,
    )
    most, summed, of_first = nbytes
    return PassPeak(most, rows, summed, of_first)


def whole_passes(order: PassOrder) -> NDArray[np.bool_]:
    """(n,) whether a pass is a backward one that makes the gradients of weights, too."""
    separate = order.row_of[Pass.WEIGHTS, order.chunk, order.micro_batch] >= 0
    whole: NDArray[np.bool_] = (order.kind == Pass.BACKWARD) & ~separate
    return whole

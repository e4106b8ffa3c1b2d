"""The queues of the fluid event loop: timed events, and the next ends of flowing, which move.

`Timed` hands out events by (time, number).  The next end on each link is a leaf of a tree of minima, where an end that
moves changes what is above it and no more (`tree`, `replace`, `first_of`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel, part

__all__ = ["Timed", "earliest", "first_of", "pop", "push", "replace", "timed_events", "tree"]

#: Runs that can still grow.
_GROWING = 4
#: A number behind those of all events.
_NO_EVENT = np.iinfo(np.int32).max


class Timed(NamedTuple):
    """Timed events, the earliest (time, number) first: a heap of runs.

    A run is a list of events of one time with ascending numbers.  An event that continues one of the runs begun
    last goes to its end, which costs nothing to sort: where many equal devices or flows go in step, there are few runs.

    Attributes:
        times, ids: time and first number of each run, as a heap; behind it, a run that comes after all others.
        next_id: what follows each number in its run; -1 at the end.
        last_times, last_ids: time and last number of the runs begun last; a time of -1 for one that has ended.
        counts: (2,) runs in the heap, and which of the runs begun last is the next to forget.
    """

    times: F64
    ids: I32
    next_id: I32
    last_times: F64
    last_ids: I32
    counts: I64


@part()
def timed_events(numbers: int) -> Timed:
    """Return an empty queue for events 0 .. numbers - 1, each of which is in it at most once at a time."""
    return Timed(
        np.full(numbers + 1, np.inf),
        np.full(numbers + 1, _NO_EVENT, np.int32),
        np.empty(numbers, np.int32),
        np.full(_GROWING, -1.0),
        np.zeros(_GROWING, np.int32),
        np.zeros(2, np.int64),
    )


@inline_kernel
def push(timed: Timed, time: float, number: int) -> None:
    """Add an event."""
    last_times, last_ids, counts = timed.last_times, timed.last_ids, timed.counts
    timed.next_id[number] = -1
    for i in range(_GROWING):
        if last_times[i] == time and last_ids[i] < number:
            timed.next_id[last_ids[i]] = number
            last_ids[i] = number
            return
    last_times[counts[1]], last_ids[counts[1]] = time, number
    counts[1] = (counts[1] + 1) % _GROWING
    times, ids = timed.times, timed.ids
    node = counts[0]
    counts[0] += 1
    while node > 0:
        parent = (node - 1) >> 1
        if _before(times, ids, parent, time, number):
            break
        times[node], ids[node] = times[parent], ids[parent]
        node = parent
    times[node], ids[node] = time, number


@inline_kernel
def earliest(timed: Timed) -> float:
    """Time of the earliest event; infinite where there is none."""
    return float(timed.times[0]) if timed.counts[0] > 0 else np.inf


@inline_kernel
def pop(timed: Timed) -> int:
    """Drop the earliest event and return its number."""
    times, ids = timed.times, timed.ids
    first = int(ids[0])
    time, number = times[0], timed.next_id[first]
    if number < 0:
        for i in range(_GROWING):
            if timed.last_ids[i] == first:
                timed.last_times[i] = -1.0
        timed.counts[0] -= 1
        time, number = times[timed.counts[0]], ids[timed.counts[0]]
        times[timed.counts[0]], ids[timed.counts[0]] = np.inf, _NO_EVENT
    node = 0
    while True:
        child = 2 * node + 1
        if child >= timed.counts[0]:
            break
        # No branch: which of two runs is first is hard to predict.
        child += _before(times, ids, child + 1, times[child], ids[child])
        if not _before(times, ids, child, time, number):
            break
        times[node], ids[node] = times[child], ids[child]
        node = child
    times[node], ids[node] = time, number
    return first


@inline_kernel
def _before(times: Any, ids: Any, i: int, time: float, number: int) -> bool:
    return bool((times[i] < time) | ((times[i] == time) & (ids[i] < number)))


@part()
def tree(leaves: int) -> F64:
    """Return a tree of minima over this many leaves, all infinite; node ``i`` is the smaller of 2i and 2i + 1."""
    size = 1
    while size < leaves:
        size *= 2
    return np.full(2 * size, np.inf)


@inline_kernel
def replace(tree: Any, leaf: int, value: float) -> None:
    """Give a leaf another value."""
    node = len(tree) // 2 + leaf
    tree[node] = value
    while node > 1:
        node >>= 1
        smaller = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == smaller:
            return
        tree[node] = smaller


@inline_kernel
def first_of(tree: Any) -> int:
    """Return the first leaf that has the smallest value, which is ``tree[1]``."""
    node, size = 1, len(tree) // 2
    while node < size:
        node = 2 * node if tree[2 * node] == tree[1] else 2 * node + 1
    return node - size

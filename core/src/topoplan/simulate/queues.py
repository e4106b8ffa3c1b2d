"""The queues of the fluid event loop: timed events, and the next ends of flowing, which move.

`Timed` hands out events by (time, number).  The next end on each link lies in a heap of three arrays, times, links,
and the place of every link, so that an end that moves is found and moved within it (`rekey`, `remove`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.kernels import part

__all__ = ["Timed", "earliest", "pop", "push", "rekey", "remove", "timed_events"]

#: Runs that can still grow.
_GROWING = 4


class Timed(NamedTuple):
    """Timed events, the earliest (time, number) first: a heap of runs.

    A run is a list of events of one time with ascending numbers.  An event that continues one of the runs begun
    last goes to its end, which costs nothing to sort: where many equal devices or flows go in step, there are few runs.

    Attributes:
        times, ids: time and first number of each run, as a heap.
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


@numba.njit(cache=True, no_cfunc_wrapper=True)
def timed_events(numbers: int) -> Timed:
    """Return an empty queue for events 0 .. numbers - 1, each of which is in it at most once at a time."""
    return Timed(
        np.empty(numbers + 1),
        np.empty(numbers + 1, np.int32),
        np.empty(numbers, np.int32),
        np.full(_GROWING, -1.0),
        np.zeros(_GROWING, np.int32),
        np.zeros(2, np.int64),
    )


@part
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
    at = counts[0]
    counts[0] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if _before(times, ids, parent, time, number):
            break
        times[at], ids[at] = times[parent], ids[parent]
        at = parent
    times[at], ids[at] = time, number


@part
def earliest(timed: Timed) -> float:
    """Time of the earliest event; infinite where there is none."""
    return float(timed.times[0]) if timed.counts[0] > 0 else np.inf


@part
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
    at = 0
    while True:
        child = 2 * at + 1
        if child >= timed.counts[0]:
            break
        if child + 1 < timed.counts[0] and _before(times, ids, child + 1, times[child], ids[child]):
            child += 1
        if not _before(times, ids, child, time, number):
            break
        times[at], ids[at] = times[child], ids[child]
        at = child
    times[at], ids[at] = time, number
    return first


@part
def _before(times: Any, ids: Any, i: int, time: float, number: int) -> bool:
    return bool(times[i] < time or (times[i] == time and ids[i] < number))


@part
def _rise(ends: Any, who: Any, place: Any, at: int, end: float, link: int) -> None:
    while at > 0:
        parent = (at - 1) >> 1
        if ends[parent] <= end:
            break
        ends[at], who[at] = ends[parent], who[parent]
        place[who[at]] = at
        at = parent
    ends[at], who[at] = end, link
    place[link] = at


@part
def _sink(ends: Any, who: Any, place: Any, count: int, at: int, end: float, link: int) -> None:
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and ends[child + 1] < ends[child]:
            child += 1
        if end <= ends[child]:
            break
        ends[at], who[at] = ends[child], who[child]
        place[who[at]] = at
        at = child
    ends[at], who[at] = end, link
    place[link] = at


@part
def rekey(ends: Any, who: Any, place: Any, count: int, end: float, link: int) -> int:
    """Give a link a new end, or enter it; return the new count."""
    at = place[link]
    if at < 0:
        _rise(ends, who, place, count, end, link)
        return count + 1
    if end < ends[at]:
        _rise(ends, who, place, at, end, link)
    elif end > ends[at]:
        _sink(ends, who, place, count, at, end, link)
    return count


@part
def remove(ends: Any, who: Any, place: Any, count: int, link: int) -> int:
    """Take a link out; return the new count."""
    at = place[link]
    place[link] = -1
    count -= 1
    if at < count:
        end, last = ends[count], who[count]
        if end < ends[at]:
            _rise(ends, who, place, at, end, last)
        else:
            _sink(ends, who, place, count, at, end, last)
    return count

"""The queue of FlexNet's simulator: a binary heap that treats equal times as libstdc++'s ``std::priority_queue`` does.

Which of two tasks of one time comes first changes FlexNet's times, so every move of the heap is its own: a new entry
rises past later ones only, and the hole that the first one leaves sinks to a leaf before the last entry fills it.
The queue of the fluid simulator orders equal times by number and cannot take its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel

__all__ = ["Queue", "pop", "push", "queue_of"]


class Queue(NamedTuple):
    """Entries by time.

    Attributes:
        times, ids: time and number of each entry; the children of entry ``i`` are ``2 i + 1`` and ``2 i + 2``.
        length: (1,) how many there are.
    """

    times: F64
    ids: I32
    length: I64


def queue_of(first: I64, capacity: int) -> Queue:
    """Return the queue after ``first`` have been pushed in this order, all of them at time 0."""
    ids = np.zeros(capacity, np.int32)
    ids[: len(first)] = first
    return Queue(np.zeros(capacity), ids, np.array([len(first)]))


@inline_kernel
def push(queue: Queue, time: float, number: int) -> None:
    """Add an entry, as ``push_heap`` does."""
    _rise(queue, queue.length[0], time, number)
    queue.length[0] += 1


@inline_kernel
def pop(queue: Queue) -> int:
    """Drop the first entry, as ``pop_heap`` does, and return its number."""
    times, ids = queue.times, queue.ids
    first = int(ids[0])
    queue.length[0] -= 1
    count = queue.length[0]
    hole, child = 0, 2
    while child < count:  # the hole sinks to a leaf, whatever the time of the last entry
        if times[child] > times[child - 1]:
            child -= 1
        times[hole], ids[hole] = times[child], ids[child]
        hole = child
        child = 2 * hole + 2
    time, number = times[count], ids[count]
    if child == count:  # the last parent has one child
        times[hole], ids[hole] = times[child - 1], ids[child - 1]
        hole = child - 1
    _rise(queue, hole, time, number)
    return first


@inline_kernel
def _rise(queue: Queue, hole: int, time: float, number: int) -> None:
    """Fill a hole with an entry, once the parents that are later have moved down."""
    times, ids = queue.times, queue.ids
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] <= time:
            break
        times[hole], ids[hole] = times[parent], ids[parent]
        hole = parent
    times[hole], ids[hole] = time, number

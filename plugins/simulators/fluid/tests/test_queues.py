"""Timed events against a sorted list."""

import heapq

import numba
import numpy as np
import pytest

from topoplan_simulator_fluid.queues import earliest, pop, push, timed_events


@numba.njit
def handed_out(times, later, numbers, taken):
    """Push all events, and after each of some the next one that is ``later``; return what is handed out, in order."""
    timed, count = timed_events(numbers), 0
    for number in range(len(times)):
        push(timed, times[number], number)
    while earliest(timed) < np.inf and count < len(taken):
        now = earliest(timed)
        taken[count] = pop(timed)
        if count < len(later):
            push(timed, now + later[count], taken[count])
        count += 1
    return count


def expected(times, later):
    queue, taken = [(time, number) for number, time in enumerate(times)], []
    heapq.heapify(queue)
    while queue:
        now, number = heapq.heappop(queue)
        if len(taken) < len(later):
            heapq.heappush(queue, (now + later[len(taken)], number))
        taken.append(number)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_events_come_by_time_and_number(seed):
    rng = np.random.default_rng(seed)
    events, coarse = int(rng.integers(1, 60)), seed % 3 > 0  # of coarse times many are equal
    times = rng.integers(0, 6, events).astype(float) if coarse else rng.random(events)
    later = rng.integers(0, 4, 2 * events).astype(float) if coarse else rng.random(2 * events)
    taken = np.full(4 * events, -1)
    count = handed_out(times, later, events, taken)
    assert taken[:count].tolist() == expected(times.tolist(), later.tolist())

"""The event loop of the fluid model.

Events are of two kinds.  Timed ones (a compute task ends, an all-reduce has finished inside its hosts, an
entity begins to flow or has arrived) lie in a heap by (time, number).  The end of flowing moves with the
rates, and lies in a second heap in which every entity knows its place.  Events within a picosecond happen
together; afterwards the rates of entities on links whose load changed are computed once.

Rates need no global solution: an entity's is the smallest share ``C/n`` of its links.  Each link keeps a list
of what flows over it.  When its share changes, only those are looked at whose rate was that share or exceeds
the new one; of these, those whose rate really changes are brought up to date and move in their heap.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from topoplan.arrays import F64
from topoplan.simulate.columns import TaskColumns
from topoplan.simulate.entities import Entities, path_times
from topoplan.simulate.network import LOAD, PathColumns, RingColumns
from topoplan.taskgraph import TaskKind

__all__ = ["TOGETHER", "run"]

#: Events this close, in seconds, happen together.
TOGETHER = 1e-12

_TRANSFER = int(TaskKind.TRANSFER)
_ALLREDUCE = int(TaskKind.ALLREDUCE)


@numba.njit(cache=True, inline="always")
def _before(times: Any, ids: Any, i: int, time: float, number: int) -> bool:
    return bool(times[i] < time or (times[i] == time and ids[i] < number))


@numba.njit(cache=True)
def _push(times: Any, ids: Any, count: int, time: float, number: int) -> int:
    """Add an entry to the heap of timed events; return the new count."""
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        if _before(times, ids, parent, time, number):
            break
        times[at], ids[at] = times[parent], ids[parent]
        at = parent
    times[at], ids[at] = time, number
    return count + 1


@numba.njit(cache=True)
def _pop(times: Any, ids: Any, count: int) -> int:
    """Drop the first entry of the heap of timed events; return the new count."""
    count -= 1
    time, number = times[count], ids[count]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and _before(times, ids, child + 1, times[child], ids[child]):
            child += 1
        if not _before(times, ids, child, time, number):
            break
        times[at], ids[at] = times[child], ids[child]
        at = child
    times[at], ids[at] = time, number
    return count


@numba.njit(cache=True, inline="always")
def _rise(ends: Any, who: Any, place: Any, at: int, end: float, entity: int) -> None:
    while at > 0:
        parent = (at - 1) >> 1
        if ends[parent] <= end:
            break
        ends[at], who[at] = ends[parent], who[parent]
        place[who[at]] = at
        at = parent
    ends[at], who[at] = end, entity
    place[entity] = at


@numba.njit(cache=True, inline="always")
def _sink(ends: Any, who: Any, place: Any, count: int, at: int, end: float, entity: int) -> None:
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
    ends[at], who[at] = end, entity
    place[entity] = at


@numba.njit(cache=True, inline="always")
def _uniform(state: Any) -> float:
    """Draw from [0, 1) with SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) / 9007199254740992.0


@numba.njit(cache=True)
def run(
    tasks: TaskColumns, entities: Entities, paths: PathColumns, rings: RingColumns, n_devices: int, seed: int
) -> tuple[F64, F64, F64, float, int]:
    """Run one iteration; see `topoplan.simulate.fluid` for the model and `Outcome` for what it returns."""
    n_tasks, n_entities, n_links = len(tasks.kind), len(entities.task), len(paths.bandwidth)
    start = np.full(n_tasks, -1.0)
    finish = np.full(n_tasks, -1.0)
    waits = tasks.preds.copy()
    link_bytes = np.zeros(n_links)
    random = np.empty(1, np.uint64)
    random[0] = np.uint64(seed)

    # Devices: a queue of ready tasks each.
    running = np.full(n_devices, -1, np.int32)
    head = np.full(n_devices, -1, np.int32)
    tail = np.full(n_devices, -1, np.int32)
    following = np.full(n_tasks, -1, np.int32)

    # Entities.  Slots hold the links of the drawn paths; each is a member of the list of its link.
    flowing = np.zeros(n_entities, np.bool_)
    rate = np.zeros(n_entities)
    left = np.zeros(n_entities)
    since = np.zeros(n_entities)
    after = np.zeros(n_entities)  # seconds from the last byte to the arrival
    rounds = entities.rounds.copy()
    ring = np.zeros(n_entities, np.int32)  # first entity of the ring
    mates = entities.mates.copy()  # on the first entity: flows of the round that have not arrived
    open_rings = np.zeros(n_tasks, np.int32)
    for e in range(n_entities):
        ring[e] = e if mates[e] > 0 else ring[e - 1]
        if mates[e] > 0:
            open_rings[entities.task[e]] += 1
    used = np.zeros(n_entities, np.int32)  # slots filled
    n_slots = entities.slot_ptr[n_entities]
    slot_link = np.empty(n_slots, np.int32)
    slot_load = np.empty(n_slots, np.int64)
    slot_owner = np.empty(n_slots, np.int32)
    slot_next = np.empty(n_slots, np.int32)
    slot_prev = np.empty(n_slots, np.int32)

    # Links.
    first = np.full(n_links, -1, np.int32)
    load = np.zeros(n_links, np.int64)
    share = np.full(n_links, np.inf)
    before = np.empty(n_links)
    touched = np.zeros(n_links, np.bool_)
    touched_links = np.empty(n_links, np.int32)
    n_touched = 0

    # Timed events: number t is task t, number T + e is entity e.
    times = np.empty(n_tasks + n_entities + 1)
    ids = np.empty(n_tasks + n_entities + 1, np.int32)
    n_timed = 0
    inside = np.zeros(n_tasks, np.bool_)  # all-reduces busy inside their hosts
    # Ends of flowing.
    ends = np.empty(n_entities + 1)
    who = np.empty(n_entities + 1, np.int32)
    place = np.full(n_entities, -1, np.int32)
    n_ends = 0

    # Work of the moment: tasks that became ready, entities that start.
    ready = np.empty(n_tasks + 1, np.int32)
    n_ready = 0
    for t in range(n_tasks - 1, -1, -1):  # backwards, for they are taken from the end
        if waits[t] == 0:
            ready[n_ready] = t
            n_ready += 1

    events = 0
    now, makespan, limit = 0.0, 0.0, TOGETHER
    while True:
        while n_ends > 0 and ends[0] <= limit:
            events += 1
            e = who[0]
            n_ends -= 1
            place[e] = -1
            if n_ends > 0:
                _sink(ends, who, place, n_ends, 0, ends[n_ends], who[n_ends])
            flowing[e] = False
            left[e] = 0.0
            base = entities.slot_ptr[e]
            for slot in range(base, base + used[e]):
                link = slot_link[slot]
                if slot_prev[slot] >= 0:
                    slot_next[slot_prev[slot]] = slot_next[slot]
                else:
                    first[link] = slot_next[slot]
                if slot_next[slot] >= 0:
                    slot_prev[slot_next[slot]] = slot_prev[slot]
                load[link] -= slot_load[slot]
                if not touched[link]:
                    touched[link] = True
                    touched_links[n_touched] = link
                    n_touched += 1
            n_timed = _push(times, ids, n_timed, now + after[e], n_tasks + e)

        while n_ready > 0 or (n_timed > 0 and times[0] <= limit):
            done = -1  # task that ends
            go_first, go_last = 0, 0  # entities that start
            if n_ready > 0:
                n_ready -= 1
                t = ready[n_ready]
                if tasks.kind[t] == _TRANSFER:
                    start[t] = now
                    go_first, go_last = entities.of_task[t], entities.of_task[t + 1]
                elif tasks.kind[t] == _ALLREDUCE:
                    start[t] = now
                    if entities.of_task[t] == entities.of_task[t + 1]:
                        done = t
                    else:
                        inside[t] = True
                        n_timed = _push(times, ids, n_timed, now + tasks.seconds[t], t)
                else:
                    device = tasks.device[t]
                    if running[device] < 0:
                        running[device] = t
                        start[t] = now
                        n_timed = _push(times, ids, n_timed, now + tasks.seconds[t], t)
                    elif head[device] < 0:
                        head[device] = tail[device] = t
                    else:
                        following[tail[device]] = t
                        tail[device] = t
            else:
                events += 1
                number = ids[0]
                n_timed = _pop(times, ids, n_timed)
                if number < n_tasks:
                    t = number
                    if inside[t]:
                        inside[t] = False
                        go_first, go_last = entities.of_task[t], entities.of_task[t + 1]
                    else:
                        done = t
                        device = tasks.device[t]
                        running[device] = head[device]
                        if head[device] >= 0:
                            u = head[device]
                            head[device] = following[u]
                            start[u] = now
                            n_timed = _push(times, ids, n_timed, now + tasks.seconds[u], u)
                else:
                    e = number - n_tasks
                    if not flowing[e] and left[e] > 0.0:
                        flowing[e] = True
                        rate[e] = np.inf
                        base = entities.slot_ptr[e]
                        for slot in range(base, base + used[e]):
                            link = slot_link[slot]
                            slot_prev[slot] = -1
                            slot_next[slot] = first[link]
                            if first[link] >= 0:
                                slot_prev[first[link]] = slot
                            first[link] = slot
                            load[link] += slot_load[slot]
                            link_bytes[link] += left[e] * (slot_load[slot] / LOAD)
                            if not touched[link]:
                                touched[link] = True
                                touched_links[n_touched] = link
                                n_touched += 1
                    else:
                        leader = ring[e]
                        mates[leader] -= 1
                        if mates[leader] == 0:
                            rounds[leader] -= 1
                            if rounds[leader] > 0:
                                mates[leader] = entities.mates[leader]
                                go_first, go_last = leader, leader + mates[leader]
                            else:
                                t = entities.task[e]
                                open_rings[t] -= 1
                                if open_rings[t] == 0:
                                    done = t
            for e in range(go_first, go_last):
                base = entities.slot_ptr[e]
                lead, trail = entities.lead[e], entities.trail[e]
                row = entities.row[e]
                if row >= 0:
                    path = paths.row_ptr[row]
                    if paths.row_ptr[row + 1] - path > 1:
                        draw = _uniform(random)
                        while paths.upto[path] <= draw:
                            path += 1
                    lead, trail = path_times(path, paths)
                    origin = paths.path_ptr[path]
                    used[e] = paths.path_ptr[path + 1] - origin
                    for i in range(used[e]):
                        slot_link[base + i] = paths.links[origin + i]
                        slot_load[base + i] = LOAD
                        slot_owner[base + i] = e
                else:
                    origin = rings.load_ptr[entities.ring[e]]
                    used[e] = rings.load_ptr[entities.ring[e] + 1] - origin
                    for i in range(used[e]):
                        slot_link[base + i] = rings.load_links[origin + i]
                        slot_load[base + i] = rings.load[origin + i]
                        slot_owner[base + i] = e
                left[e] = entities.volume[e] if used[e] > 0 else 0.0
                after[e] = trail
                n_timed = _push(times, ids, n_timed, now + lead, n_tasks + e)
            if done >= 0:
                finish[done] = now
                makespan = now
                for i in range(tasks.succ_ptr[done + 1] - 1, tasks.succ_ptr[done] - 1, -1):
                    n = tasks.succ[i]
                    waits[n] -= 1
                    if waits[n] == 0:
                        ready[n_ready] = n
                        n_ready += 1

        for i in range(n_touched):
            link = touched_links[i]
            before[link] = share[link]
            share[link] = paths.bandwidth[link] * LOAD / load[link] if load[link] > 0 else np.inf
        for i in range(n_touched):
            link = touched_links[i]
            touched[link] = False
            new, old = share[link], before[link]
            slot = first[link]
            while slot >= 0:
                e = slot_owner[slot]
                slot = slot_next[slot]
                if not (rate[e] > new or (rate[e] == old and new > old)):
                    continue
                smallest = entities.fastest[e]
                base = entities.slot_ptr[e]
                for s in range(base, base + used[e]):
                    smallest = min(smallest, share[slot_link[s]])
                if smallest == rate[e]:
                    continue
                if rate[e] < np.inf:
                    left[e] -= rate[e] * (now - since[e])
                since[e] = now
                rate[e] = smallest
                end = now + max(left[e], 0.0) / smallest
                at = place[e]
                if at < 0:
                    _rise(ends, who, place, n_ends, end, e)
                    n_ends += 1
                elif end < ends[at]:
                    _rise(ends, who, place, at, end, e)
                else:
                    _sink(ends, who, place, n_ends, at, end, e)
        n_touched = 0

        if n_ends == 0 and n_timed == 0:
            break
        now = np.inf
        if n_ends > 0:
            now = ends[0]
        if n_timed > 0:
            now = min(now, times[0])
        limit = now + TOGETHER
    return start, finish, link_bytes, makespan, events

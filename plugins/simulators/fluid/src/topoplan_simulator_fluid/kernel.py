"""The event loop of the fluid model.

Events are of two kinds.  Timed ones (a compute task ends, an all-reduce has finished inside its hosts, an
entity begins to flow or has arrived) lie in a heap by (time, number).  The end of flowing moves with the rates: see
`topoplan_simulator_fluid.sharing`.  Events within a picosecond happen together; afterwards the rates of entities on
links whose load changed are settled once.

Data flow: `initial_state` allocates, `advance` runs the events and allocates nothing.  A search gives a time to *stop*
at and how long it takes at least from the start of each task to the end of all behind it: the loop ends without an
answer as soon as a task would start too late, or what links have yet to carry proves that the end comes too late
(`topoplan_simulator_fluid.remaining`).

Messages within one window may have to wait for others before they flow: see `topoplan_simulator_fluid.bursts`.

Each event has a function: a task becomes ready (`_start_ready`), a task ends (`_finish_task`), an entity is sent on its
way (`_launch_flows`) or arrives (`_flow_arrived`).

Invariants between two instants, which tests check after each of them (docs/simulation.md); those of rates and rows,
7 to 12, are listed in `topoplan_simulator_fluid.rows`, that of bursts, 13, in `topoplan_simulator_fluid.bursts`:

1. No task is ready and not yet looked at.
2. ``waits`` is how many predecessors of a task have not ended.
3. The clock never falls, and no timed event is more than a picosecond behind it.
4. A device runs a task if any waits for it, and one only; its queue is in the order in which tasks became ready.
5. An entity is in one of four states: not sent, on the way to its first link (``bytes_left`` > 0), flowing (it has a
   bottleneck), or on the way to its end; only those on the way have a timed event.
6. On a leader, ``flows_left`` and ``rounds_left`` are positive until its ring has ended; ``open_rings`` counts the
   rings of a task whose leaders have rounds left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import inline_kernel, interrupted, njit, part, raise_interrupt
from topoplan_engine.network.tables import LOAD, PathColumns, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import (
    Entities,
    WayRound,
    inside_load,
    latency_of,
    one_further,
    path_times,
)
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid.bursts import BURST, Bursts, burst_begins, no_bursts
from topoplan_simulator_fluid.drawing import draw_path
from topoplan_simulator_fluid.max_min import FLOWING, Filling, filling, give_back, renew
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.queues import Timed, earliest, pop, push, timed_events
from topoplan_simulator_fluid.remaining import TOGETHER, Deadline, deadline, is_too_late
from topoplan_simulator_fluid.rows import Sharing, idle
from topoplan_simulator_fluid.sharing import add_link, crosses, end_flows, enter, settle
from topoplan_simulator_fluid.slowed import Beside, Slowed, change_messages, computes, done, slowed

__all__ = ["ALL_INSTANTS", "TOGETHER", "State", "advance", "initial_state", "run"]

#: More instants than any iteration has.
ALL_INSTANTS = 1 << 62

#: Work between two looks for a signal, and of an instant in which nothing flows; else the flows that are looked at.
_ASK, _INSTANT = 1 << 20, 1 << 5
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)
_WIRE = int(Transport.WIRE)


class State(NamedTuple):
    """What the events change; T tasks, N entities, D devices, E links.

    Attributes:
        start, finish: (T,) seconds; -1 before.
        link_bytes: (E,) bytes that crossed each link, or are flowing over it.
        draws: (R,) paths that each row has drawn.
        waits: (T,) predecessors that have not ended.
        ready: tasks that wait for nothing and have not been looked at; a stack of ``n_ready``.
        inside_hosts: (T,) the all-reduce runs inside its hosts, before its rings begin.
        open_rings: (T,) rings of an all-reduce, or transfers of a task, that have not ended.
        running: (D,) task that each device runs; -1 if it is idle.
        queue_head, queue_tail: (D,) first and last task that waits for the device; no head is -1.
        next_in_queue: (T,) task behind each in its device's queue; -1 behind the last.
        bytes_left: (N,) bytes to flow, until the entity begins to flow; 0 from then on.
        drain_latency: (N,) seconds from its last byte to its arrival.
        leader: (N,) first entity of its ring.
        flows_left, rounds_left: (N,) on a leader, flows of the round that have not arrived, and rounds to go.
        ended: (N,) room for the entities that end in one instant.
        now: (1,) the clock; infinite once nothing is left.
        makespan: (1,) when the last task so far ended.
        timed: timed events; number t is task t, number T + e is entity e.
        sharing: rates of the entities that flow.
        filling: on the wire, how these rates come about.
        slot_of_link: (E,) slot that was given to each link last.
        bursts: messages within one window.
        slowed: devices that compute slower beside messages.
    """

    start: F64
    finish: F64
    link_bytes: F64
    draws: I64
    waits: I32
    ready: I32
    n_ready: I64
    inside_hosts: NDArray[np.bool_]
    open_rings: I32
    running: I32
    queue_head: I32
    queue_tail: I32
    next_in_queue: I32
    bytes_left: F64
    drain_latency: F64
    leader: I32
    flows_left: I32
    rounds_left: I32
    ended: I32
    now: F64
    makespan: F64
    timed: Timed
    sharing: Sharing
    filling: Filling
    slot_of_link: I64
    bursts: Bursts
    slowed: Slowed


class Effect(NamedTuple):
    """What follows at once from an event; -1 where there is no such task.

    Attributes:
        computes: task that its device begins to run, unless that is too late.
        first, last: entities ``first .. last - 1`` are sent on their way.
        ends: task that ends.
    """

    computes: int
    first: int
    last: int
    ends: int


def run(
    tasks: TaskColumns,
    entities: Entities,
    paths: PathColumns,
    rings: RingColumns,
    n_devices: int,
    transport: int,
    late_ends: int,
    beside: Beside,
    seed: int,
    time_to_end: F64,
    stop: float,
) -> Any:
    """Run one iteration, which the user may interrupt; see `_run`."""
    columns = (tuple(tasks), tuple(entities), tuple(paths), tuple(rings), tuple(beside))
    outcome = _run(*columns, n_devices, transport, late_ends, seed, time_to_end, stop)
    if outcome[-1] < 0:
        raise_interrupt()
    return outcome


@njit()
def _run(
    of_tasks: Any,
    of_entities: Any,
    of_paths: Any,
    of_rings: Any,
    of_beside: Any,
    n_devices: int,
    transport: int,
    late_ends: int,
    seed: int,
    time_to_end: F64,
    stop: float,
) -> tuple[F64, F64, F64, float, int]:
    """Run one iteration; see `topoplan_simulator_fluid.model` for the model and `Outcome` for what it returns.

    Args:
        of_tasks, of_entities, of_paths, of_rings, of_beside, n_devices, transport, late_ends: what to run, on what; the
            columns as plain tuples, for those with names take longer to hand over.
        seed: draws paths.
        time_to_end: (T,) seconds from the start of each task to the end, at least; unused if ``stop`` is infinite.
        stop: seconds; when the end is proven to come no earlier, the makespan returned is infinite.

    The number of events is -1 if the user has interrupted the loop.
    """
    columns = (TaskColumns(*of_tasks), Entities(*of_entities), PathColumns(*of_paths), RingColumns(*of_rings))
    prepared = Prepared(*columns, n_devices, transport, late_ends, Beside(*of_beside))
    state = _initial_state(prepared)
    events = advance(prepared, state, seed, deadline(prepared, seed, time_to_end, stop), ALL_INSTANTS)
    return state.start, state.finish, state.link_bytes, state.makespan[0], events


@njit()
def initial_state(p: Prepared) -> State:
    """Return the state before the first instant."""
    state: State = _initial_state(p)
    return state


@part()
def _initial_state(p: Prepared) -> State:
    n_tasks, n_entities, n_links = len(p.tasks.kind), len(p.entities.task), len(p.paths.bandwidth)
    leader = np.zeros(n_entities, np.int32)
    open_rings = np.zeros(n_tasks, np.int32)
    for e in range(n_entities):
        leader[e] = e if p.entities.ring_size[e] > 0 else leader[e - 1]
        if p.entities.ring_size[e] > 0:
            open_rings[p.entities.task[e]] += 1
    ready = np.empty(n_tasks + 1, np.int32)
    n_ready = 0
    for t in range(n_tasks - 1, -1, -1):  # backwards, for they are taken from the end
        if p.tasks.preds[t] == 0:
            ready[n_ready] = t
            n_ready += 1
    return State(
        np.full(n_tasks, -1.0),
        np.full(n_tasks, -1.0),
        np.zeros(n_links),
        np.zeros(len(p.paths.pair), np.int64),
        p.tasks.preds.copy(),
        ready,
        np.full(1, n_ready),
        np.zeros(n_tasks, np.bool_),
        open_rings,
        np.full(p.n_devices, -1, np.int32),
        np.full(p.n_devices, -1, np.int32),
        np.full(p.n_devices, -1, np.int32),
        np.full(n_tasks, -1, np.int32),
        np.zeros(n_entities),
        np.zeros(n_entities),
        leader,
        p.entities.ring_size.copy(),
        p.entities.rounds.copy(),
        np.empty(n_entities, np.int32),
        np.zeros(1),
        np.zeros(1),
        timed_events(n_tasks + n_entities),
        idle(np.concatenate((p.paths.bandwidth, p.entities.caps)), p.entities.slot_ptr),
        filling(np.concatenate((p.paths.bandwidth, p.entities.caps)), n_entities if p.transport == _WIRE else 0),
        np.zeros(n_links + len(p.entities.caps), np.int64),
        no_bursts(len(p.paths.pair)),
        slowed(p.beside),
    )


@inline_kernel
def advance(p: Prepared, s: State, seed: int, d: Deadline, most: int) -> int:
    """Run up to ``most`` instants; return how many events there were, -1 if the user has interrupted.

    The clock is infinite once nothing is left; the makespan, once it is proven to come too late.
    """
    time_to_end, stop = d.time_to_end, d.stop
    events, instants, work, slows = 0, 0, 0, len(p.beside.slowdown) > 0
    while s.now[0] < np.inf and instants < most:
        now = s.now[0]
        limit = now + TOGETHER
        instants += 1
        work += _INSTANT + s.filling.counts[FLOWING]
        if work >= _ASK:
            work = 0
            if interrupted():
                return -1
        n_ended = end_flows(s.sharing, limit, s.ended)
        events += n_ended
        if p.transport == _WIRE:
            give_back(s.sharing, s.filling, s.ended, n_ended)
        for i in range(n_ended):  # their last bytes are on the way
            push(s.timed, now + s.drain_latency[s.ended[i]], len(p.tasks.kind) + s.ended[i])
        while s.n_ready[0] > 0 or _next_event(s, slows) <= limit:
            if s.n_ready[0] > 0:
                s.n_ready[0] -= 1
                task = int(s.ready[s.n_ready[0]])
                if stop < np.inf and now + time_to_end[task] >= stop:
                    s.makespan[0] = np.inf
                    return int(events)
                effect = _start_ready(p, s, task, now, slows)
            else:
                events += 1
                effect = _timed_event(p, s, slows)
            if effect.computes >= 0:
                if stop < np.inf and now + time_to_end[effect.computes] >= stop:
                    s.makespan[0] = np.inf
                    return int(events)
                _compute(p, s, effect.computes, now, slows)
            for entity in range(effect.first, effect.last):
                _launch_flow(p, s, entity, seed, now)
            if effect.ends >= 0:
                _finish_task(p, s, effect.ends, now, slows)
        if p.transport == _WIRE:
            renew(s.sharing, s.filling, p.late_ends, now)
        else:
            settle(s.sharing, now)
        s.now[0] = min(_next_event(s, slows), s.sharing.ends[1])
        if stop <= s.now[0] < np.inf or (
            d.next_look[0] <= s.now[0] < np.inf and is_too_late(p, s.sharing, s.link_bytes, d, s.now[0])
        ):
            s.makespan[0] = np.inf
            return int(events)
    return int(events)


@inline_kernel
def _next_event(s: State, slows: bool) -> float:
    """Time of the earliest timed event, the end of a task on a slowed device among them."""
    return float(min(earliest(s.timed), s.slowed.ends[1])) if slows else earliest(s.timed)


@inline_kernel
def _effect(computes: int, first: int, last: int, ends: int) -> Effect:
    """Make an `Effect` of integers of one type."""
    return Effect(np.int64(computes), np.int64(first), np.int64(last), np.int64(ends))  # type: ignore[arg-type]


@inline_kernel
def _start_ready(p: Prepared, s: State, task: int, now: float, slows: bool) -> Any:
    """Start a task that waits for nothing, or queue it on its device."""
    device = p.tasks.device[task]
    first, last = int(p.entities.of_task[task]), int(p.entities.of_task[task + 1])
    if slows:
        change_messages(p.beside, s.slowed, s.running, task, 1, now)
    if p.tasks.kind[task] == _TRANSFER:
        s.start[task] = now
        return _effect(-1, first, last, -1)
    if p.tasks.kind[task] == _COLLECTIVE:
        s.start[task] = now
        if first == last and (p.transport != _WIRE or p.tasks.seconds[task] == 0.0):
            return _effect(-1, 0, 0, task)  # FlexNetPacket ends it there, though GPUs of its one device sum
        s.inside_hosts[task] = True
        push(s.timed, now + p.tasks.seconds[task], task)
    elif s.running[device] < 0:
        return _effect(task, 0, 0, -1)
    elif s.queue_head[device] < 0:
        s.queue_head[device] = s.queue_tail[device] = task
    else:
        s.next_in_queue[s.queue_tail[device]] = task
        s.queue_tail[device] = task
    return _effect(-1, 0, 0, -1)


@inline_kernel
def _timed_event(p: Prepared, s: State, slows: bool) -> Any:
    """Take the earliest timed event: of an entity, an all-reduce inside its hosts, or a compute task."""
    if slows and s.slowed.ends[1] < earliest(s.timed):
        device = done(s.slowed)
        return _computed(s, device, s.running[device])
    number, n_tasks = pop(s.timed), len(p.tasks.kind)
    if number >= n_tasks:
        entity = number - n_tasks
        if s.bytes_left[entity] == 0.0:
            return _flow_arrived(p, s, entity)
        crosses(s.sharing, entity, s.bytes_left[entity], s.link_bytes)
        enter(s.sharing, entity, s.bytes_left[entity])
        s.bytes_left[entity] = 0.0
        return _effect(-1, 0, 0, -1)
    if s.inside_hosts[number]:
        s.inside_hosts[number] = False
        first, last = int(p.entities.of_task[number]), int(p.entities.of_task[number + 1])
        return _effect(-1, first, last, number if first == last else -1)
    return _computed(s, p.tasks.device[number], number)


@inline_kernel
def _computed(s: State, device: int, task: int) -> Any:
    """End what a device computes."""
    s.running[device] = -1
    following = int(s.queue_head[device])
    if following >= 0:
        s.queue_head[device] = s.next_in_queue[following]
    return _effect(following, 0, 0, task)


@inline_kernel
def _compute(p: Prepared, s: State, task: int, now: float, slows: bool) -> None:
    """Begin a compute task on its device, which is idle."""
    device = p.tasks.device[task]
    s.running[device] = task
    s.start[task] = now
    if slows:
        computes(p.beside, s.slowed, device, p.tasks.seconds[task], now)
    else:
        push(s.timed, now + p.tasks.seconds[task], task)


@inline_kernel
def _finish_task(p: Prepared, s: State, task: int, now: float, slows: bool) -> None:
    """End a task; successors that waited for it alone become ready, the first of them on top of the stack."""
    s.finish[task] = now
    s.makespan[0] = now
    if slows:
        change_messages(p.beside, s.slowed, s.running, task, -1, now)
    for i in range(p.tasks.succ_ptr[task + 1] - 1, p.tasks.succ_ptr[task] - 1, -1):
        successor = p.tasks.succ[i]
        s.waits[successor] -= 1
        if s.waits[successor] == 0:
            s.ready[s.n_ready[0]] = successor
            s.n_ready[0] += 1


@inline_kernel
def _flow_arrived(p: Prepared, s: State, entity: int) -> Any:
    """Take note that an entity is there: the last one of a round begins the next round, or ends the ring."""
    leader, task = int(s.leader[entity]), int(p.entities.task[entity])
    s.flows_left[leader] -= 1
    if s.flows_left[leader] == 0:
        s.rounds_left[leader] -= 1
        if s.rounds_left[leader] > 0:
            s.flows_left[leader] = p.entities.ring_size[leader]
            return _effect(-1, leader, leader + int(s.flows_left[leader]), -1)
        s.open_rings[task] -= 1
        if s.open_rings[task] == 0:
            return _effect(-1, 0, 0, task)
    return _effect(-1, 0, 0, -1)


@inline_kernel
def _launch_flow(p: Prepared, s: State, e: int, seed: int, now: float) -> None:
    """Send an entity on its way: choose its links, and when it begins to flow."""
    n_tasks, n_links = len(p.tasks.kind), len(p.paths.bandwidth)
    entities, rings, wire = p.entities, p.rings, p.transport == _WIRE
    begins, drain = now + entities.setup_latency[e], entities.drain_latency[e]
    s.sharing.flows[e].used = 0
    if entities.path_set[e] >= 0:
        path = draw_path(p.paths, s.draws, entities.path_set[e], seed)
        setup, drain = path_times(path, p.paths, wire)
        begins = now + setup
        if not wire and entities.volume[e] <= BURST and p.paths.pair[entities.path_set[e]] >= 0:
            link = p.paths.links[p.paths.path_ptr[path]]
            seconds = entities.volume[e] / p.paths.bandwidth[link]
            begins = burst_begins(s.bursts, entities.path_set[e], link, now, setup, seconds)
        if entities.ring[e] < 0:
            for i in range(p.paths.path_ptr[path], p.paths.path_ptr[path + 1]):
                add_link(s.sharing, s.slot_of_link, e, p.paths.links[i], entities.load[e])
    if entities.ring[e] >= 0:
        for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
            load = rings.load[i] * entities.load[e] // LOAD
            add_link(s.sharing, s.slot_of_link, e, rings.load_links[i], load)
        if entities.cap[e] >= 0:
            add_link(s.sharing, s.slot_of_link, e, n_links + entities.cap[e], entities.load[e])
    if entities.drawn_flows[e] > 0:
        setup, drain = _draw_ring(p, s, e, seed)
        begins = now + setup
    s.bytes_left[e] = entities.volume[e] * LOAD / entities.load[e] if s.sharing.flows[e].used > 0 else 0.0
    s.drain_latency[e] = drain
    push(s.timed, begins, n_tasks + e)


@inline_kernel
def _draw_ring(p: Prepared, s: State, e: int, seed: int) -> Any:
    """Draw a path for each flow of a coupled ring; return its seconds before it flows and after its last byte left.

    The slowest link sets the pace of the ring: one that two of its flows cross carries its bytes twice.  A flow that
    passes k devices of its host loads the link of each with (k - 1) / k of its own (`RingColumns.ranks`).
    """
    entities, paths, setup, drain = p.entities, p.paths, 0.0, 0.0
    wire, way = p.transport == _WIRE, WayRound(0.0, np.inf, 0.0, 0.0)
    turns = entities.latencies[e] // (entities.drawn_flows[e] - 1) if wire else 1
    for i in range(entities.drawn[e], entities.drawn[e] + entities.drawn_flows[e]):
        path = draw_path(paths, s.draws, p.rings.rows[i], seed)
        longest_setup, longest_drain = path_times(path, paths, wire)
        setup, drain = max(setup, longest_setup), max(drain, longest_drain)
        way = one_further(way, longest_setup, i == entities.drawn[e], turns)
        for k in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
            load = inside_load(path, paths.links[k], entities.load[e], paths)
            add_link(s.sharing, s.slot_of_link, e, paths.links[k], load)
    return latency_of(way, turns) if wire else entities.latencies[e] * setup, entities.latencies[e] * drain

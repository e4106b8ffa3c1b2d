"""The event loop of the fluid model.

Events are of two kinds.  Timed ones (a compute task ends, an all-reduce has finished inside its hosts, an
entity begins to flow or has arrived) lie in a heap by (time, number).  The end of flowing moves with the rates: see
`topoplan_simulator_fluid.sharing`.  Events within a picosecond happen together; afterwards the rates of entities on
links whose load changed are settled once.

Data flow: `run` allocates, `_loop` runs the events and allocates nothing.  A search gives a time to *stop* at and how
long it takes at least from the start of each task to the end of all behind it: the loop ends without an answer as
soon as a task would start too late.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from topoplan.arrays import F64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.compiling import await_compiled, types_of
from topoplan_engine.kernels.hashing import uniform
from topoplan_engine.kernels.jit import inline_kernel, interrupted
from topoplan_engine.network.tables import LOAD, PathColumns, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import Entities, path_times
from topoplan_simulator_fluid.queues import Timed, earliest, pop, push, timed_events
from topoplan_simulator_fluid.rows import Sharing, idle
from topoplan_simulator_fluid.sharing import add_link, crosses, end_flows, enter, settle

__all__ = ["TOGETHER", "run"]

#: Events this close, in seconds, happen together.
TOGETHER = 1e-12

#: Instants between two looks for a signal, less one: some hundredths of a second.
_ASK = (1 << 15) - 1
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


def run(*given: Any) -> Any:
    """Run one iteration: `_run`, which another process may be compiling (`compile_ahead`)."""
    await_compiled(__name__)
    outcome = _run(*given)
    if outcome[-1] < 0:
        raise KeyboardInterrupt
    return outcome


def compile_ahead() -> None:
    """Compile the kernel, half of what there is to compile, for the arrays that it is always given."""
    columns = (types_of(TaskColumns, "preds"), types_of(Entities, *Entities._fields))
    network = (types_of(PathColumns), types_of(RingColumns))
    _run.compile((*columns, *network, numba.int64, numba.int64, numba.float64[::1], numba.float64))


@numba.njit(cache=True, no_cfunc_wrapper=True)
def _run(
    tasks: TaskColumns,
    entities: Entities,
    paths: PathColumns,
    rings: RingColumns,
    n_devices: int,
    seed: int,
    behind: F64,
    stop: float,
) -> tuple[F64, F64, F64, float, int]:
    """Run one iteration; see `topoplan_simulator_fluid.model` for the model and `Outcome` for what it returns.

    Args:
        tasks, entities, paths, rings, n_devices: what to run, on what.
        seed: draws paths.
        behind: (T,) seconds from the start of each task to the end, at least; unused if ``stop`` is infinite.
        stop: seconds; when the end is proven to come no earlier, the makespan returned is infinite.

    The number of events is -1 where the user has interrupted the loop.
    """
    n_tasks, n_entities, n_links = len(tasks.kind), len(entities.task), len(paths.bandwidth)
    start = np.full(n_tasks, -1.0)
    finish = np.full(n_tasks, -1.0)
    link_bytes = np.zeros(n_links)
    drawn = np.zeros(len(paths.pair), np.int64)
    makespan, events = _loop(
        tasks,
        entities,
        paths,
        rings,
        idle(np.concatenate((paths.bandwidth, entities.caps)), entities.slot_ptr),
        behind,
        stop,
        (start, finish, link_bytes, drawn, seed),
        (tasks.preds.copy(), np.empty(n_tasks + 1, np.int32), np.zeros(n_tasks, np.bool_), np.zeros(n_tasks, np.int32)),
        (np.full((3, n_devices), -1, np.int32), np.full(n_tasks, -1, np.int32)),
        (
            np.zeros(n_entities),
            np.zeros(n_entities),
            np.zeros(n_entities, np.int32),
            entities.mates.copy(),
            entities.rounds.copy(),
            np.empty(n_entities, np.int32),
        ),
        timed_events(n_tasks + n_entities),  # number t is task t, number T + e is entity e
    )
    return start, finish, link_bytes, makespan, events


@inline_kernel
def _loop(
    tasks: TaskColumns,
    entities: Entities,
    paths: PathColumns,
    rings: RingColumns,
    sharing: Sharing,
    behind: F64,
    stop: float,
    results: Any,
    of_tasks: Any,
    of_devices: Any,
    of_entities: Any,
    timed: Timed,
) -> tuple[float, int]:
    """Run the events; return the makespan and how many there were."""
    n_tasks, n_entities, n_links = len(tasks.kind), len(entities.task), len(paths.bandwidth)
    start, finish, link_bytes, drawn, seed = results  # draws that each row has made
    # Predecessors left; tasks that became ready; all-reduces inside their hosts; rings of each that still run.
    waits, ready, inside, open_rings = of_tasks
    # The task that runs on each device, and its queue of ready tasks.
    (running, head, tail), following = of_devices
    # Bytes to flow, until the entity begins to; seconds from its last byte to the arrival; first entity of its
    # ring; on that one, flows of the round that have not arrived, and rounds to go; room for entities that end.
    left, after, ring, mates, rounds, ended = of_entities
    for e in range(n_entities):
        ring[e] = e if mates[e] > 0 else ring[e - 1]
        if mates[e] > 0:
            open_rings[entities.task[e]] += 1
    n_ready = 0
    for t in range(n_tasks - 1, -1, -1):  # backwards, for they are taken from the end
        if waits[t] == 0:
            ready[n_ready] = t
            n_ready += 1

    events, instants = 0, 0
    now, makespan, limit = 0.0, 0.0, TOGETHER
    while True:
        instants += 1
        if instants & _ASK == 0 and interrupted():
            return makespan, -1
        n_ended = end_flows(sharing, limit, ended)
        events += n_ended
        for i in range(n_ended):
            e = ended[i]
            push(timed, now + after[e], n_tasks + e)

        while n_ready > 0 or earliest(timed) <= limit:
            done = -1  # task that ends
            begun = -1  # task that begins to compute
            go_first, go_last = 0, 0  # entities that start
            if n_ready > 0:
                n_ready -= 1
                t = ready[n_ready]
                if stop < np.inf and now + behind[t] >= stop:
                    return np.inf, events
                if tasks.kind[t] == _TRANSFER:
                    start[t] = now
                    go_first, go_last = entities.of_task[t], entities.of_task[t + 1]
                elif tasks.kind[t] == _COLLECTIVE:
                    start[t] = now
                    if entities.of_task[t] == entities.of_task[t + 1]:
                        done = t
                    else:
                        inside[t] = True
                        push(timed, now + tasks.seconds[t], t)
                else:
                    device = tasks.device[t]
                    if running[device] < 0:
                        begun = t
                    elif head[device] < 0:
                        head[device] = tail[device] = t
                    else:
                        following[tail[device]] = t
                        tail[device] = t
            else:
                events += 1
                number = pop(timed)
                if number < n_tasks:
                    t = number
                    if inside[t]:
                        inside[t] = False
                        go_first, go_last = entities.of_task[t], entities.of_task[t + 1]
                    else:
                        done = t
                        device = tasks.device[t]
                        begun = head[device]
                        running[device] = -1
                        if begun >= 0:
                            head[device] = following[begun]
                            if stop < np.inf and now + behind[begun] >= stop:
                                return np.inf, events
                else:
                    e = number - n_tasks
                    if left[e] > 0.0:
                        crosses(sharing, e, left[e], link_bytes)
                        enter(sharing, e, left[e])
                        left[e] = 0.0
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
            if begun >= 0:
                running[tasks.device[begun]] = begun
                start[begun] = now
                push(timed, now + tasks.seconds[begun], begun)
            for e in range(go_first, go_last):
                lead, trail = entities.lead[e], entities.trail[e]
                row = entities.row[e]
                sharing.flows[e].used = 0
                if row >= 0:
                    path = paths.row_ptr[row]
                    if paths.row_ptr[row + 1] - path > 1:
                        draw = uniform(seed, paths.pair[row], drawn[row])
                        drawn[row] += 1
                        while paths.upto[path] <= draw:
                            path += 1
                    lead, trail = path_times(path, paths)
                    for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                        add_link(sharing, e, paths.links[i], entities.load[e])
                else:
                    for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
                        add_link(sharing, e, rings.load_links[i], rings.load[i] * entities.load[e] // LOAD)
                    if entities.cap[e] >= 0:
                        add_link(sharing, e, n_links + entities.cap[e], entities.load[e])
                left[e] = entities.volume[e] * LOAD / entities.load[e] if sharing.flows[e].used > 0 else 0.0
                after[e] = trail
                push(timed, now + lead, n_tasks + e)
            if done >= 0:
                finish[done] = now
                makespan = now
                for i in range(tasks.succ_ptr[done + 1] - 1, tasks.succ_ptr[done] - 1, -1):
                    n = tasks.succ[i]
                    waits[n] -= 1
                    if waits[n] == 0:
                        ready[n_ready] = n
                        n_ready += 1

        settle(sharing, now)
        now = min(earliest(timed), sharing.ends[1])
        if now == np.inf:
            return makespan, events
        if now >= stop:
            return np.inf, events
        limit = now + TOGETHER

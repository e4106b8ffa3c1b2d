"""Entities of the fluid model: what flows, through which links, with which latencies.

Data flow: `build` turns the tasks of a task graph, and the rows and rings that a `Network` found for them, into
`Entities`; `topoplan_simulator_fluid.kernel` runs them.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.network.tables import LOAD, PathColumns, RingColumns, Traffic
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.messages import PACKET, collective_rounds, packets

__all__ = [
    "Entities",
    "alone",
    "build",
    "path_times",
    "ring_window",
    "sure_bytes",
    "sure_uses",
    "window",
]

#: Packets that a flow may have on their way when it starts; what is left of them in the end, where the longest path has
#: one link, two, and more; and the sixteenths of a round in which a member of a ring sends: see `window`.
_FIRST, _LEAST, _PRESENT = 100.0, (2.0, 8.0, 50.0), 13
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)


class Entities(NamedTuple):
    """What flows: a transfer, a coupled ring, or one member's flow on a stepped ring.

    Attributes:
        of_task: (T+1,) entities of task ``t`` are ``of_task[t] .. of_task[t+1]``.
        task: (N,) task that it belongs to.
        row: (N,) row of paths of which it draws one; -1 for a coupled ring.
        ring: (N,) row of ``RingColumns.load_ptr`` of a coupled ring; -1 for the others.
        slot_ptr: (N+1,) running sum of the links that each can load.
        volume: (N,) bytes that flow before it ends (for a stepped flow, in one round).
        lead, trail: (N,) seconds before it flows and after its last byte left, of a coupled ring.
        fastest: (N,) bytes/s that it never exceeds.
        rounds: (N,) how often the flows of a stepped ring start anew; 1 for the others.
        mates: (N,) on the first flow of a ring, how many flows wait for each other; 0 on its others.
        cap: (N,) row of ``caps`` of a coupled ring that is never as fast as its links would let it be; else -1.
        caps: bytes/s of these rings.  Each acts as a link of its own, over which its ring flows last.
        load: (N,) units of load that its flow puts on a link, in which links are shared: `window`, `ring_window`.
    """

    of_task: I32
    task: I32
    row: I32
    ring: I64
    slot_ptr: I64
    volume: F64
    lead: F64
    trail: F64
    fastest: F64
    rounds: I32
    mates: I32
    cap: I32
    caps: F64
    load: I64


@numba.njit(cache=True)
def build(
    tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns, stepped: bool
) -> tuple[I32, I32, I32, I64, I64, F64, F64, F64, F64, I32, I32, I32, F64, I64]:
    """List the entities of all tasks, in the order of the tasks; the columns of `Entities`.

    Flows share links as their windows (`window`, `ring_window`).
    """
    n_tasks = len(tasks.kind)
    of_task = np.zeros(n_tasks + 1, np.int32)
    for t in range(n_tasks):
        made = 0
        if tasks.kind[t] == _TRANSFER:
            made = 1
        elif tasks.kind[t] == _COLLECTIVE:
            g = traffic.ring[t]
            if rings.members[g] > 1:
                made = rings.parallel[g] * (rings.members[g] if stepped or rings.drawn[g] == 1 else 1)
        of_task[t + 1] = of_task[t] + made

    count = of_task[n_tasks]
    task = np.empty(count, np.int32)
    row = np.full(count, -1, np.int32)
    ring = np.full(count, -1, np.int64)
    slot_ptr = np.zeros(count + 1, np.int64)
    volume = np.empty(count)
    lead = np.zeros(count)
    trail = np.zeros(count)
    fastest = np.full(count, np.inf)
    rounds = np.ones(count, np.int32)
    mates = np.ones(count, np.int32)
    cap = np.full(count, -1, np.int32)
    caps = np.empty(count)
    load = np.full(count, LOAD, np.int64)
    hops = _most_links(tasks, traffic, paths, rings)
    least = _LEAST[max(1, min(hops, len(_LEAST))) - 1]
    n_caps = 0
    known, found = -1.0, LOAD  # packets and window of the transfer before: most that follow each other are alike
    for t in range(n_tasks):
        at = of_task[t]
        if of_task[t + 1] == at:
            continue
        if tasks.kind[t] == _TRANSFER:
            task[at] = t
            row[at] = traffic.row[t]
            slot_ptr[at + 1] = slot_ptr[at] + _longest(row[at], paths)
            volume[at] = packets(float(tasks.size[t])) * PACKET
            sent = volume[at] / PACKET
            if sent != known:
                known, found = sent, window(sent, least)
            load[at] = found
            continue
        g = traffic.ring[t]
        m = rings.members[g]
        steps, share = collective_rounds(tasks.size[t], m, tasks.collective[t])
        drawn = stepped or rings.drawn[g] == 1
        each = packets(share / rings.parallel[g]) * PACKET
        for e in range(at, of_task[t + 1]):
            task[e] = t
            load[e] = window(each / PACKET, least) if drawn else ring_window(each / PACKET, least)
            if drawn:
                row[e] = rings.rows[rings.first[g] + e - at]
                slot_ptr[e + 1] = slot_ptr[e] + _longest(row[e], paths)
                volume[e] = each
                rounds[e] = steps
                mates[e] = m if (e - at) % m == 0 else 0
                continue
            ring[e] = rings.ring[g] + e - at
            slot_ptr[e + 1] = slot_ptr[e] + rings.load_ptr[ring[e] + 1] - rings.load_ptr[ring[e]]
            volume[e] = each * steps
            flow = rings.first[g] + (e - at) * m
            for i in range(flow, flow + m):
                for path in range(paths.row_ptr[rings.rows[i]], paths.row_ptr[rings.rows[i] + 1]):
                    path_lead, path_trail = path_times(path, paths)
                    lead[e] = max(lead[e], steps * path_lead)
                    trail[e] = max(trail[e], steps * path_trail)
                    fastest[e] = min(fastest[e], paths.slowest[path])
            links = np.inf
            for i in range(rings.load_ptr[ring[e]], rings.load_ptr[ring[e] + 1]):
                links = min(links, paths.bandwidth[rings.load_links[i]] * LOAD / rings.load[i])
            if fastest[e] < links:
                cap[e] = n_caps
                caps[n_caps] = fastest[e]
                n_caps += 1
                slot_ptr[e + 1] += 1
            fastest[e] = min(fastest[e], links)
    return (
        of_task,
        task,
        row,
        ring,
        slot_ptr,
        volume,
        lead,
        trail,
        fastest,
        rounds,
        mates,
        cap,
        caps[:n_caps].copy(),
        load,
    )


@numba.njit(cache=True)
def alone(tasks: TaskColumns, entities: Entities, paths: PathColumns) -> F64:
    """(T,) seconds that each task takes at least, from its last dependency on."""
    result = tasks.seconds.copy()
    for t in range(len(result)):
        first, last = entities.of_task[t], entities.of_task[t + 1]
        if tasks.kind[t] == _TRANSFER or (tasks.kind[t] == _COLLECTIVE and first == last):
            result[t] = 0.0
        wait = 0.0
        for e in range(first, last):
            row = entities.row[e]
            if row < 0:
                wait = max(wait, entities.lead[e] + entities.volume[e] / entities.fastest[e] + entities.trail[e])
                continue
            best = np.inf
            for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
                lead, trail = path_times(path, paths)
                best = min(best, lead + entities.volume[e] / paths.slowest[path] + trail)
            wait = max(wait, entities.rounds[e] * best)
        result[t] += wait
    return result


@numba.njit(cache=True)
def sure_bytes(op: I32, entities: Entities, paths: PathColumns, rings: RingColumns) -> F64:
    """(n, E) bytes of each operator that surely cross each link; entities that draw one of several paths do not count.

    Args:
        op: (T,) operator of each task; the last column of the result is for the largest.
        entities, paths, rings: of the task graph.
    """
    sent = np.zeros((max(0, op.max()) + 1 if len(op) else 1, len(paths.bandwidth)))
    for e in range(len(entities.task)):
        row, of = entities.row[e], sent[op[entities.task[e]]]
        if row < 0:
            for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
                of[rings.load_links[i]] += entities.volume[e] * (rings.load[i] / LOAD)
        elif paths.row_ptr[row + 1] - paths.row_ptr[row] == 1:
            path = paths.row_ptr[row]
            for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                of[paths.links[i]] += entities.volume[e] * entities.rounds[e]
    return sent


@numba.njit(cache=True)
def _most_links(tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns) -> int:
    """Links of the longest path that a message can take."""
    most = 0
    for t in range(len(tasks.kind)):
        if tasks.kind[t] == _TRANSFER:
            most = max(most, _longest(traffic.row[t], paths))
        elif tasks.kind[t] == _COLLECTIVE:
            g = traffic.ring[t]
            for i in range(rings.first[g], rings.first[g] + rings.members[g] * rings.parallel[g]):
                most = max(most, _longest(rings.rows[i], paths))
    return most


@numba.njit(cache=True)
def window(packets: float, least: float) -> int:
    """Load of a flow on a link: packets that it has on their way, on average.

    A queue serves flows as their packets come, so a flow gets a share of it as its window is one of all windows there.
    A DCTCP flow (Alizadeh et al., SIGCOMM 2010) starts with 100 packets in FlexNetPacket.  On a link where others
    send too, nearly all of them are marked.  For every window of answers the estimate a of the marked share rises by
    (1-a)/16, and the window w shrinks to w (1-a/2): first with 1/32 after the answer to the first packet.  This is
    sooner than once a round trip, for more packets are on their way than the smaller window allows; meanwhile answers
    neither send one nor widen the window, as each of the others does by 1/w (``dctcp.cpp`` and ``tcp.cpp`` of htsim).
    Short flows end before that has an effect; of long ones 2 packets are left after 740.

    Args:
        packets: that the flow sends, a flow of a stepped ring in one round.
        least: packets of the window of a flow that has sent for long.  Two where a path is one link.  Where it is two,
            a transfer that starves on one of them keeps its share of the other (`topoplan_simulator_fluid.model`) and
            holds
            up what it does not use: with more packets, 8, it starves less, and holds up less.  Where it is more, a
            window is spread over several queues, and each of them marks only what it holds beyond 50 packets, those of
            hosts on a fat-tree nothing at all: 50.
    """
    sent = _FIRST + 1.0  # in one round trip: the answer to the first, empty packet lets the window grow by one
    trips, share, on_way = 1.0, 1.0 / 32.0, sent
    size = sent * (1.0 - share / 2.0)
    judged = 1.0 + size  # answers up to the next change of the window
    while sent < packets and size > least * 1.0005:
        while judged <= sent:
            share += (1.0 - share) / 16.0
            on_way = size + max(0.0, 2.0 - on_way / size)
            size = max(least, on_way * (1.0 - share / 2.0))
            judged += size
        trips += min(1.0, (packets - sent) / size)
        sent += size
    trips += max(0.0, packets - sent) / size
    return int(np.rint(packets / trips * 16)) * (LOAD // 16)


@numba.njit(cache=True)
def ring_window(packets: float, least: float) -> int:
    """Load of a coupled ring on a link: packets that its flows have on their way, on average, while they are there.

    A member of a ring that is done with its round waits for the slowest one.  A coupled ring holds its load all the
    time and so counts 13 sixteenths: in the packet simulator, members send for 62 to 89 % of a round on one switch,
    weighted by time (six task graphs).  That was chosen with windows that change once a round trip, and grow by one
    packet in each; those of `window` are smaller, and with 13 sixteenths of them the ring beside long transfers on a
    switch would end 3 % later.

    Args:
        packets: that a flow sends in one round.
        least: packets of the window in the end, as in `window`.
    """
    share, size, sent, trips = 0.0, _FIRST, 0.0, 0.0
    while sent < packets and size > least * 1.0005:
        trips += min(1.0, (packets - sent) / size) if sent > 0.0 else 1.0
        sent += size
        share += (1.0 - share) / 16.0
        size = max(least, size * (1.0 - share / 2.0) + 1.0)
    trips += max(0.0, packets - sent) / size
    return int(np.rint(packets / trips * _PRESENT)) * (LOAD // 16)


@numba.njit(cache=True)
def sure_uses(entities: Entities, paths: PathColumns, rings: RingColumns) -> tuple[I64, I32, F64]:
    """Return the columns of `Uses` (critical_path); entities that draw one of several paths use no link."""
    n_tasks = len(entities.of_task) - 1
    ptr = np.zeros(n_tasks + 1, np.int64)
    link = np.empty(entities.slot_ptr[len(entities.task)], np.int32)
    seconds = np.empty(len(link))
    at = 0
    for t in range(n_tasks):
        for e in range(entities.of_task[t], entities.of_task[t + 1]):
            row = entities.row[e]
            if row < 0:
                for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
                    link[at] = rings.load_links[i]
                    seconds[at] = entities.volume[e] * (rings.load[i] / LOAD) / paths.bandwidth[link[at]]
                    at += 1
            elif paths.row_ptr[row + 1] - paths.row_ptr[row] == 1:
                path = paths.row_ptr[row]
                for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
                    link[at] = paths.links[i]
                    seconds[at] = entities.volume[e] * entities.rounds[e] / paths.bandwidth[link[at]]
                    at += 1
        ptr[t + 1] = at
    return ptr, link, seconds


@numba.njit(cache=True, inline="always")
def path_times(path: int, paths: PathColumns) -> tuple[float, float]:
    """Seconds before a message flows over a path, and from its last byte's departure to its arrival."""
    packet = paths.per_byte[path] - 1.0 / paths.slowest[path]
    return paths.delay[path] + paths.per_byte[path], paths.delay[path] + PACKET * max(0.0, packet)


@numba.njit(cache=True, inline="always")
def _longest(row: int, paths: PathColumns) -> int:
    longest = 0
    for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
        longest = max(longest, paths.path_ptr[path + 1] - paths.path_ptr[path])
    return longest

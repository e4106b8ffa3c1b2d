"""Entities of the fluid model: what flows, through which links, with which latencies.

Data flow: `build` turns the tasks of a task graph, and the path sets and rings of a `Network` for them, into
`Entities`; `topoplan_simulator_fluid.kernel` runs them.  `processing_times`, `guaranteed_bytes` and `link_uses` are
what lower bounds are made of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.kernels.jit import inline_kernel, kernel, njit, part
from topoplan_engine.network.tables import CHOICE, FEW, LOAD, PathColumns, RingColumns, Traffic, ring_bytes
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.critical_path import LinkUses
from topoplan_engine.simulation.messages import PACKET, Transport, collective_rounds, packets, ring_rounds

__all__ = [
    "Entities",
    "WayRound",
    "build",
    "guaranteed_bytes",
    "inside_load",
    "latency_of",
    "link_uses",
    "one_further",
    "path_times",
    "processing_times",
    "ring_window",
    "window",
]

#: Packets of the first window of a flow; packets of its last one, where the longest path has one link, two, and more;
#: and the sixteenths of a round in which a member of a ring sends: see `window` and `ring_window`.
_FIRST_WINDOW, _LAST_WINDOW, _PRESENT = 100.0, (2.0, 8.0, 50.0), 13
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)
_ALL_REDUCE = int(Collective.ALL_REDUCE)
_WIRE = int(Transport.WIRE)


class Entities(NamedTuple):
    """What flows: a transfer, a coupled ring, or one member's flow on a stepped ring.

    Attributes:
        of_task: (T+1,) entities of task ``t`` are ``of_task[t] .. of_task[t+1]``.
        task: (N,) task that it belongs to.
        path_set: (N,) row of paths of which it draws one; -1 for a coupled ring.
        ring: (N,) row of ``RingColumns.load_ptr`` of a coupled ring, or of the transfers that a representative stands
            for; -1 for the others, and for a coupled ring that draws a path for each of its flows.
        drawn: (N,) where the rows of paths of a coupled ring that draws begin in ``RingColumns.rows``; else -1.
        drawn_flows: (N,) how many paths it draws, one for each member; else 0.
        latencies: (N,) how often the latency of these paths passes: once a round.
        slot_ptr: (N+1,) running sum of the links that each can load.
        volume: (N,) bytes that flow before it ends (for a stepped flow, in one round).
        setup_latency, drain_latency: (N,) seconds before a coupled ring flows and after its last byte left; 0 for the
            others, whose latencies are those of the path that they draw.
        max_rate: (N,) bytes/s that it never exceeds.
        rounds: (N,) how often the flows of a stepped ring start anew; 1 for the others.
        ring_size: (N,) on the first flow of a ring, how many flows wait for each other; 0 on its others.
        cap: (N,) row of ``caps`` of a coupled ring that is never as fast as its links would let it be; else -1.
        caps: bytes/s of these rings.  Each acts as a link of its own, over which its ring flows last.
        load: (N,) units of load that its flow puts on a link, in which links are shared: `window`, `ring_window`.
    """

    of_task: I32
    task: I32
    path_set: I32
    ring: I64
    drawn: I64
    drawn_flows: I32
    latencies: I32
    slot_ptr: I64
    volume: F64
    setup_latency: F64
    drain_latency: F64
    max_rate: F64
    rounds: I32
    ring_size: I32
    cap: I32
    caps: F64
    load: I64


class _Messages(NamedTuple):
    """What entities are made of.

    Attributes:
        tasks, traffic, paths, rings: the task graph, and the path sets and rings of its tasks.
        stepped: whether all rings are stepped.
        wire: whether messages are sent on the wire (`Transport`).
        last_window: packets of the last window of a flow.
    """

    tasks: TaskColumns
    traffic: Traffic
    paths: PathColumns
    rings: RingColumns
    stepped: bool
    wire: bool
    last_window: float


def build(
    tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns, stepped: bool, transport: int
) -> Entities:
    """List the entities of all tasks, in the order of the tasks.

    On the wire all flows are equal; with FlexNetPacket's transport they share links as their windows (`window`,
    `ring_window`).
    """
    wire = transport == _WIRE
    columns: tuple[Any, ...] = _build(tuple(tasks), tuple(traffic), tuple(paths), tuple(rings), stepped, wire)
    return Entities(*columns)


@njit()
def _build(of_tasks: Any, of_traffic: Any, of_paths: Any, of_rings: Any, stepped: bool, wire: bool) -> Any:
    """Return the columns of entities; all are plain tuples, for those with names take longer to hand over."""
    tasks, traffic = TaskColumns(*of_tasks), Traffic(*of_traffic)
    paths, rings = PathColumns(*of_paths), RingColumns(*of_rings)
    links = 1 if wire else _most_links(tasks, traffic, paths, rings)
    last_window = _LAST_WINDOW[max(1, min(links, len(_LAST_WINDOW))) - 1]
    m = _Messages(tasks, traffic, paths, rings, stepped, wire, last_window)
    of_task = np.zeros(len(tasks.kind) + 1, np.int32)
    for t in range(len(tasks.kind)):
        of_task[t + 1] = of_task[t] + _entity_count(m, t)
    count = np.int64(of_task[len(tasks.kind)])
    entities = Entities(
        of_task,
        np.empty(count, np.int32),
        np.full(count, -1, np.int32),
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        np.zeros(count, np.int32),
        np.ones(count, np.int32),
        np.zeros(count + 1, np.int64),
        np.empty(count),
        np.zeros(count),
        np.zeros(count),
        np.full(count, np.inf),
        np.ones(count, np.int32),
        np.ones(count, np.int32),
        np.full(count, -1, np.int32),
        np.empty(count),
        np.full(count, LOAD, np.int64),
    )
    n_caps = _write_all(m, entities, np.full(len(rings.load_ptr), -1, np.int64))
    e = entities
    flowing = (e.of_task, e.task, e.path_set, e.ring, e.drawn, e.drawn_flows, e.latencies, e.slot_ptr, e.volume)
    return (
        *flowing,
        e.setup_latency,
        e.drain_latency,
        e.max_rate,
        e.rounds,
        e.ring_size,
        e.cap,
        e.caps[:n_caps].copy(),
        e.load,
    )


@inline_kernel
def _is_stepped(m: _Messages, group: int) -> bool:
    """Whether each flow of a group's rings is an entity.

    FlexNetPacket draws paths anew in every round: its rings of few hosts with a choice of paths are stepped at any
    level.
    """
    return m.stepped or (m.rings.choice[group] == FEW and not m.wire)


@inline_kernel
def _entity_count(m: _Messages, t: int) -> int:
    if m.tasks.kind[t] == _TRANSFER:
        return 1
    if m.tasks.kind[t] == _COLLECTIVE:
        group = m.traffic.ring[t]
        if m.rings.members[group] > 1:
            return int(m.rings.parallel[group] * (m.rings.members[group] if _is_stepped(m, group) else 1))
    return 0


@inline_kernel
def _write_all(m: _Messages, entities: Entities, last_of_ring: I64) -> int:
    """Write all columns; return how many rows of ``caps`` are written.

    ``last_of_ring`` is room: the last entity of each ring, -1 of those that have none yet.
    """
    n_caps = 0
    packets_before, load_before = -1.0, LOAD  # of the transfer before: most that follow each other are alike
    for t in range(len(m.tasks.kind)):
        e = entities.of_task[t]
        if entities.of_task[t + 1] == e:
            continue
        if m.tasks.kind[t] == _COLLECTIVE:
            n_caps = _write_collective(m, entities, t, n_caps, last_of_ring)
            continue
        entities.task[e] = t
        entities.path_set[e] = m.traffic.row[t]
        entities.slot_ptr[e + 1] = entities.slot_ptr[e] + _longest(entities.path_set[e], m.paths)
        if m.wire:
            entities.volume[e] = m.tasks.size[t]
            continue
        count = packets(float(m.tasks.size[t]))
        if count != packets_before:
            packets_before, load_before = count, window(count, m.last_window)
        entities.volume[e] = count * PACKET
        entities.load[e] = load_before
    return n_caps


@inline_kernel
def _write_collective(m: _Messages, entities: Entities, t: int, n_caps: int, last_of_ring: I64) -> int:
    """Write the rings of a task, or their flows; return how many rows of ``caps`` are written."""
    group, first = m.traffic.ring[t], entities.of_task[t]
    members = m.rings.members[group]
    rounds, sent, count = _round(m, t)
    for e in range(first, entities.of_task[t + 1]):
        entities.task[e] = t
        if _is_stepped(m, group):
            entities.path_set[e] = m.rings.rows[m.rings.first[group] + e - first]
            entities.slot_ptr[e + 1] = entities.slot_ptr[e] + _longest(entities.path_set[e], m.paths)
            entities.volume[e] = sent
            entities.load[e] = LOAD if m.wire else window(count, m.last_window)
            entities.rounds[e] = rounds
            entities.ring_size[e] = members if (e - first) % members == 0 else 0
        else:
            entities.volume[e] = sent * rounds
            entities.load[e] = LOAD if m.wire else ring_window(count, m.last_window)
            flows = m.rings.first[group] + (e - first) * members
            if m.rings.choice[group] >= CHOICE:
                _write_drawn_ring(m, entities, e, flows, rounds)
            else:
                entities.ring[e] = m.rings.ring[group] + e - first
                n_caps = _write_coupled_ring(m, entities, e, flows, rounds, n_caps, last_of_ring)
    return n_caps


@inline_kernel
def _round(m: _Messages, t: int) -> tuple[int, float, float]:
    """Rounds of a collective; bytes, and packets, that one flow of one of its rings sends in each."""
    group = m.traffic.ring[t]
    members, parallel = m.rings.members[group], m.rings.parallel[group]
    if m.wire:
        rounds, share = ring_rounds(m.tasks.size[t], members, m.tasks.collective[t])
        return rounds, share * ring_bytes(m.rings, group) / parallel, 0.0
    rounds, share = collective_rounds(m.tasks.size[t], members, m.tasks.collective[t])
    count = packets(share * ring_bytes(m.rings, group) / parallel)
    return rounds, count * PACKET, count


@inline_kernel
def _write_drawn_ring(m: _Messages, entities: Entities, e: int, first: int, rounds: int) -> None:
    """Write the links, the least latencies and the highest rate of a coupled ring that draws paths.

    ``first`` is its first flow.  What the paths that it draws say of latencies counts when it is sent.
    """
    members = m.rings.members[m.traffic.ring[entities.task[e]]]
    entities.drawn[e], entities.drawn_flows[e], entities.latencies[e] = first, members, rounds
    longest, drain_latency, max_rate, slots = 0.0, np.inf, np.inf, 0
    way = WayRound(0.0, np.inf, 0.0, 0.0)
    turns = rounds // (members - 1) if m.wire else 1
    for flow in range(first, first + members):
        row, shortest, fastest = m.rings.rows[flow], np.inf, 0.0
        for path in range(m.paths.row_ptr[row], m.paths.row_ptr[row + 1]):
            setup, drain = path_times(path, m.paths, m.wire)
            shortest, drain_latency = min(shortest, setup), min(drain_latency, drain)
            fastest = max(fastest, m.paths.slowest[path])
        longest, max_rate = max(longest, shortest), min(max_rate, fastest)
        way = one_further(way, shortest, flow == first, turns)
        slots += _longest(row, m.paths)
    entities.setup_latency[e] = latency_of(way, turns) if m.wire else rounds * longest
    entities.drain_latency[e] = rounds * drain_latency
    entities.max_rate[e] = max_rate
    entities.slot_ptr[e + 1] = entities.slot_ptr[e] + slots


@inline_kernel
def _write_coupled_ring(
    m: _Messages, entities: Entities, e: int, first: int, rounds: int, n_caps: int, last_of_ring: I64
) -> int:
    """Write latencies, links and rates of a coupled ring; ``first`` is its first flow; return as `_write_all`.

    On the wire they are those of the last entity of the ring, if that is of an equal collective: of as many rounds.
    """
    ring, before = entities.ring[e], last_of_ring[entities.ring[e]]
    last_of_ring[ring] = e
    is_known = m.wire and before >= 0
    if is_known and m.tasks.collective[entities.task[before]] == m.tasks.collective[entities.task[e]]:
        entities.setup_latency[e] = entities.setup_latency[before]
        entities.drain_latency[e] = entities.drain_latency[before]
        entities.max_rate[e] = entities.max_rate[before]
        entities.slot_ptr[e + 1] = entities.slot_ptr[e] + entities.slot_ptr[before + 1] - entities.slot_ptr[before]
        if entities.cap[before] >= 0:
            entities.cap[e], entities.caps[n_caps] = n_caps, entities.caps[entities.cap[before]]
            n_caps += 1
        return n_caps
    paths, rings = m.paths, m.rings
    members = rings.members[m.traffic.ring[entities.task[e]]]
    longest_of_all, way = 0.0, WayRound(0.0, np.inf, 0.0, 0.0)
    turns = rounds // (members - 1) if m.wire else 1
    for flow in range(first, first + members):
        longest = 0.0
        for path in range(paths.row_ptr[rings.rows[flow]], paths.row_ptr[rings.rows[flow] + 1]):
            setup, drain = path_times(path, paths, m.wire)
            longest = max(longest, setup)
            entities.drain_latency[e] = max(entities.drain_latency[e], rounds * drain)
            entities.max_rate[e] = min(entities.max_rate[e], paths.slowest[path])
        longest_of_all = max(longest_of_all, longest)
        way = one_further(way, longest, flow == first, turns)
    entities.setup_latency[e] = latency_of(way, turns) if m.wire else rounds * longest_of_all
    entities.slot_ptr[e + 1] = entities.slot_ptr[e] + rings.load_ptr[ring + 1] - rings.load_ptr[ring]
    link_rate = np.inf
    for i in range(rings.load_ptr[ring], rings.load_ptr[ring + 1]):
        link_rate = min(link_rate, paths.bandwidth[rings.load_links[i]] * LOAD / rings.load[i])
    if entities.max_rate[e] < link_rate:
        entities.cap[e] = n_caps
        entities.caps[n_caps] = entities.max_rate[e]
        entities.slot_ptr[e + 1] += 1
        n_caps += 1
    entities.max_rate[e] = min(entities.max_rate[e], link_rate)
    return n_caps


class WayRound(NamedTuple):
    """Latencies on the way round a ring, member by member.

    Data passes each member's path as often as it goes round, but for the last one or two, one for each time round:
    after ``turns (n-1)`` rounds it is there.  What is to be paid is the longest of such ways, which leaves the paths
    with the least latency out.

    Attributes:
        total: seconds of all paths so far.
        least: of the one path, or the two paths next to each other, that take the least.
        before, first: of the last path so far, and of the first.
    """

    total: float
    least: float
    before: float
    first: float


@inline_kernel
def one_further(way: WayRound, latency: float, is_first: bool, turns: int) -> WayRound:
    """Add the next member's path."""
    if turns == 1:
        return WayRound(way.total + latency, min(way.least, latency), latency, 0.0)
    if is_first:
        return WayRound(latency, np.inf, latency, latency)
    return WayRound(way.total + latency, min(way.least, way.before + latency), latency, way.first)


@inline_kernel
def latency_of(way: WayRound, turns: int) -> float:
    """Seconds that a ring pays for latencies."""
    if turns == 1:
        return float(way.total - way.least)
    return float(turns * way.total - min(way.least, way.before + way.first))


@njit()
def processing_times(tasks: TaskColumns, entities: Entities, paths: PathColumns, transport: int) -> F64:
    """(T,) lower bound on the seconds that each task takes, from its last dependency on."""
    wire = transport == _WIRE
    result = tasks.seconds.copy()
    for t in range(len(result)):
        first, last = entities.of_task[t], entities.of_task[t + 1]
        if tasks.kind[t] == _TRANSFER or (tasks.kind[t] == _COLLECTIVE and first == last and not wire):
            result[t] = 0.0
        longest = 0.0
        for e in range(first, last):
            row = entities.path_set[e]
            if row < 0:  # a coupled ring
                flowing = entities.volume[e] / entities.max_rate[e]
                longest = max(longest, entities.setup_latency[e] + flowing + entities.drain_latency[e])
                continue
            shortest = np.inf
            for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
                setup, drain = path_times(path, paths, wire)
                shortest = min(shortest, setup + entities.volume[e] / paths.slowest[path] + drain)
            longest = max(longest, entities.rounds[e] * shortest)
        result[t] += longest
    return result


@njit()
def guaranteed_bytes(op: I32, entities: Entities, paths: PathColumns, rings: RingColumns) -> F64:
    """(n, E) bytes of each operator that cross each link under any draw; entities with several paths do not count.

    Args:
        op: (T,) operator of each task; the last column of the result is for the largest.
        entities, paths, rings: of the task graph.
    """
    result = np.zeros((max(0, op.max()) + 1 if len(op) else 1, len(paths.bandwidth)))
    for e in range(len(entities.task)):
        row, sent = entities.path_set[e], result[op[entities.task[e]]]
        if entities.ring[e] >= 0:
            for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
                sent[rings.load_links[i]] += entities.volume[e] * (rings.load[i] / LOAD)
        elif row >= 0:
            _add_certain(row, entities.volume[e] * entities.rounds[e], paths, sent)
        for i in range(entities.drawn[e], entities.drawn[e] + entities.drawn_flows[e]):
            _add_certain(rings.rows[i], entities.volume[e], paths, sent)
    return result


@inline_kernel
def _add_certain(row: int, nbytes: float, paths: PathColumns, sent: F64) -> None:
    """Add bytes to the links of a row of paths if it has one path alone."""
    path = paths.row_ptr[row]
    if paths.row_ptr[row + 1] - path == 1:
        for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
            sent[paths.links[i]] += nbytes * (inside_load(path, paths.links[i], LOAD, paths) / LOAD)


@inline_kernel
def inside_load(path: int, link: int, load: int, paths: PathColumns) -> int:
    """Load of a link on the path of a ring's flow: of k devices that it passes in its host, each has (k - 1) / k."""
    if link < paths.first_inside:
        return load
    devices = 0
    for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
        devices += paths.links[i] >= paths.first_inside
    devices //= 2
    return load * (devices - 1) // devices if devices > 1 else load


def message_bytes(size: I64, members: I32, transport: int) -> F64:
    """(n,) bytes that each of these messages sends over an interface that it passes once.

    Args:
        size: (n,) bytes.
        members: (n,) of all-reduces on one ring; none (0,) where the messages are transfers.
        transport: see `Transport`.
    """
    sent: F64 = np.empty(len(size))
    _message_bytes(size, members, transport == _WIRE, sent)
    return sent


@kernel
def _message_bytes(size: I64, members: I32, wire: bool, sent: F64) -> None:
    for k in range(len(size)):
        if wire and len(members) == 0:
            sent[k] = float(size[k])
        elif wire:
            rounds, share = ring_rounds(size[k], members[k], _ALL_REDUCE)
            sent[k] = share * rounds
        elif len(members) == 0:
            sent[k] = packets(float(size[k])) * PACKET
        else:
            rounds, share = collective_rounds(size[k], members[k], _ALL_REDUCE)
            sent[k] = packets(share) * PACKET * rounds


def link_uses(entities: Entities, paths: PathColumns, rings: RingColumns) -> LinkUses:
    """Return the seconds that tasks take links under any draw; entities with several paths take none."""
    return LinkUses(*_link_uses(entities, paths, rings))


@njit()
def _link_uses(entities: Entities, paths: PathColumns, rings: RingColumns) -> tuple[I64, I32, F64]:
    n_tasks = len(entities.of_task) - 1
    ptr = np.zeros(n_tasks + 1, np.int64)
    link = np.empty(entities.slot_ptr[len(entities.task)], np.int32)
    seconds = np.empty(len(link))
    count = 0
    for t in range(n_tasks):
        for e in range(entities.of_task[t], entities.of_task[t + 1]):
            row = entities.path_set[e]
            if entities.ring[e] >= 0:
                for i in range(rings.load_ptr[entities.ring[e]], rings.load_ptr[entities.ring[e] + 1]):
                    link[count] = rings.load_links[i]
                    seconds[count] = entities.volume[e] * (rings.load[i] / LOAD) / paths.bandwidth[link[count]]
                    count += 1
            elif row >= 0:
                nbytes = entities.volume[e] * entities.rounds[e]
                count = _list_certain(row, nbytes, paths, link, seconds, count)
            for i in range(entities.drawn[e], entities.drawn[e] + entities.drawn_flows[e]):
                count = _list_certain(rings.rows[i], entities.volume[e], paths, link, seconds, count)
        ptr[t + 1] = count
    return ptr, link, seconds


@inline_kernel
def _list_certain(row: int, nbytes: float, paths: PathColumns, link: I32, seconds: F64, count: int) -> int:
    """List the links of a row of paths if it has one path alone; return how many are listed then."""
    path = paths.row_ptr[row]
    if paths.row_ptr[row + 1] - path == 1:
        for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
            link[count] = paths.links[i]
            part = inside_load(path, link[count], LOAD, paths) / LOAD
            seconds[count] = nbytes * part / paths.bandwidth[link[count]]
            count += 1
    return count


@part(_nrt=False)
def _most_links(tasks: TaskColumns, traffic: Traffic, paths: PathColumns, rings: RingColumns) -> int:
    """Links of the longest path that a message can take, or as many as windows tell apart."""
    most = 0
    for t in range(len(tasks.kind)):
        if tasks.kind[t] == _TRANSFER:
            most = max(most, _longest(traffic.row[t], paths))
        elif tasks.kind[t] == _COLLECTIVE:
            g = traffic.ring[t]
            for i in range(rings.first[g], rings.first[g] + rings.members[g] * rings.parallel[g]):
                most = max(most, _longest(rings.rows[i], paths))
        if most >= len(_LAST_WINDOW):
            break
    return most


@part(_nrt=False)
def window(packets: float, last_window: float) -> int:
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
        last_window: packets of the window of a flow that has sent for long.  Two if paths are one link.  If they are
            two, a transfer that starves on one of them keeps its share of the other (`topoplan_simulator_fluid.model`)
            and holds up what it does not use: with more packets, 8, it starves less, and holds up less.  If they are
            more, a window is spread over several queues, and each of them marks only what it holds beyond 50 packets,
            those of hosts on a fat-tree nothing at all: 50.
    """
    sent = _FIRST_WINDOW + 1.0  # in one round trip: the answer to the first, empty packet lets the window grow by one
    trips, share, on_way = 1.0, 1.0 / 32.0, sent
    size = sent * (1.0 - share / 2.0)
    judged = 1.0 + size  # answers up to the next change of the window
    while sent < packets and size > last_window * 1.0005:
        while judged <= sent:
            share += (1.0 - share) / 16.0
            on_way = size + max(0.0, 2.0 - on_way / size)
            size = max(last_window, on_way * (1.0 - share / 2.0))
            judged += size
        trips += min(1.0, (packets - sent) / size)
        sent += size
    trips += max(0.0, packets - sent) / size
    return int(np.rint(packets / trips * 16)) * (LOAD // 16)


@part(_nrt=False)
def ring_window(packets: float, last_window: float) -> int:
    """Load of a coupled ring on a link: packets that its flows have on their way, on average, while they are there.

    A member of a ring that is done with its round waits for the slowest one.  A coupled ring holds its load all the
    time and so counts 13 sixteenths: in the packet simulator, members send for 62 to 89 % of a round on one switch,
    weighted by time (six task graphs).  That was chosen with windows that change once a round trip, and grow by one
    packet in each; those of `window` are smaller, and with 13 sixteenths of them the ring beside long transfers on a
    switch would end 3 % later.

    Args:
        packets: that a flow sends in one round.
        last_window: see `window`.
    """
    share, size, sent, trips = 0.0, _FIRST_WINDOW, 0.0, 0.0
    while sent < packets and size > last_window * 1.0005:
        trips += min(1.0, (packets - sent) / size) if sent > 0.0 else 1.0
        sent += size
        share += (1.0 - share) / 16.0
        size = max(last_window, size * (1.0 - share / 2.0) + 1.0)
    trips += max(0.0, packets - sent) / size
    return int(np.rint(packets / trips * _PRESENT)) * (LOAD // 16)


@inline_kernel
def path_times(path: int, paths: PathColumns, wire: bool) -> tuple[float, float]:
    """Seconds before a message flows over a path, and from its last byte's departure to its arrival.

    On the wire, the latency of the path passes before the first byte is there, and no more: switches cut through.
    FlexNetPacket opens a flow with a packet of one byte and its answer, and every hop stores a packet before it sends
    it on.
    """
    if wire:
        return paths.delay[path], 0.0
    packet = paths.per_byte[path] - 1.0 / paths.slowest[path]
    return paths.delay[path] + paths.per_byte[path], paths.delay[path] + PACKET * max(0.0, packet)


@inline_kernel
def _longest(row: int, paths: PathColumns) -> int:
    longest = 0
    for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
        longest = max(longest, paths.path_ptr[path + 1] - paths.path_ptr[path])
    return longest

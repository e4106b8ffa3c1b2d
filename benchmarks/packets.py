"""Every packet of a task graph, to judge the fluid simulator on networks that nobody has measured.

    .venv/bin/python benchmarks/packets.py 40candle_16.fbuf -t fully-connected --degree 15
    .venv/bin/python benchmarks/packets.py 100dlrm_16.fbuf -t fattree:oversubscription=2 --degree 1

The transport is FlexNetPacket's (TopoOpt, NSDI'23), as far as its iteration times depend on it: packets of 8936 bytes
in FIFO queues without limit, which mark what leaves while more than 50 wait (on a fat-tree not those of hosts); a first
packet of one byte, answered at once, as all are; then DCTCP (Alizadeh et al., SIGCOMM 2010) with a first window of 100
packets, slow start until the first mark, and gain 1/16.  A first packet that is not answered within 1 ms (rings) or
10 ms (transfers), seen once a millisecond, leaves a window of one packet.  Later timeouts are not there.  It takes as
long as FlexNetPacket does: seconds to minutes.

Data flow: the stepped fluid model's columns (tasks, flows, paths) -> `_run` -> milliseconds, beside those of `fluid`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numba
import numpy as np

from topoplan import Cluster, Fabric, TaskGraph, TopoplanError
from topoplan_engine.network.tables import Network
from topoplan_engine.replay import simulate_file
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid import model as fluid

MTU, FIRST, MARKED_ABOVE = 8936, 100.0, 50
ROOM = 1 << 21  # packets on their way, and events
TASK, READY, SERVED, ARRIVED, TIMEOUT = range(5)


def packet_seconds(taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster, *, hosts_mark: bool = True, seed: int = 0):
    """Return the iteration time; ``hosts_mark`` tells whether the queues of hosts mark."""
    network = Network(fabric, cluster)
    prepared = fluid.Model(stepped=True, transport=Transport.FLEXNETPACKET).prepare(taskgraph, network)
    marks = np.ones(network.n_links, dtype=bool)
    if not hosts_mark:
        marks[: fabric.n_links] = fabric.link_src >= fabric.n_hosts
    byte = np.floor(1e12 / network.paths.bandwidth + 1e-6).astype(np.int64)
    delay = np.rint(network.paths.latency * 1e12).astype(np.int64)
    columns = prepared.tasks, prepared.entities, prepared.paths
    picoseconds = _run(*columns, cluster.n_devices, marks, byte, delay, np.random.default_rng(seed))
    if picoseconds < 0:
        raise TopoplanError(f"task graph: more than {ROOM} packets on their way at once")
    return picoseconds / 1e12


@numba.njit(cache=True)
def _push(times, orders, whats, count, time, what):
    """Add an event; ``count`` holds how many there are and how many there were."""
    at, order = count[0], count[1]
    while at > 0:
        up = (at - 1) >> 1
        if times[up] <= time:
            break
        times[at], orders[at], whats[at] = times[up], orders[up], whats[up]
        at = up
    times[at], orders[at], whats[at] = time, order, what
    count[0] += 1
    count[1] += 1


@numba.njit(cache=True)
def _pop(times, orders, whats, count):
    """Drop the first event; of equal times, the one added first."""
    count[0] -= 1
    n = count[0]
    time, order, what = times[n], orders[n], whats[n]
    at = 0
    while 2 * at + 1 < n:
        child = 2 * at + 1
        other = child + 1
        if other < n and (times[other], orders[other]) < (times[child], orders[child]):
            child = other
        if (time, order) <= (times[child], orders[child]):
            break
        times[at], orders[at], whats[at] = times[child], orders[child], whats[child]
        at = child
    times[at], orders[at], whats[at] = time, order, what


@numba.njit(cache=True)
def _queue(packet, link, events, packets, queues, byte, now):
    """Put a packet into the queue of a link."""
    times, orders, whats, count = events
    _, _, following, _, size = packets
    head, tail, length = queues
    following[packet] = -1
    if length[link] == 0:
        head[link] = packet
        _push(times, orders, whats, count, now + size[packet] * byte[link], (SERVED << 40) | link)
    else:
        following[tail[link]] = packet
    tail[link] = packet
    length[link] += 1


@numba.njit(cache=True)
def _new(flow, bytes_, free, packets):
    """Take a packet from the free ones."""
    of, hop, _, marked, size = packets
    free[0] -= 1
    packet = free[free[0] + 1]
    of[packet], hop[packet], marked[packet], size[packet] = flow, 0, False, bytes_
    return packet


@numba.njit(cache=True)
def _acknowledge(flow, marked, windows):
    """One packet has arrived: DCTCP's estimate, and the window."""
    window, threshold, share, seen, seen_marked, until, sent, acked = windows
    acked[flow] += 1
    seen[flow] += 1
    if marked:
        seen_marked[flow] += 1
        threshold[flow] = min(threshold[flow], window[flow])
    if seen[flow] >= until[flow]:
        share[flow] += (seen_marked[flow] / seen[flow] - share[flow]) / 16.0
        seen[flow] = seen_marked[flow] = 0
        if share[flow] > 0:
            window[flow] = max(1.0, window[flow] * (1.0 - share[flow] / 2.0))
            threshold[flow] = window[flow]
        until[flow] = window[flow]
    free = min(1.0, acked[flow] + window[flow] - sent[flow])
    if free > 0 and window[flow] < threshold[flow]:
        window[flow] += min(threshold[flow] - window[flow], free)
    elif free > 0:
        window[flow] += free / window[flow]


@numba.njit(cache=True)
def _run(tasks: Any, entities: Any, paths: Any, n_devices: int, marks: Any, byte: Any, delay: Any, rng: Any) -> int:
    """Run the events; return the picosecond of the last one, or -1 where there is no room."""
    n_tasks, n_flows, n_links = len(tasks.kind), len(entities.task), len(marks)
    times, orders, whats = np.empty(ROOM, np.int64), np.empty(ROOM, np.int64), np.empty(ROOM, np.int64)
    count = np.zeros(2, np.int64)
    events = times, orders, whats, count
    of, hop, following = np.empty(ROOM, np.int32), np.empty(ROOM, np.int8), np.empty(ROOM, np.int32)
    marked, size = np.empty(ROOM, np.bool_), np.empty(ROOM, np.int64)
    packets = of, hop, following, marked, size
    free = np.arange(-1, ROOM)
    free[0] = ROOM
    head, tail, length = np.empty(n_links, np.int32), np.empty(n_links, np.int32), np.zeros(n_links, np.int64)
    queues = head, tail, length

    window, threshold, share, until = np.empty(n_flows), np.empty(n_flows), np.empty(n_flows), np.empty(n_flows)
    seen, seen_marked = np.zeros(n_flows, np.int64), np.zeros(n_flows, np.int64)
    sent, acked = np.zeros(n_flows, np.int64), np.zeros(n_flows, np.int64)
    windows = window, threshold, share, seen, seen_marked, until, sent, acked
    path, tries, answered = np.empty(n_flows, np.int64), np.zeros(n_flows, np.int64), np.zeros(n_flows, np.bool_)
    total = np.rint(entities.volume / MTU).astype(np.int64)
    mates, rounds, leader = entities.mates.copy(), entities.rounds.copy(), np.zeros(n_flows, np.int64)
    rings = np.zeros(n_tasks, np.int64)
    for e in range(n_flows):
        leader[e] = e if mates[e] > 0 else leader[e - 1]
        rings[entities.task[e]] += mates[e] > 0

    waits, inside = tasks.preds.copy(), np.zeros(n_tasks, np.bool_)
    running = np.full(n_devices, -1)
    first, last, behind = np.full(n_devices, -1), np.full(n_devices, -1), np.full(n_tasks, -1)
    ready, starts = np.empty(n_tasks + 1, np.int64), np.empty(n_flows + 1, np.int64)
    for t in range(n_tasks):
        if waits[t] == 0:
            _push(times, orders, whats, count, t, (READY << 40) | t)  # a picosecond apart
    end = 0
    while count[0] > 0:
        now, kind, at = times[0], whats[0] >> 40, whats[0] & ((1 << 40) - 1)
        _pop(times, orders, whats, count)
        n_ready, n_starts, done, sender, arrived = 0, 0, -1, -1, -1
        if free[0] < 100_000 or count[0] > ROOM - 100_000:
            return -1
        if kind == READY:
            ready[0] = at
            n_ready = 1
        elif kind == TASK and inside[at]:
            inside[at] = False
            for e in range(entities.of_task[at], entities.of_task[at + 1]):
                starts[n_starts] = e
                n_starts += 1
        elif kind == TASK:
            done, device = at, tasks.device[at]
            running[device] = first[device]
            if first[device] >= 0:
                t = first[device]
                first[device] = behind[t]
                _push(times, orders, whats, count, now + np.int64(tasks.seconds[t] * 1e12), t)
        elif kind == SERVED:
            packet = head[at]
            if marks[at] and length[at] > MARKED_ABOVE:
                marked[packet] = True
            head[at] = following[packet]
            length[at] -= 1
            _push(times, orders, whats, count, now + delay[at], (ARRIVED << 40) | packet)
            if length[at] > 0:
                _push(times, orders, whats, count, now + size[head[at]] * byte[at], (SERVED << 40) | at)
        elif kind == ARRIVED:
            e = of[at]
            hop[at] += 1
            step = paths.path_ptr[path[e]] + hop[at]
            if step < paths.path_ptr[path[e] + 1]:
                _queue(at, paths.links[step], events, packets, queues, byte, now)
            else:
                free[0] += 1
                free[free[0]] = at
                sender = e
                if size[at] == 1:
                    answered[e] = True
                else:
                    _acknowledge(e, marked[at], windows)
                    if acked[e] == total[e]:
                        arrived, sender = e, -1
        else:
            e, number = at & ((1 << 24) - 1), at >> 24
            if tries[e] & 0xFFFF == number and not answered[e]:
                window[e], threshold[e] = 1.0, FIRST / 2
        if sender >= 0:
            while sent[sender] < total[sender] and sent[sender] + 1 <= acked[sender] + window[sender]:
                sent[sender] += 1
                packet = _new(sender, MTU, free, packets)
                _queue(packet, paths.links[paths.path_ptr[path[sender]]], events, packets, queues, byte, now)
        while True:
            for i in range(n_starts):
                e = starts[i]
                row, tries[e] = entities.row[e], tries[e] + 1
                path[e] = rng.integers(paths.row_ptr[row], paths.row_ptr[row + 1])
                if paths.path_ptr[path[e]] == paths.path_ptr[path[e] + 1]:
                    arrived = e  # inside one device; no two of these start together but in one ring
                    if i + 1 < n_starts:
                        mates[leader[e]] -= 1
                    continue
                window[e], threshold[e], share[e], until[e] = FIRST, 10_000.0, 0.0, 2.0
                sent[e] = acked[e] = seen[e] = seen_marked[e] = 0
                answered[e] = False
                packet = _new(e, 1, free, packets)
                _queue(packet, paths.links[paths.path_ptr[path[e]]], events, packets, queues, byte, now)
                patience = 1_000_000_000 if entities.mates[leader[e]] > 1 else 10_000_000_000
                seen_at = ((now + patience) // 1_000_000_000 + 1) * 1_000_000_000
                _push(times, orders, whats, count, seen_at, (TIMEOUT << 40) | ((tries[e] & 0xFFFF) << 24) | e)
            n_starts = 0
            if arrived >= 0:
                ring = leader[arrived]
                arrived = -1
                mates[ring] -= 1
                if mates[ring] == 0:
                    rounds[ring] -= 1
                    if rounds[ring] > 0:
                        mates[ring] = entities.mates[ring]
                        for e in range(ring, ring + mates[ring]):
                            starts[n_starts] = e
                            n_starts += 1
                        continue
                    rings[entities.task[ring]] -= 1
                    if rings[entities.task[ring]] == 0:
                        done = entities.task[ring]
            if done >= 0:
                end = now
                for i in range(tasks.succ_ptr[done], tasks.succ_ptr[done + 1]):
                    t = tasks.succ[i]
                    waits[t] -= 1
                    if waits[t] == 0:
                        ready[n_ready] = t
                        n_ready += 1
                done = -1
            if n_ready == 0:
                break
            t = ready[0]
            n_ready -= 1
            ready[:n_ready] = ready[1 : n_ready + 1].copy()
            if tasks.device[t] >= 0:
                device = tasks.device[t]
                if running[device] < 0:
                    running[device] = t
                    _push(times, orders, whats, count, now + np.int64(tasks.seconds[t] * 1e12), t)
                elif first[device] < 0:
                    first[device] = last[device] = t
                else:
                    behind[last[device]] = t
                    last[device] = t
            elif entities.of_task[t] == entities.of_task[t + 1]:
                done = t
            elif entities.mates[entities.of_task[t]] > 1:
                inside[t] = True
                _push(times, orders, whats, count, now + np.int64(tasks.seconds[t] * 1e12), t)
            else:
                starts[0] = entities.of_task[t]
                n_starts = 1
    return end


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="task graph or plan")
    parser.add_argument("-t", "--topology", help="network for the file's hosts; its own unless given")
    parser.add_argument("--degree", type=int, help="network interfaces of each host")
    given = parser.parse_args()
    plans = {
        level: simulate_file(
            given.file,
            topology=given.topology,
            degree=given.degree,
            simulator=f"fluid:level={level},transport=flexnetpacket",
        )
        for level in ("coupled", "stepped")
    }
    plan = plans["coupled"]
    found = packet_seconds(
        plan.taskgraph, plan.fabric, plan.cluster, hosts_mark=not plan.fabric.name.startswith("fattree")
    )
    print(f"packets  {found * 1e3:12.4f} ms")
    for level, simulated in plans.items():
        assert simulated.timeline is not None
        seconds = simulated.timeline.makespan
        print(f"{level}  {seconds * 1e3:12.4f} ms  {100 * (seconds / found - 1):+.2f} %")


if __name__ == "__main__":
    main()

"""FlexNetPacket's transport packet by packet, in plain Python: slow, and equal to the kernel to the last bit.

Tests compare it with `topoplan_simulator_fluid.packets` on random task graphs and fabrics.  What flows over which rows
of paths, and which of these it draws, is that of `topoplan_reference.fluid`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.columns import Outcome
from topoplan_reference.fluid import FluidRun, _Flow
from topoplan_simulator_fluid.model import Model

__all__ = ["packets_reference"]

_MSS = 8936
_MS = 10**9
_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)


def packets_reference(taskgraph: TaskGraph, network: Network, model: Model) -> Outcome:
    """Run one iteration."""
    return _Run(taskgraph, network, model).run()


class _Message:
    """A connection that sends one message: DCTCP of htsim."""

    def __init__(self, flow: _Flow, links: list[int], patience: int) -> None:
        self.flow, self.links, self.size = flow, links, max(_MSS, int(flow.volume))
        self.cwnd, self.ssthresh, self.past_cwnd = 100 * _MSS, 10_000 * _MSS, 2 * _MSS
        self.alfa, self.seen, self.marked, self.dupacks = 0.0, 0, 0, 0
        self.sent = self.acked = self.arrived = self.recover = self.rtt = self.mdev = 0
        self.rto, self.timeout = patience, None
        self.established = self.finished = self.pending = self.recovering = False


class _Packet:
    def __init__(self) -> None:
        self.stamp = 0

    def reset(self, message: _Message, first_byte: int, size: int) -> None:
        self.message, self.first_byte, self.size, self.hop, self.mark = message, first_byte, size, 0, False


class _Run:
    """One iteration."""

    def __init__(self, taskgraph: TaskGraph, network: Network, model: Model) -> None:
        self.fluid = FluidRun(taskgraph, network, model._replace(stepped=True))
        self.taskgraph, self.network = taskgraph, network
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now = self.makespan = self.events = self.ended = 0
        self.queue: dict[int, deque[_Packet]] = {link: deque() for link in range(network.n_links)}
        self.pipe: dict[int, deque[tuple[int, _Packet]]] = {link: deque() for link in range(network.n_links)}
        self.link_bytes, self.spare, self.watched = Counter[int](), list[_Packet](), dict[int, _Message]()
        self.waits = taskgraph.predecessor_counts().tolist()
        self.ready: list[deque[int]] = [deque() for _ in range(network.cluster.n_devices)]
        self.running: list[int | None] = [None] * network.cluster.n_devices
        self.start, self.finish = [-1] * taskgraph.n_tasks, [-1] * taskgraph.n_tasks

    def at(self, time: int, do: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (time, next(self.order), do))

    def run(self) -> Outcome:
        first = [t for t in _hash_order(self.taskgraph.n_tasks) if self.waits[t] == 0]
        for delay, t in enumerate(first):
            self.at(delay, lambda t=t: self.task(t))
        self.at(_MS, self.look)
        while self.heap and self.ended < self.taskgraph.n_tasks:
            self.now, _, do = heapq.heappop(self.heap)
            self.events += 1
            do()
        seconds = [np.array([-1.0 if ps < 0 else ps / 1e12 for ps in times]) for times in (self.start, self.finish)]
        moved = np.array([float(self.link_bytes[link]) for link in range(self.network.n_links)])
        return Outcome(*seconds, moved, self.makespan / 1e12, self.events)

    def ps(self, seconds: float) -> int:
        return math.ceil(seconds * 1e12 - 1e-4)

    def task(self, t: int) -> None:
        kind, device = self.taskgraph.kind[t], int(self.taskgraph.device[t])
        if kind in (TaskKind.TRANSFER, TaskKind.COLLECTIVE):
            self.start[t] = self.now
            if not self.fluid.flows[t]:
                self.end(t)
            inside = self.ps(float(self.taskgraph.seconds[t])) if kind == TaskKind.COLLECTIVE else 0
            for flow in self.fluid.flows[t]:
                self.at(self.now + inside, lambda flow=flow: self.open(flow))
        elif self.running[device] is None:
            self.compute(t, device)
        else:
            self.ready[device].append(t)

    def compute(self, t: int, device: int) -> None:
        self.start[t], self.running[device] = self.now, t
        self.at(self.now + self.ps(float(self.taskgraph.seconds[t])), lambda: self.computed(t, device))

    def computed(self, t: int, device: int) -> None:
        self.running[device] = None
        self.end(t)
        if self.ready[device]:
            self.compute(self.ready[device].popleft(), device)

    def end(self, t: int) -> None:
        self.finish[t] = self.makespan = self.now
        self.ended += 1
        for n in self.taskgraph.successors(t).tolist():
            self.waits[n] -= 1
            if self.waits[n] == 0:
                self.at(self.now, lambda n=n: self.task(n))

    def open(self, flow: _Flow) -> None:
        paths = self.network.paths
        path = self.fluid._draw(flow.path_set)
        links = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]].tolist()
        of_ring = self.taskgraph.kind[flow.task] == TaskKind.COLLECTIVE and paths.pair[flow.path_set] >= 0
        message = _Message(flow, links, _MS if of_ring else 10 * _MS)
        if not links:
            message.finished = True
            self.arrived(flow)
            return
        self.watched[flow.number] = message  # in the place of an earlier one of this flow, if that is still there
        self.emit(message, 0)

    def arrived(self, flow: _Flow) -> None:
        leader = flow.mates[0]
        leader.arrived += 1
        if leader.arrived < len(leader.mates):
            return
        leader.arrived = 0
        leader.rounds -= 1
        if leader.rounds > 0:
            for mate in leader.mates:
                self.at(self.now, lambda mate=mate: self.open(mate))
        elif all(f.mates[0].rounds == 0 for f in self.fluid.flows[flow.task]):
            self.end(flow.task)

    def emit(self, m: _Message, behind: int) -> None:
        packet = self.spare.pop() if self.spare else _Packet()
        if m.established:
            packet.reset(m, behind + 1, _MSS)
            packet.stamp = self.now
        else:
            packet.reset(m, 1, 1)
            m.sent = 1
        self.enqueue(packet)
        if m.timeout is None:
            m.timeout = self.now + m.rto

    def enqueue(self, packet: _Packet) -> None:
        link = packet.message.links[packet.hop]
        self.queue[link].append(packet)
        if len(self.queue[link]) == 1:
            self.serve(link)

    def serve(self, link: int) -> None:
        size = self.queue[link][0].size
        self.at(self.now + self.ps(size / float(self.network.paths.bandwidth[link])), lambda: self.served(link))

    def served(self, link: int) -> None:
        queue = self.queue[link]
        queue[0].mark |= sum(packet.size for packet in queue) > 50 * _MSS
        packet = queue.popleft()
        self.link_bytes[link] += packet.size if packet.size > 1 else 0
        self.pipe[link].append((self.now + self.ps(float(self.network.paths.latency[link])), packet))
        if len(self.pipe[link]) == 1:
            self.at(self.pipe[link][0][0], lambda: self.piped(link))
        if queue:
            self.serve(link)

    def piped(self, link: int) -> None:
        _, packet = self.pipe[link].popleft()
        packet.hop += 1
        if packet.hop < len(packet.message.links):
            self.enqueue(packet)
        else:
            self.spare.append(packet)
            m = packet.message
            if not m.finished:
                if packet.first_byte == m.arrived + 1:
                    m.arrived += packet.size
                self.acknowledge(m, packet)
        if self.pipe[link]:
            self.at(self.pipe[link][0][0], lambda: self.piped(link))

    def acknowledge(self, m: _Message, packet: _Packet) -> None:
        self.judge(m, packet.mark)
        seqno = m.arrived
        m.established |= seqno == 1
        took = self.now - packet.stamp
        if took > 0:
            if m.rtt > 0:
                m.mdev, m.rtt = 3 * m.mdev // 4 + abs(took - m.rtt) // 4, 7 * m.rtt // 8 + took // 8
            else:
                m.rtt, m.mdev = took, took // 2
            m.rto = m.rtt + 4 * m.mdev
        m.rto = max(m.rto, 10 * _MS)
        if seqno >= m.size:
            m.finished = True
            self.arrived(m.flow)
            return
        if seqno > m.acked:
            self.advance(m, seqno)
        elif m.recovering:
            m.cwnd += _MSS
        else:
            m.dupacks += 1
            if m.dupacks == 3 and m.acked >= m.recover:
                self.deflate(m)
                m.cwnd, m.recovering, m.recover = m.ssthresh + 3 * _MSS, True, m.sent
                self.emit(m, m.acked)
        while m.acked + m.cwnd >= m.sent + _MSS and m.sent < m.size:
            self.emit(m, m.sent)
            m.sent += _MSS

    def judge(self, m: _Message, mark: bool) -> None:
        m.seen += 1
        if mark:
            m.marked += 1
            m.ssthresh = min(m.ssthresh, m.cwnd)
        if m.seen * _MSS >= m.past_cwnd:
            m.alfa = 15.0 / 16.0 * m.alfa + 1.0 / 16.0 * (m.marked / m.seen)
            m.seen = m.marked = 0
            if m.alfa > 0:
                m.cwnd = m.ssthresh = max(_MSS, int(m.cwnd * (1.0 - m.alfa / 2.0)))
            m.past_cwnd = m.cwnd

    def advance(self, m: _Message, seqno: int) -> None:
        m.timeout = self.now + m.rto
        if seqno >= m.sent:
            m.sent, m.timeout = seqno, None
        new, m.acked = seqno - m.acked, seqno
        if not m.recovering:
            m.dupacks = 0
            newly = min(m.acked + m.cwnd - m.sent, _MSS)
            if newly >= 0:
                m.cwnd += min(m.ssthresh - m.cwnd, newly) if m.cwnd < m.ssthresh else newly * _MSS // m.cwnd
        elif seqno >= m.recover:
            m.cwnd = min(m.ssthresh, m.sent - seqno + _MSS)
            m.dupacks, m.recovering = 0, False
        else:
            m.cwnd = max(m.cwnd - new, 0) + _MSS
            self.emit(m, m.acked)

    def deflate(self, m: _Message) -> None:
        m.seen = m.marked = 0
        m.ssthresh, m.past_cwnd = max(m.cwnd // 2, 2 * _MSS), m.cwnd

    def look(self) -> None:
        for number, m in list(self.watched.items()):
            if m.finished:
                del self.watched[number]
            elif m.timeout is not None and self.now > m.timeout and m.sent > 0 and not m.pending:
                m.pending, too_late = True, self.now - m.timeout
                while too_late > _MS:
                    too_late >>= 1
                self.at(self.now + (_MS - too_late) // 200, lambda m=m: self.again(m))
                m.rto *= 2
                m.timeout = self.now + m.rto
        if self.heap:
            self.at(self.now + _MS, self.look)

    def again(self, m: _Message) -> None:
        if m.finished or not m.pending:
            return
        m.pending = False
        if m.recovering:
            m.cwnd = min(m.ssthresh, m.sent - m.acked + _MSS)
        self.deflate(m)
        m.cwnd, m.recovering, m.dupacks, m.recover = _MSS, False, 0, m.sent
        if m.established:
            m.sent = m.acked + _MSS
        self.emit(m, m.acked)


def _hash_order(n: int) -> list[int]:
    """Order of ``std::unordered_map`` for keys 0 .. n - 1: in front of the others, which a rehash turns round."""
    keys: deque[int] = deque()
    for key in range(n):
        if key in _SIZES:
            keys.reverse()
        keys.appendleft(key)
    return list(keys)

"""The fluid model in plain Python: slow, short, and equal to the kernel to the last bit.

Tests compare it with `topoplan_simulator_fluid.model` on random task graphs and fabrics.  It shares with the kernel
only what a `Network` knows, paths, rings and their loads, and the arithmetic of virtual time (see
`topoplan_simulator_fluid.sharing`).  Queues, all-reduces and shares are done again without cleverness: after every
event all flows look for their bottleneck anew.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque

import numpy as np

from topoplan.arrays import I32
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.network.star import switch_links
from topoplan_engine.network.tables import CHOICE, FEW, LOAD, Network
from topoplan_engine.simulation.columns import Outcome
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid.model import Model

__all__ = ["FluidRun", "fluid_reference"]

_PACKET = 8936
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF


def fluid_reference(taskgraph: TaskGraph, network: Network, model: Model) -> Outcome:
    """Run one iteration of the fluid model."""
    return FluidRun(taskgraph, network, model).run()


class _Flow:
    """Something that flows: a transfer, a coupled ring or a flow of a stepped ring."""

    def __init__(self, number: int, task: int, volume: float) -> None:
        self.number, self.task, self.volume, self.unit = number, task, volume, LOAD
        self.path_set, self.setup_latency, self.drain_latency, self.max_rate = -1, 0.0, 0.0, math.inf
        self.links: dict[int, int] | Counter[int] = {}
        self.drawn: list[int] = []  # rows of which a coupled ring draws a path for each of its flows
        self.latencies = 1
        self.mates: list[_Flow] = [self]
        self.rounds, self.arrived = 1, 0
        self.left = self.tag = 0.0
        self.bottleneck: int | None = None


class FluidRun:
    """One iteration of the fluid model."""

    def __init__(self, taskgraph: TaskGraph, network: Network, model: Model) -> None:
        self.taskgraph, self.network, self.model = taskgraph, network, model
        self.wire = model.transport == Transport.WIRE
        self.exact = switch_links(network) is not None
        self.level: dict[int, int] = {}
        self.entered = self.left_since = 0
        self.freed: dict[int, int] = Counter()
        self.stale = False
        self.traffic = network.lower(taskgraph)
        self.drawn: Counter[int] = Counter()
        self.bursts: dict[int, tuple[int, float, float, float]] = {}
        self.flows: dict[int, list[_Flow]] = {}
        self.numbers = taskgraph.n_tasks
        self.timed: list[tuple[float, int]] = []
        self.active: dict[int, _Flow] = {}
        self.waits = taskgraph.predecessor_counts().tolist()
        self.queue: list[deque[int]] = [deque() for _ in range(network.cluster.n_devices)]
        self.busy = [False] * network.cluster.n_devices
        self.slowdown = taskgraph.slowdown.tolist()
        self.messages, self.running = [0] * len(self.slowdown), [-1] * len(self.slowdown)
        self.work: dict[int, tuple[float, float, float]] = {}  # of a slowed device: seconds left, since when, the end
        self.start = np.full(taskgraph.n_tasks, -1.0)
        self.finish = np.full(taskgraph.n_tasks, -1.0)
        self.link_bytes = np.zeros(network.n_links)
        self.inside: set[int] = set()
        self.events, self.now, self.makespan = 0, 0.0, 0.0
        self.by_number: dict[int, _Flow] = {}
        self.capacity = dict(enumerate(network.paths.bandwidth.tolist()))
        self.load: dict[int, int] = Counter()
        self.share: dict[int, float] = {}
        self.served: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.touched: set[int] = set()
        hops = max(self._hops(), default=0)
        self.least = 2.0 if hops < 2 else 8.0 if hops == 2 else 50.0
        for t in range(taskgraph.n_tasks):
            self.flows[t] = self._make(t)
            self.by_number.update({flow.number: flow for flow in self.flows[t]})

    def _hops(self) -> list[int]:
        """Numbers of links of all paths that anything can take."""
        paths, rings = self.network.paths, self.network.rings
        rows = [int(row) for row in self.traffic.row if row >= 0]
        for ring in {int(ring) for ring in self.traffic.ring if ring >= 0}:
            first = int(rings.first[ring])
            rows += rings.rows[first : first + int(rings.members[ring] * rings.parallel[ring])].tolist()
        lengths = np.diff(paths.path_ptr)
        return [int(lengths[path]) for row in rows for path in range(paths.row_ptr[row], paths.row_ptr[row + 1])]

    def _make(self, t: int) -> list[_Flow]:
        kind, size, rings = self.taskgraph.kind[t], int(self.taskgraph.size[t]), self.network.rings_in_full
        if kind == TaskKind.TRANSFER:
            flow = _Flow(self._number(), t, self._sent(float(size)))
            flow.unit = self._unit(flow.volume)
            flow.path_set = int(self.traffic.row[t])
            return [flow]
        if kind != TaskKind.COLLECTIVE:
            return []
        ring = int(self.traffic.ring[t])
        m, k = int(rings.members[ring]), int(rings.parallel[ring])
        if m == 1:
            return []
        n = int(rings.ranks[ring])
        rounds, share = self._rounds(size, m, 2 if self.taskgraph.collective[t] == Collective.ALL_REDUCE else 1)
        share *= m * (n - 1) / (n * (m - 1))  # several devices of a host send no more rounds, but more bytes
        made = []
        for r in range(k):
            first = int(rings.first[ring]) + r * m
            rows = rings.rows[first : first + m].tolist()
            volume, choice = self._sent(share / k), int(rings.choice[ring])
            if self.model.stepped or (choice == FEW and not self.wire):
                mates = [_Flow(self._number(), t, volume) for _ in rows]
                for flow, row in zip(mates, rows, strict=True):
                    flow.path_set, flow.mates, flow.rounds, flow.unit = row, mates, rounds, self._unit(volume)
                made += mates
                continue
            flow = _Flow(self._number(), t, volume * rounds)
            flow.unit = self._ring_unit(volume)
            if choice >= CHOICE:
                flow.drawn, flow.latencies = rows, rounds
            else:
                self._load_links(flow, int(rings.ring[ring]) + r, rows, rounds)
            made.append(flow)
        return made

    def _load_links(self, flow: _Flow, ring: int, rows: list[int], rounds: int) -> None:
        """Give a coupled ring its links, latencies and highest rate."""
        paths, rings = self.network.paths, self.network.rings_in_full
        used = slice(*rings.load_ptr[ring:][:2].tolist())
        raw = dict(zip(rings.load_links[used].tolist(), rings.load[used].tolist(), strict=True))
        flow.links = {link: load * flow.unit // LOAD for link, load in raw.items()}
        setups = [
            max(self._times(path)[0] for path in range(paths.row_ptr[row], paths.row_ptr[row + 1])) for row in rows
        ]
        flow.setup_latency = self._latency(setups, rounds)
        for path in (p for row in rows for p in range(paths.row_ptr[row], paths.row_ptr[row + 1])):
            drain = self._times(path)[1]
            flow.drain_latency = max(flow.drain_latency, rounds * drain)
            flow.max_rate = min(flow.max_rate, float(paths.slowest[path]))
        if flow.max_rate < min(self.capacity[link] * LOAD / load for link, load in raw.items()):
            own = len(self.capacity)  # a link of its own, as fast as the slowest path
            self.capacity[own], flow.links[own] = flow.max_rate, flow.unit

    def _latency(self, setups: list[float], rounds: int) -> float:
        """Seconds of so many paths round a ring, where they are longest; with FlexNetPacket, of the longest in each."""
        if not self.wire:
            return rounds * max(setups)
        total = 0.0
        for setup in setups:
            total += setup
        twice = rounds > len(setups) - 1
        left_out = [a + b for a, b in zip(setups, setups[1:] + setups[:1], strict=True)] if twice else setups
        return rounds // (len(setups) - 1) * total - min(left_out)

    def _rounds(self, size: int, m: int, turns: int) -> tuple[int, float]:
        """Rounds of a collective, and bytes of a member in each."""
        if self.wire:
            return turns * (m - 1), 2 * size / turns / m
        whole = size * 2 // turns  # of an all-gather or reduce-scatter, half of an all-reduce
        if whole < 9000 * m:
            return 1, float(whole * turns * (m - 1) // m // m)
        return 1 if whole * m <= 18000 * m * (m - 1) else turns * (m - 1), float(whole // m)

    def _sent(self, size: float) -> float:
        """Bytes that a message of this size sends: with FlexNetPacket, whole packets."""
        return size if self.wire else max(1.0, math.ceil(size / _PACKET)) * _PACKET

    def _ring_unit(self, volume: float) -> int:
        """Load of a coupled ring: 13 sixteenths of the mean window of its flows, which changes once a round trip."""
        if self.wire:
            return LOAD
        packets, sent, trips = volume / _PACKET, 0.0, 0.0
        window, marked = 100.0, 0.0
        while sent < packets and window > 1.0005 * self.least:
            trips += 1.0 if sent == 0.0 else min(1.0, (packets - sent) / window)
            sent += window
            marked += (1.0 - marked) / 16.0
            window = max(self.least, window * (1.0 - marked / 2.0) + 1.0)
        trips += max(0.0, packets - sent) / window
        return round(13 * packets / trips) * (LOAD // 16)

    def _unit(self, volume: float) -> int:
        """Load of a flow: sixteenths of its mean window, which changes with every window of answers."""
        if self.wire:
            return LOAD
        packets, sent, trips = volume / _PACKET, 101.0, 1.0
        marked, on_way = 1.0 / 32.0, 101.0
        window = on_way * (1.0 - marked / 2.0)
        judged = 1.0 + window
        while sent < packets and window > 1.0005 * self.least:
            while judged <= sent:
                marked += (1.0 - marked) / 16.0
                on_way = window + max(0.0, 2.0 - on_way / window)
                window = max(self.least, on_way * (1.0 - marked / 2.0))
                judged += window
            trips += min(1.0, (packets - sent) / window)
            sent += window
        trips += max(0.0, packets - sent) / window
        return round(16 * packets / trips) * (LOAD // 16)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers - 1

    def _times(self, path: int) -> tuple[float, float]:
        paths = self.network.paths
        if self.wire:
            return float(paths.delay[path]), 0.0
        delay, per_byte = float(paths.delay[path]), float(paths.per_byte[path])
        return delay + per_byte, delay + _PACKET * max(0.0, per_byte - 1.0 / float(paths.slowest[path]))

    def run(self) -> Outcome:
        self._begin([t for t, n in enumerate(self.waits) if n == 0])
        limit = 1e-12
        while True:
            for flow in sorted(self.active.values(), key=lambda f: f.number):
                if self._end_of(flow) <= limit:
                    self.events += 1
                    flow.left = 0.0
                    del self.active[flow.number]
                    self._load(flow, -1)
                    self.left_since += 1
                    heapq.heappush(self.timed, (self.now + flow.drain_latency, flow.number))
            while (first := self._first()) is not None and first[0] <= limit:
                self.events += 1
                if first[1] < 0:
                    self._happen(heapq.heappop(self.timed)[1])
                else:
                    self._done(first[1])
            self._share()
            following = [self._end_of(flow) for flow in self.active.values()] + [time for time, _ in self.timed[:1]]
            following += [end for _, _, end in self.work.values()]
            if not following:
                return Outcome(self.start, self.finish, self.link_bytes, self.makespan, self.events)
            self.now = min(following)
            limit = self.now + 1e-12

    def _first(self) -> tuple[float, int] | None:
        """Return the time of the next event, and the slowed device that is done then; -1 for a timed event."""
        timed = [(self.timed[0][0], -1)] if self.timed else []
        return min([*timed, *((end, device) for device, (_, _, end) in self.work.items())], default=None)

    def _pace(self, device: int) -> float:
        return 1.0 + self.slowdown[device] if self.messages[device] else 1.0

    def _change(self, t: int, by: int) -> None:
        """Let a message of a task begin or end on its devices."""
        inside = self.taskgraph.kind[t] == TaskKind.COLLECTIVE and self.taskgraph.seconds[t] > 0
        if not self.slowdown or not (self.flows[t] or inside):
            return
        is_transfer = self.taskgraph.kind[t] == TaskKind.TRANSFER
        ends = (self.taskgraph.src[t], self.taskgraph.dst[t]) if is_transfer else self.taskgraph.members(t)
        for device in sorted({int(each) for each in ends}):
            before = self._pace(device)
            self.messages[device] += by
            if device in self.work and self._pace(device) != before:
                left, since, _ = self.work[device]
                left = max(0.0, left - (self.now - since) / before)
                self.work[device] = left, self.now, self.now + left * self._pace(device)

    def _begin(self, tasks: list[int]) -> None:
        """Start tasks that are ready; those that thereby get ready come before the rest."""
        stack = tasks[::-1]
        while stack:
            t = stack.pop()
            kind = self.taskgraph.kind[t]
            self._change(t, 1)
            if kind == TaskKind.TRANSFER:
                self.start[t] = self.now
                self._go(self.flows[t])
            elif kind == TaskKind.COLLECTIVE:
                self.start[t] = self.now
                if self.flows[t] or (self.wire and self.taskgraph.seconds[t] > 0.0):
                    self.inside.add(t)
                    heapq.heappush(self.timed, (self.now + float(self.taskgraph.seconds[t]), t))
                else:
                    stack += self._end(t)[::-1]
            else:
                self.queue[self.taskgraph.device[t]].append(t)
                self._work(int(self.taskgraph.device[t]))

    def _work(self, device: int) -> None:
        if self.queue[device] and not self.busy[device]:
            t = self.queue[device].popleft()
            self.busy[device] = True
            self.start[t] = self.now
            seconds = float(self.taskgraph.seconds[t])
            if self.slowdown:
                self.running[device] = t
                self.work[device] = seconds, self.now, self.now + seconds * self._pace(device)
            else:
                heapq.heappush(self.timed, (self.now + seconds, t))

    def _done(self, device: int) -> None:
        """End what a slowed device computes."""
        del self.work[device]
        self._computed(self.running[device])

    def _computed(self, t: int) -> None:
        device = int(self.taskgraph.device[t])
        self.busy[device] = False
        self._work(device)
        self._begin(self._end(t))

    def _end(self, t: int) -> list[int]:
        self.finish[t] = self.makespan = self.now
        self._change(t, -1)
        got_ready = []
        for n in self.taskgraph.successors(t).tolist():
            self.waits[n] -= 1
            if self.waits[n] == 0:
                got_ready.append(n)
        return got_ready

    def _happen(self, number: int) -> None:
        if number in self.inside:
            self.inside.remove(number)
            self._go(self.flows[number])
            if not self.flows[number]:
                self._begin(self._end(number))
        elif number < self.taskgraph.n_tasks:
            self._computed(number)
        elif self.by_number[number].left > 0.0:
            flow = self.by_number[number]
            flow.bottleneck = None
            self.active[number] = flow
            self._load(flow, 1)
            self.entered += 1
            for link, load in flow.links.items():
                if link < len(self.link_bytes):
                    self.link_bytes[link] += flow.left * (load / LOAD)
        else:
            self._arrive(self.by_number[number])

    def _arrive(self, flow: _Flow) -> None:
        leader = flow.mates[0]
        leader.arrived += 1
        if leader.arrived < len(flow.mates):
            return
        leader.arrived = 0
        leader.rounds -= 1
        if leader.rounds > 0:
            self._go(leader.mates)
        elif all(f.mates[0].rounds == 0 for f in self.flows[flow.task]):
            self._begin(self._end(flow.task))

    def _go(self, flows: list[_Flow]) -> None:
        paths = self.network.paths
        for flow in flows:
            if flow.path_set >= 0:
                path = self._draw(flow.path_set)
                flow.setup_latency, flow.drain_latency = self._times(path)
                links = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]].tolist()
                flow.links = {link: flow.unit * n for link, n in Counter(links).items()}
            if flow.drawn:
                drawn = [self._draw(row) for row in flow.drawn]
                flow.links = Counter()
                for p in drawn:
                    flow.links.update(self._loads(paths.links[paths.path_ptr[p] : paths.path_ptr[p + 1]], flow.unit))
                times = [self._times(path) for path in drawn]
                flow.setup_latency = self._latency([setup for setup, _ in times], flow.latencies)
                flow.drain_latency = flow.latencies * max(0.0, *(drain for _, drain in times))
            flow.left = flow.volume * LOAD / flow.unit if flow.links else 0.0
            begins = self.now + flow.setup_latency
            between = flow.path_set >= 0 and paths.pair[flow.path_set] >= 0
            if not self.wire and between and flow.volume <= 101 * _PACKET:
                begins = self._burst(flow, links[0])
            heapq.heappush(self.timed, (begins, flow.number))

    def _draw(self, row: int) -> int:
        """Return the path of a row, drawn by the weights if there are several."""
        paths = self.network.paths
        path, last = int(paths.row_ptr[row]), int(paths.row_ptr[row + 1]) - 1
        if last > path:
            draw = self._uniform(row, int(paths.pair[row]))
            while paths.cumulative_weight[path] <= draw:
                path += 1
        return path

    def _loads(self, links: I32, unit: int) -> Counter[int]:
        """Return the loads of a ring's flow: of k devices of its host, the link of each has (k - 1) / k of it."""
        inside = len(self.link_bytes) - 2 * self.network.cluster.n_devices
        k = int((links >= inside).sum()) // 2
        shared = unit * (k - 1) // k if k > 1 else unit
        loads = Counter[int]()
        for link in links.tolist():
            loads[link] += shared if link >= inside else unit
        return loads

    def _burst(self, flow: _Flow, link: int) -> float:
        """Begin a message within one window when the one before it, from the same host to the same, has left."""
        before, served, latest, answered = self.bursts.get(flow.path_set, (-1, 0.0, 0.0, 0.0))
        if before != link:
            served = answered = self.now
        elif latest <= self.now:
            answered = served
        begins = max(max(self.now, answered) + flow.setup_latency, served)
        seconds = flow.volume / float(self.network.paths.bandwidth[link])
        self.bursts[flow.path_set] = link, begins + seconds, begins, answered
        return begins

    def _load(self, flow: _Flow, sign: int) -> None:
        for link, load in flow.links.items():
            self.load[link] += sign * load
            if sign < 0:
                self.freed[link] += load
                self.stale |= self.freed[link] * 16 >= self.load[link]
            self.touched.add(link)

    def _served(self, link: int) -> float:
        return self.served[link] + self.share[link] * (self.now - self.since[link])

    def _end_of(self, flow: _Flow) -> float:
        link = flow.bottleneck
        assert link is not None
        return self.since[link] + max(flow.tag - self.served[link], 0.0) / self.share[link]

    def _share(self) -> None:
        """Compute rates anew, and give every flow the bottleneck that it has now."""
        if self.wire:
            self._fill()
        else:
            self._share_windows()

    def _fill(self) -> None:
        """Progressive filling in whole numbers: all flows get faster together; one stops where a link is full."""
        late = self.left_since > 0 and (self.stale or self.exact or self.left_since * 64 >= len(self.active))
        if self.entered == 0 and not late:
            return
        self.entered, self.left_since, self.stale = 0, 0, False
        self.freed.clear()
        grain = LOAD >> 10
        largest = max([1.0, *(c for c in self.capacity.values() if c < math.inf)])
        unit = 2.0 ** (math.ceil(math.log2(largest * 1024)) - 61)
        loads = {n: {link: -(-load // grain) for link, load in f.links.items()} for n, f in self.active.items()}
        rest = {
            link: int(min(self.capacity[link] / unit * 1024, float(1 << 61)))
            for load in loads.values()
            for link in load
        }
        levels, bottleneck = dict.fromkeys(rest, 0), {}
        open_load = Counter[int]()
        for load in loads.values():
            open_load.update(load)
        height = 0
        while loads:
            full = {link: rest[link] // load for link, load in open_load.items() if load > 0}
            # What rounding left over makes no difference.
            level, link = min((height if n - height <= height >> 40 else n, link) for link, n in full.items())
            level = height = levels[link] = max(level, 1)
            for number in [n for n, load in loads.items() if link in load]:
                bottleneck[number] = link
                for other, load in loads.pop(number).items():
                    rest[other] -= load * level
                    open_load[other] -= load
        moved = []
        for number, link in bottleneck.items():
            flow = self.active[number]
            if flow.bottleneck != link:
                if flow.bottleneck is not None:
                    flow.left = max(flow.tag - self._served(flow.bottleneck), 0.0)
                flow.bottleneck = link
                moved.append(flow)
        for link, level in levels.items():
            before = self.level.get(link, 0)
            if level != before:
                self.served[link] = self._served(link) if before > 0 else 0.0
                self.since[link], self.share[link] = self.now, level * unit
        self.level = levels
        for flow in moved:
            assert flow.bottleneck is not None
            flow.tag = self._served(flow.bottleneck) + flow.left

    def _share_windows(self) -> None:
        """Compute shares as the windows of flows, and give every flow the bottleneck that it has now."""
        for link in self.touched:
            if self.load[link] == 0:
                self.served[link], self.share[link] = 0.0, math.inf
            else:
                idle = self.share.get(link, math.inf) == math.inf
                self.served[link] = 0.0 if idle else self._served(link)
                self.share[link] = self.capacity[link] * LOAD / self.load[link]
            self.since[link] = self.now
        self.touched.clear()
        for flow in self.active.values():
            smallest = min(self.share[link] for link in flow.links)
            if flow.bottleneck is None:
                left = flow.left
            elif self.share[flow.bottleneck] > smallest:
                left = max(flow.tag - self._served(flow.bottleneck), 0.0)
            else:
                continue
            flow.bottleneck = next(link for link in flow.links if self.share[link] == smallest)
            flow.tag = self._served(flow.bottleneck) + left

    def _uniform(self, row: int, pair: int) -> float:
        """Draw the next of a row of paths: SplitMix64, from a start that is a mix of seed and pair."""
        self.drawn[row] += 1
        start = _mix(self.model.seed + (pair + 1) * _GOLDEN)
        return float(_mix(start + self.drawn[row] * _GOLDEN) >> 11) / 9007199254740992.0


def _mix(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)

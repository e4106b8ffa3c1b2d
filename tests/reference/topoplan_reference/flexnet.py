"""FlexNet's simulator in plain Python: slow, short, and equal to the kernel to the last bit.

Tests compare it with `topoplan_simulator_flexnet.model` on random task graphs and fabrics.  It shares with the kernel
only what a `Network` knows: paths and rings.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import F64
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.columns import Outcome
from topoplan_simulator_flexnet.model import Model, directions

__all__ = ["flexnet_reference"]


def flexnet_reference(
    taskgraph: TaskGraph, network: Network, model: Model, crossings: list[tuple[float, ...]] | None = None
) -> Outcome:
    """Run one iteration of FlexNet's simulator; ``crossings`` gets (link, task, begin, end, bytes) of each segment."""
    heap = _Heap()
    forward, paths = network.lower(taskgraph), network.paths
    backward = network.lower(taskgraph, backward=True).ring
    reverse = directions(taskgraph, model.seed) if model.seed is not None else np.zeros(taskgraph.n_tasks)
    rings = network.rings
    bandwidth, latency = (paths.bandwidth / 1e3).tolist(), _float32(paths.latency * 1e3)
    run_time = _float32(taskgraph.seconds * 1e3)
    kind, waits = taskgraph.kind.tolist(), taskgraph.predecessor_counts().tolist()
    ready, left = [0.0] * taskgraph.n_tasks, taskgraph.size.tolist()
    path: dict[int, list[int]] = {}
    link_free, device_free = [0.0] * len(bandwidth), [0.0] * network.cluster.n_devices
    link_bytes = np.zeros(len(bandwidth))
    start, finish = np.full(taskgraph.n_tasks, -1.0), np.full(taskgraph.n_tasks, -1.0)
    collector_of: dict[int, int] = {}
    reduce_of: dict[int, int] = {}
    flows_left: dict[int, int] = {}
    makespan, events = 0.0, 0

    for t in range(taskgraph.n_tasks):
        if kind[t] == TaskKind.TRANSFER:
            path[t] = _first_path(network, int(forward.row[t]))
        if waits[t] == 0:
            heap.push(0.0, t)
    while heap.entries:
        t = heap.pop()
        events += 1
        done = None
        if t in path:
            sent = min(left[t], model.segment_bytes)
            left[t] -= sent
            head = end = first_start = first_end = ready[t]
            for hop, link in enumerate(path[t]):
                begin = max(link_free[link], head)
                head = begin + latency[link]
                link_free[link] = head + sent / bandwidth[link]
                link_bytes[link] += sent
                if crossings is not None:
                    owner = t if t < taskgraph.n_tasks else reduce_of[collector_of[t]]
                    crossings.append((link, owner, begin / 1e3, link_free[link] / 1e3, sent))
                end = max(end, link_free[link])
                if hop == 0:
                    first_start, first_end = begin, link_free[link]
            if t < taskgraph.n_tasks and start[t] < 0:
                start[t] = first_start
            if left[t] > 0 and path[t]:
                ready[t] = first_end
                heap.push(first_end, t)
                continue
            if t < taskgraph.n_tasks:
                done = t
            else:
                makespan = max(makespan, end)
                collector = collector_of[t]
                ready[collector] = max(ready[collector], end)
                flows_left[collector] -= 1
                if flows_left[collector] == 0:
                    heap.push(ready[collector], collector)
        elif t in reduce_of:
            done = reduce_of[t]
            device = int(taskgraph.members(done)[0])
            end = device_free[device] = max(device_free[device], ready[t])
        elif kind[t] == TaskKind.COLLECTIVE:
            start[t] = end = ready[t]
            ring = int(backward[t] if reverse[t] else forward.ring[t])
            n, k = int(rings.members[ring]), int(rings.parallel[ring])
            if n == 1:
                done = t
            else:
                d = int(rings.ranks[ring])
                volume = 2 * (d - 1) * left[t] // d if k == 1 else math.ceil(2.0 * (d - 1) * left[t] / d / k)
                collector = len(ready)
                ready.append(0.0)
                left.append(0)
                reduce_of[collector], flows_left[collector] = t, n * k
                for member in range(n):
                    for r in range(k):
                        flow = len(ready)
                        ready.append(ready[t] + run_time[t])
                        left.append(volume)
                        path[flow] = _first_path(network, int(rings.rows[rings.first[ring] + r * n + member]))
                        collector_of[flow] = collector
                        heap.push(ready[flow], flow)
        else:
            device = int(taskgraph.device[t])
            start[t] = max(device_free[device], ready[t])
            end = device_free[device] = start[t] + run_time[t]
            done = t
        if done is not None:
            makespan = max(makespan, end)
            finish[done] = end
            for n in taskgraph.successors(done).tolist():
                ready[n] = max(ready[n], end)
                waits[n] -= 1
                if waits[n] == 0:
                    heap.push(ready[n], n)
    return Outcome(start / 1e3, finish / 1e3, link_bytes, makespan / 1e3, events)


class _Heap:
    """libstdc++'s binary heap of (time, task), with its order of equal times."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int]] = []

    def push(self, time: float, task: int) -> None:
        self.entries.append((time, task))
        self._rise(len(self.entries) - 1, (time, task))

    def pop(self) -> int:
        root, last = self.entries[0], self.entries.pop()
        count, at = len(self.entries), 0
        if count == 0:
            return root[1]
        while 2 * at + 1 < count:
            child = 2 * at + 2
            if child == count or self.entries[child][0] > self.entries[child - 1][0]:
                child -= 1
            self.entries[at] = self.entries[child]
            at = child
        self._rise(at, last)
        return root[1]

    def _rise(self, at: int, entry: tuple[float, int]) -> None:
        while at > 0 and self.entries[(at - 1) // 2][0] > entry[0]:
            self.entries[at] = self.entries[(at - 1) // 2]
            at = (at - 1) // 2
        self.entries[at] = entry


def _first_path(network: Network, row: int) -> list[int]:
    paths = network.paths
    path = paths.row_ptr[row]
    links: list[int] = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]].tolist()
    return links


def _float32(values: F64) -> list[float]:
    result: list[float] = values.astype(np.float32).astype(np.float64).tolist()
    return result

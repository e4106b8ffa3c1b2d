"""FlexNet's logical simulator: FIFO links, messages in segments, one event per segment.

Source: FlexNet (TopoOpt, NSDI'23), simulator.cc, ``LogicalTaskgraphBasedSimulator`` and its subclass for
TopoOpt.  Its numbers are reproduced to the last digit that it prints, so its ways are kept: the clock counts
milliseconds, run times and latencies have passed through float32; tasks leave a binary heap as libstdc++
orders equal keys; a link is busy during its latency, once for every segment that crosses it; a message ends
when its last segment does.

Data flow: `Model.prepare` lowers a task graph through a `Network` into columns in milliseconds, `Model.simulate`
runs the kernel over them, and `Model.alone` says how long each task takes at least, for the bounds.

A transfer and every flow of a ring takes the first path of its row.  An all-reduce of n members on one ring
is n flows of floor(2 (n-1) size / n) bytes that start together, on k rings k n flows of
ceil(2 (n-1) size / n / k) bytes; a task without duration on the first member's device collects them.  An
all-reduce of one member ends at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I8, I32, f64, i32
from topoplan.errors import TopoplanError
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.kernels.jit import inline_kernel, interrupted
from topoplan_engine.lowering.fold import Folded
from topoplan_engine.network.tables import Network, PathColumns, RingColumns, Traffic
from topoplan_engine.simulation.columns import Outcome, TaskColumns, columns
from topoplan_engine.simulation.critical_path import Uses, look_ahead
from topoplan_simulator_flexnet.bounds import alone, flow_bytes, sure_bytes, sure_uses

__all__ = ["Model", "Prepared", "directions", "flexnet_task_count"]

#: Segments of all messages that are simulated at most; 1e8 take some ten seconds.
MOST_SEGMENTS = 2e8
#: Events between two looks for a signal, less one.
_ASK = (1 << 18) - 1
_TRANSFER = int(TaskKind.TRANSFER)
_ALLREDUCE = int(TaskKind.ALLREDUCE)


class Prepared(NamedTuple):
    """What the kernel reads; times in milliseconds, bandwidths in bytes per millisecond."""

    tasks: TaskColumns
    traffic: Traffic
    paths: PathColumns
    rings: RingColumns
    first_member: I32
    n_devices: int
    segment: int


class Model(NamedTuple):
    """FlexNet's simulator.

    Attributes:
        segment_bytes: size of a segment.
        seed: draws the direction of each one-ring all-reduce; None lets all walk in listed order.
    """

    segment_bytes: int = 1 << 20
    seed: int | None = None

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Prepared:
        """Make the columns of one iteration.

        Raises:
            TopoplanError: a pair that must communicate cannot, or messages have too many segments.
        """
        traffic = network.lower(taskgraph)
        if self.seed is not None:
            backward = network.lower(taskgraph, backward=True).ring
            ring = np.where(directions(taskgraph, self.seed) == 1, backward, traffic.ring)
            traffic = Traffic(traffic.row, i32(ring))
        tasks, paths = columns(taskgraph), network.paths
        _check_segments(taskgraph, self.segment_bytes)
        return Prepared(
            tasks._replace(seconds=_single(tasks.seconds * 1e3)),
            traffic,
            paths._replace(bandwidth=f64(paths.bandwidth / 1e3), latency=_single(paths.latency * 1e3)),
            network.rings,
            _first_member(taskgraph),
            network.cluster.n_devices,
            self.segment_bytes,
        )

    def with_seed(self, seed: int) -> Model:  # noqa: ARG002
        """Return the model itself: it takes the first path of each row; its own seed draws ways round rings."""
        return self

    def draws(self, prepared: Prepared) -> bool:  # noqa: ARG002
        """Whether some message has several paths to draw from: none has."""
        return False

    def simulate(self, prepared: Prepared) -> Outcome:
        """Run one iteration."""
        return self._outcome(prepared, np.zeros(0), np.inf)

    def _outcome(self, prepared: Prepared, behind: F64, stop: float) -> Outcome:
        start, finish, link_bytes, makespan, events = _run(*prepared, behind, stop)
        if events < 0:
            raise KeyboardInterrupt
        return Outcome(start / 1e3, finish / 1e3, link_bytes, makespan / 1e3, events)

    def beats(self, prepared: Prepared, time: float) -> Outcome | None:
        """Run one iteration; None once it is proven to take ``time`` or longer."""
        tasks, paths = prepared.tasks, prepared.paths
        uses = Uses(*sure_uses(tasks, prepared.traffic, paths, prepared.rings))
        bound, behind = look_ahead(tasks, alone(*prepared), uses, len(paths.bandwidth), prepared.n_devices)
        stop = time * 1e3 * (1 + 1e-9)  # rounding
        outcome = self._outcome(prepared, behind, stop) if bound < stop else None
        return outcome if outcome is not None and outcome.makespan < np.inf else None

    def alone(self, prepared: Prepared) -> F64:
        """(T,) seconds that each task takes at least, from its last dependency on."""
        milliseconds: F64 = alone(*prepared)
        return milliseconds / 1e3

    def run_times(self, prepared: Prepared) -> F64:
        """(T,) seconds of each compute task, after float32."""
        return prepared.tasks.seconds / 1e3

    def sure_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator sends over each link, whichever way round its rings walk."""
        forward = network.lower(taskgraph)
        backward = forward if self.seed is None else network.lower(taskgraph, backward=True)
        size, paths, rings = taskgraph.size, network.paths, network.rings_in_full
        sent: F64 = sure_bytes(taskgraph.kind, taskgraph.op, size, forward, backward.ring, paths, rings)
        return sent

    def folds(self, network: Network) -> bool:  # noqa: ARG002
        """Whether a folded iteration can be simulated: FIFO order tells equal messages apart."""
        return False

    def simulate_folded(self, folded: Folded, network: Network, beat: float) -> Outcome:
        """Refuse: see `folds`."""
        raise NotImplementedError


def _check_segments(taskgraph: TaskGraph, segment: int) -> None:
    """Refuse messages of more segments than can be simulated: each takes one event."""
    if 2.0 * float(taskgraph.size.sum(dtype=np.float64)) / segment * max(1, taskgraph.n_devices) < MOST_SEGMENTS:
        return
    reduces = taskgraph.kind == TaskKind.ALLREDUCE
    members = np.zeros(taskgraph.n_tasks)
    members[reduces] = np.diff(taskgraph.group_ptr)[taskgraph.group[reduces]]
    sent = np.where(reduces, 2.0 * np.maximum(members - 1, 0), taskgraph.kind == TaskKind.TRANSFER) * taskgraph.size
    if (needed := float(sent.sum()) / segment) > MOST_SEGMENTS:
        task, larger = int(np.argmax(sent)), 2 ** int(np.ceil(np.log2(sent.sum() / MOST_SEGMENTS)))
        raise TopoplanError(
            f"task graph: {taskgraph.label(task)} sends {sent[task]:.3g} bytes, all messages {sent.sum():.3g}: "
            f"{needed:.3g} segments of {segment} bytes, of which flexnet simulates {MOST_SEGMENTS:.0e} at most "
            f"(take --simulator flexnet:segment-bytes={larger} or more, or --simulator fluid)"
        )


def directions(taskgraph: TaskGraph, seed: int) -> I8:
    """(T,) 1 for an all-reduce whose ring walks backwards, drawn with a fair coin each; 0 for all others."""
    coins = np.random.default_rng(seed).integers(0, 2, taskgraph.n_tasks)
    return np.where(taskgraph.kind == TaskKind.ALLREDUCE, coins, 0).astype(np.int8)


def flexnet_task_count(taskgraph: TaskGraph, network: Network) -> int:
    """Return how many tasks FlexNet would count: those of the graph, the flows of rings and their collectors."""
    ring = network.lower(taskgraph).ring
    ring = ring[ring >= 0]
    members, count = network.rings.members[ring], network.rings.parallel[ring]
    shared = members > 1
    return taskgraph.n_tasks + int((members * count)[shared].sum()) + int(shared.sum())


def _single(values: F64) -> F64:
    """Round to float32, as FlexNet reads run times and latencies."""
    return f64(values.astype(np.float32))


def _first_member(taskgraph: TaskGraph) -> I32:
    """(T,) device of the first member of each all-reduce; -1 for other tasks."""
    first = np.full(taskgraph.n_tasks, -1, dtype=np.int32)
    reduces = taskgraph.kind == TaskKind.ALLREDUCE
    first[reduces] = taskgraph.group_members[taskgraph.group_ptr[taskgraph.group[reduces]]]
    return i32(first)


@inline_kernel
def _push(times: Any, ids: Any, count: int, time: float, task: int) -> int:
    """Add an entry as libstdc++'s push_heap does; return the new count."""
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] <= time:
            break
        times[at] = times[parent]
        ids[at] = ids[parent]
        at = parent
    times[at] = time
    ids[at] = task
    return count + 1


@inline_kernel
def _pop(times: Any, ids: Any, count: int) -> int:
    """Drop the root as libstdc++'s pop_heap does: the hole sinks to a leaf, the last entry rises from there."""
    count -= 1
    time, task = times[count], ids[count]
    at = 0
    child = 2
    while child < count:
        if times[child] > times[child - 1]:
            child -= 1
        times[at] = times[child]
        ids[at] = ids[child]
        at = child
        child = 2 * at + 2
    if child == count:
        times[at] = times[child - 1]
        ids[at] = ids[child - 1]
        at = child - 1
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] <= time:
            break
        times[at] = times[parent]
        ids[at] = ids[parent]
        at = parent
    times[at] = time
    ids[at] = task
    return count


@numba.njit(cache=True)
def _run(
    tasks: TaskColumns,
    traffic: Traffic,
    paths: PathColumns,
    rings: RingColumns,
    first_member: I32,
    n_devices: int,
    segment: int,
    behind: F64,
    stop: float,
) -> tuple[F64, F64, F64, float, int]:
    """Make what the event loop works on, and run it; the makespan is infinite once it is proven to reach ``stop``."""
    n_tasks = len(tasks.kind)
    n_links = len(paths.bandwidth)
    total = n_tasks
    for t in range(n_tasks):
        g = traffic.ring[t]
        if g >= 0 and rings.members[g] > 1:
            total += rings.parallel[g] * rings.members[g] + 1

    whole = segment / paths.bandwidth  # one full segment on each link
    link_free = np.zeros(n_links)
    device_free = np.zeros(n_devices)
    link_bytes = np.zeros(n_links)

    ready = np.zeros(total)
    began = np.full(total, -1.0)
    waits = np.zeros(total, np.int32)  # predecessors that a task waits for, flows that a collector waits for
    left = np.zeros(total, np.int64)
    path_at = np.zeros(total, np.int64)
    path_end = np.zeros(total, np.int64)
    owner = np.full(total, -1, np.int32)  # collector of a flow, all-reduce of a collector
    start = np.full(n_tasks, -1.0)
    finish = np.full(n_tasks, -1.0)

    now, events = _events(
        tasks,
        traffic,
        paths,
        rings,
        first_member,
        segment,
        behind,
        stop,
        (whole, link_free, device_free, link_bytes),
        (ready, began, waits, left, path_at, path_end, owner, start, finish),
        (np.empty(total + 1), np.empty(total + 1, np.int32)),
    )
    return start, finish, link_bytes, now, events


@inline_kernel
def _events(
    tasks: TaskColumns,
    traffic: Traffic,
    paths: PathColumns,
    rings: RingColumns,
    first_member: I32,
    segment: int,
    behind: F64,
    stop: float,
    of_links: Any,
    of_tasks: Any,
    queue: Any,
) -> tuple[float, int]:
    """Run the event loop.  Tasks 0 .. T-1 are the graph's; flows and collectors of rings follow them."""
    n_tasks = len(tasks.kind)
    whole, link_free, device_free, link_bytes = of_links
    ready, began, waits, left, path_at, path_end, owner, start, finish = of_tasks
    times, ids = queue
    count = 0
    for t in range(n_tasks):
        waits[t] = tasks.preds[t]
        if tasks.kind[t] == _TRANSFER:
            path = paths.row_ptr[traffic.row[t]]
            path_at[t] = paths.path_ptr[path]
            path_end[t] = paths.path_ptr[path + 1]
            left[t] = tasks.size[t]
    for t in range(n_tasks):
        if waits[t] == 0:
            count = _push(times, ids, count, 0.0, t)

    made = n_tasks
    events = 0
    now = 0.0
    while count > 0:
        t = ids[0]
        count = _pop(times, ids, count)
        events += 1
        if events & _ASK == 0 and interrupted():
            return now, -1
        if stop < np.inf and t < n_tasks and began[t] < 0 and ready[t] + behind[t] >= stop:
            return np.inf, events
        done = -1  # task of the graph that ends here, if any
        end = ready[t]
        if path_end[t] > path_at[t] or (t < n_tasks and tasks.kind[t] == _TRANSFER):
            x = min(left[t], segment)
            left[t] -= x
            full = x == segment
            arrived = ready[t]
            first_start = arrived
            first_end = arrived
            for i in range(path_at[t], path_end[t]):
                link = paths.links[i]
                s = max(link_free[link], arrived)
                head = s + paths.latency[link]
                e = head + (whole[link] if full else x / paths.bandwidth[link])
                link_free[link] = e
                link_bytes[link] += x
                if i == path_at[t]:
                    first_start = s
                    first_end = e
                end = max(end, e)
                arrived = head
            if began[t] < 0:
                began[t] = first_start
            if left[t] > 0 and path_end[t] > path_at[t]:
                ready[t] = first_end
                count = _push(times, ids, count, ready[t], t)
                continue
            if t < n_tasks:
                done = t
            else:
                collector = owner[t]
                now = max(now, end)
                ready[collector] = max(ready[collector], end)
                waits[collector] -= 1
                if waits[collector] == 0:
                    count = _push(times, ids, count, ready[collector], collector)
        elif t < n_tasks and tasks.kind[t] == _ALLREDUCE:
            g = traffic.ring[t]
            n = rings.members[g]
            began[t] = ready[t]
            if n == 1:
                done = t
            else:
                released = ready[t] + tasks.seconds[t]
                k = rings.parallel[g]
                volume = flow_bytes(tasks.size[t], n, k)
                collector = made
                made += 1
                owner[collector] = t
                waits[collector] = n * k
                for member in range(n):
                    for r in range(k):
                        flow = made
                        made += 1
                        path = paths.row_ptr[rings.rows[rings.first[g] + r * n + member]]
                        path_at[flow] = paths.path_ptr[path]
                        path_end[flow] = paths.path_ptr[path + 1]
                        left[flow] = volume
                        owner[flow] = collector
                        ready[flow] = released
                        count = _push(times, ids, count, ready[flow], flow)
        elif t < n_tasks:
            device = tasks.device[t]
            began[t] = max(device_free[device], ready[t])
            end = began[t] + tasks.seconds[t]
            device_free[device] = end
            done = t
        else:
            done = owner[t]
            device = first_member[done]
            end = max(device_free[device], ready[t])
            device_free[device] = end
        if done >= 0:
            now = max(now, end)
            start[done] = began[done]
            finish[done] = end
            for i in range(tasks.succ_ptr[done], tasks.succ_ptr[done + 1]):
                n = tasks.succ[i]
                ready[n] = max(ready[n], end)
                waits[n] -= 1
                if waits[n] == 0:
                    count = _push(times, ids, count, ready[n], n)
    return now, events

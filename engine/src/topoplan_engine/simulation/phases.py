"""Iterations on a fabric that is rebuilt between their phases: forward, backward, all-reduce.

The model is a barrier: a fabric is rebuilt when everything of the phase before has ended, and nothing runs until it
is there.  An iteration begins with the wires that the last one ended with, so that getting back to the first ones
is paid, too, at its start.  A phase in which no host sends to another takes over the wires of the next one that
needs any; phases that follow each other on equal fabrics are simulated as one, without a barrier; between equal
wires with other routes or rings there is a barrier, but no delay.  Iteration time is therefore affine in the delay.

Data flow: `task_phases` sorts tasks into phases, `segments` joins phases into stretches of time with one fabric each,
`excerpt` cuts out their tasks; a simulator runs each stretch by itself, and `phased_timeline` puts the timelines one
after the other.  `phased_makespan` does the same for the iteration time alone.  Any simulator may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I8, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.problem import Demand
from topoplan.model.reconfigurable import ReconfigurableFabric
from topoplan.model.recording import Recording
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Bounds, Timeline
from topoplan_engine.csr import indptr, row_of_entry, select
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.network.exchanged import factors_of
from topoplan_engine.simulation.recording import Stretch, joined

__all__ = [
    "BACKWARD_PHASE",
    "FORWARD_PHASE",
    "REDUCE_PHASE",
    "Segment",
    "excerpt",
    "phased_demand",
    "phased_makespan",
    "phased_recording",
    "phased_timeline",
    "same_wires",
    "segments",
    "task_phases",
]

FORWARD_PHASE, BACKWARD_PHASE, REDUCE_PHASE = 0, 1, 2

#: The phase that a task of each kind is in unless it waits for a later one; see `task_phases` for all-reduces.
_KIND_PHASE = np.zeros(len(TaskKind), dtype=np.int8)
_KIND_PHASE[[TaskKind.BACKWARD, TaskKind.UPDATE]] = BACKWARD_PHASE


#: Columns of a task graph with a row for each task that no other column numbers.
_COLUMNS = ("kind", "device", "seconds", "size", "src", "dst", "op", "collective")


class Segment(NamedTuple):
    """A stretch of the iteration on one fabric.

    Attributes:
        fabric: its links are among those of the whole.
        tasks: rows of the task graph, ascending.
        rebuilt: the wires differ from those of the segment before; for the first one, of the last.
    """

    fabric: Fabric
    tasks: I64
    rebuilt: bool


def task_phases(taskgraph: TaskGraph) -> I8:
    """(T,) phase of every task: that of its own kind, or a later one if it waits for a task there.

    Forward tasks, transfers and barriers are of the forward phase themselves, backward tasks and updates of the
    backward one.  All-reduces are of the last phase, unless compute, a transfer or another all-reduce waits for
    them: these are steps of the computation, not sums of gradients.
    """
    tails, heads = taskgraph.edges()
    phase = _KIND_PHASE[taskgraph.kind]
    ends = np.isin(taskgraph.kind[heads], (TaskKind.UPDATE, TaskKind.BARRIER))
    needed = np.zeros(taskgraph.n_tasks, dtype=bool)
    needed[tails[~ends]] = True
    phase[(taskgraph.kind == TaskKind.COLLECTIVE) & ~needed] = REDUCE_PHASE
    while (late := phase[tails] > phase[heads]).any():
        np.maximum.at(phase, heads[late], phase[tails[late]])
    return phase


def phased_demand(taskgraph: TaskGraph, cluster: Cluster) -> Demand:
    """Return what a task graph asks of the network, and what of it in the forward pass."""
    return taskgraph_demand(taskgraph, cluster, task_phases(taskgraph) == FORWARD_PHASE)


def segments(taskgraph: TaskGraph, fabric: ReconfigurableFabric, device_host: I32) -> list[Segment]:
    """Return the stretches of an iteration, in the order of time; each has tasks."""
    phase = task_phases(taskgraph)
    sends = np.bincount(phase[_between_hosts(taskgraph, device_host)], minlength=3) > 0
    rows = [np.flatnonzero(phase == number) for number in range(3)]
    parts = fabric.wirings
    stretches: list[tuple[Fabric, list[I64]]] = []
    for number, tasks in enumerate(rows):
        # The phase itself, then those that follow, round to the ones of the next iteration.
        wired = next((parts[(number + k) % 3] for k in range(3) if sends[(number + k) % 3]), parts[0])
        if not len(tasks):
            continue
        if stretches and (stretches[-1][0].key == wired.key):
            stretches[-1][1].append(tasks)
        else:
            stretches.append((wired, [tasks]))
    return [
        Segment(wired, np.sort(np.concatenate(tasks)), not same_wires(wired, stretches[number - 1][0]))
        for number, (wired, tasks) in enumerate(stretches)
    ]


def same_wires(first: Fabric, second: Fabric) -> bool:
    """Say whether nothing has to be rewired to get from one fabric to the other; routes and rings may differ."""
    return all(
        np.array_equal(getattr(first, column), getattr(second, column))
        for column in ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency")
    )


def excerpt(taskgraph: TaskGraph, tasks: I64) -> TaskGraph:
    """Return some tasks, ascending, and the edges between them; the whole task graph itself if these are all."""
    if len(tasks) == taskgraph.n_tasks:
        return taskgraph
    new = np.full(taskgraph.n_tasks, -1, dtype=np.int64)
    new[tasks] = np.arange(len(tasks))
    tails, heads = (new[ends] for ends in taskgraph.edges())
    inside = (tails >= 0) & (heads >= 0)
    group = taskgraph.group[tasks]
    used, renumbered = np.unique(group[group >= 0], return_inverse=True)
    _, members = select(taskgraph.group_ptr, used)
    group = group.copy()
    group[group >= 0] = renumbered
    columns = {name: getattr(taskgraph, name)[tasks] for name in _COLUMNS}
    return attrs.evolve(
        taskgraph,
        **columns,
        group=group,
        group_ptr=indptr(np.diff(taskgraph.group_ptr)[used]),
        group_members=taskgraph.group_members[members],
        shares=tuple(factors_of(taskgraph, each) for each in used.tolist()) if taskgraph.shares else (),
        succ_ptr=indptr(np.bincount(tails[inside], minlength=len(tasks))),
        succ=heads[inside],
        micro_batch=None if taskgraph.micro_batch is None else taskgraph.micro_batch[tasks],
        foreign={},
    )


def phased_timeline(
    simulate: Callable[[TaskGraph, Fabric, Cluster], Timeline],
    taskgraph: TaskGraph,
    fabric: ReconfigurableFabric,
    cluster: Cluster,
) -> Timeline:
    """Simulate each stretch with ``simulate`` and join the timelines.

    Bounds stay bounds: what a device computes and what a link carries in all stretches, and the sums over stretches,
    which follow each other, of the longest chain (with the delays) and of what collectives must take.

    Raises:
        TopoplanError: what ``simulate`` raises.
    """
    return _joined(
        [
            (s, simulate(excerpt(taskgraph, s.tasks), s.fabric, cluster))
            for s in segments(taskgraph, fabric, cluster.device_host)
        ],
        taskgraph,
        fabric,
        cluster,
    )


def phased_recording(
    record: Callable[[TaskGraph, Fabric, Cluster], tuple[Timeline, Recording]],
    taskgraph: TaskGraph,
    fabric: ReconfigurableFabric,
    cluster: Cluster,
) -> tuple[Timeline, Recording]:
    """Simulate and ``record`` each stretch, and join the timelines and the recordings.

    Raises:
        TopoplanError: what ``record`` raises.
    """
    stretches = segments(taskgraph, fabric, cluster.device_host)
    runs = [record(excerpt(taskgraph, segment.tasks), segment.fabric, cluster) for segment in stretches]
    timelines = [timeline for timeline, _ in runs]
    whole = _joined(list(zip(stretches, timelines, strict=True)), taskgraph, fabric, cluster)
    begins, parts = 0.0, []
    for segment, (timeline, recording) in zip(stretches, runs, strict=True):
        begins += fabric.delay if segment.rebuilt else 0.0
        parts.append(Stretch(recording, segment.fabric, segment.tasks, begins, segment.rebuilt))
        begins += timeline.makespan
    return whole, joined(parts, fabric, whole.link_bytes)


def _joined(
    parts: Sequence[tuple[Segment, Timeline]], taskgraph: TaskGraph, fabric: ReconfigurableFabric, cluster: Cluster
) -> Timeline:
    """Put the timelines of stretches behind each other."""
    links = fabric.links
    start, finish = np.zeros(taskgraph.n_tasks), np.zeros(taskgraph.n_tasks)
    device_busy, link_bytes, link_busy = np.zeros(cluster.n_devices), *np.zeros((2, links.n_links))
    time = chain = collective = link = 0.0
    events = 0
    for segment, part in parts:
        delay = fabric.delay if segment.rebuilt else 0.0
        time += delay
        start[segment.tasks] = time + part.start
        finish[segment.tasks] = time + part.finish
        time += part.makespan
        device_busy += part.device_busy
        row = links.link_rows(segment.fabric.link_src, segment.fabric.link_dst)
        link_bytes[row] += part.link_bytes
        link_busy[row] += part.link_busy
        link = max(link, part.bounds.link)  # counts links inside hosts, too
        chain += delay + part.bounds.chain
        collective += part.bounds.collective
        events += part.events
    return Timeline(
        start=start,
        finish=finish,
        makespan=time,
        device_busy=device_busy,
        link_bytes=link_bytes,
        link_busy=link_busy,
        bounds=Bounds(
            device=float(device_busy.max(initial=0.0)),
            link=max(link, float(link_busy.max(initial=0.0))),
            chain=chain,
            collective=collective,
        ),
        events=events,
    )


def phased_makespan(
    makespan: Callable[[TaskGraph, Fabric, Cluster, float], float],
    taskgraph: TaskGraph,
    fabric: ReconfigurableFabric,
    cluster: Cluster,
    cutoff_seconds: float,
) -> float:
    """Return the iteration time only; infinite once it is proven to be no less than ``cutoff_seconds``.

    Args:
        makespan: does the same on a fabric that stays as it is.
        taskgraph, fabric, cluster, cutoff_seconds: see `topoplan.plugin.components.Simulate`.
    """
    stretches = segments(taskgraph, fabric, cluster.device_host)
    time, waits = 0.0, fabric.delay * sum(segment.rebuilt for segment in stretches)
    for segment in stretches:
        if segment.rebuilt:
            time, waits = time + fabric.delay, waits - fabric.delay
        remaining = cutoff_seconds - time - max(waits, 0.0)
        if remaining <= 0:
            return float("inf")
        # A difference of times is less exact than the times.
        time += makespan(excerpt(taskgraph, segment.tasks), segment.fabric, cluster, remaining + 1e-12 * cutoff_seconds)
        if time == float("inf"):
            break
    return time


def _between_hosts(taskgraph: TaskGraph, device_host: I32) -> I64:
    """Tasks that send from one host to another."""
    transfers = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
    apart = device_host[taskgraph.src[transfers]] != device_host[taskgraph.dst[transfers]]
    reduces = np.flatnonzero(taskgraph.kind == TaskKind.COLLECTIVE)
    host = device_host[taskgraph.group_members]
    row = row_of_entry(taskgraph.group_ptr)
    several = np.zeros(taskgraph.n_groups, dtype=bool)
    several[row[host != host[taskgraph.group_ptr[row]]]] = True
    return np.concatenate([transfers[apart], reduces[several[taskgraph.group[reduces]]]])

"""FlexNet's logical simulator: FIFO links, messages in segments, one event per segment.

Source: FlexNet (TopoOpt, NSDI'23), simulator.cc, ``LogicalTaskgraphBasedSimulator`` and its subclass for
TopoOpt.  Its numbers are reproduced to the last digit that it prints, so its ways are kept: the clock counts
milliseconds, run times and latencies have passed through float32; tasks leave a binary heap as libstdc++
orders equal keys; a link is busy during its latency, once for every segment that crosses it; a message ends
when its last segment does.

Data flow: `Model.prepare` lowers a task graph through a `Network` into columns in milliseconds, `Model.simulate`
runs the kernel over them, and `Model.processing_times` gives lower bounds on the time of each task, for the bounds.

A transfer and every flow of a ring takes the first path of its row.  An all-reduce of n members on one ring
is n flows of floor(2 (n-1) size / n) bytes that start together, on k rings k n flows of
ceil(2 (n-1) size / n / k) bytes; a task without duration on the first member's device collects them.  An
all-reduce of one member ends at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64, f64, i32
from topoplan.errors import TopoplanError
from topoplan.model.recording import LinkUse
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.kernels.jit import raise_interrupt
from topoplan_engine.network.tables import Network, Traffic
from topoplan_engine.simulation.columns import Outcome, check_not_slowed, columns
from topoplan_engine.simulation.critical_path import critical_path_bound
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_flexnet.bounds import guaranteed_bytes, link_uses, message_bytes, processing_times
from topoplan_simulator_flexnet.kernel import ALL_EVENTS, Prepared, State, advance, initial_state

__all__ = ["Model", "Prepared", "directions", "flexnet_task_count"]

#: Segments of all messages that are simulated at most; 1e8 take some ten seconds.
MOST_SEGMENTS = 2e8
#: The same of segments that are smaller than FlexNet's.
MOST_SMALL, _SEGMENT = 1e7, 1 << 20


class Model(NamedTuple):
    """FlexNet's simulator.

    Attributes:
        segment_bytes: size of a segment.
        seed: draws the direction of each one-ring all-reduce; None lets all walk in listed order.
    """

    segment_bytes: int = 1 << 20
    seed: int | None = None

    @property
    def transport(self) -> Transport:
        """Members of rings send whole bytes, as in FlexNetPacket: bounds of collectives allow for that."""
        return Transport.FLEXNETPACKET

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Prepared:
        """Make the columns of one iteration.

        Raises:
            TopoplanError: a pair that must communicate cannot, messages have too many segments, or slow down devices.
        """
        check_not_slowed(taskgraph, "simulator flexnet")
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

    def with_seed(self, seed: int) -> Model:
        """Return the model itself: it takes the first path of each row; its own seed draws ways round rings."""
        return self

    def draws(self, prepared: Prepared) -> bool:
        """Whether some message has several paths to draw from: none has."""
        return False

    def simulate(self, prepared: Prepared) -> Outcome:
        """Run one iteration."""
        return self._outcome(prepared, np.zeros(0), np.inf)

    def record(self, prepared: Prepared) -> tuple[Outcome, LinkUse]:
        """Run one iteration, and return the use of all links, by link and time, as well."""
        from topoplan_simulator_flexnet.recording import record

        state = initial_state(prepared)
        events, rows = record(prepared, state)
        return _outcome(state, events), rows

    def _outcome(self, prepared: Prepared, time_to_end: F64, stop: float) -> Outcome:
        state = initial_state(prepared)
        events = advance(prepared, state, time_to_end, stop, ALL_EVENTS)
        if events < 0:
            raise_interrupt()
        return _outcome(state, events)

    def simulate_below(self, prepared: Prepared, cutoff_seconds: float) -> Outcome | None:
        """Run one iteration; None once a lower bound on its time reaches the cutoff."""
        tasks, paths = prepared.tasks, prepared.paths
        uses = link_uses(tasks, prepared.traffic, paths, prepared.rings)
        bound, time_to_end = critical_path_bound(
            tasks, processing_times(*prepared), uses, len(paths.bandwidth), prepared.n_devices
        )
        stop = cutoff_seconds * 1e3 * (1 + 1e-9)  # rounding
        outcome = self._outcome(prepared, time_to_end, stop) if bound < stop else None
        return outcome if outcome is not None and outcome.makespan < np.inf else None

    def processing_times(self, prepared: Prepared) -> F64:
        """(T,) lower bound on the seconds that each task takes, from its last dependency on."""
        milliseconds: F64 = processing_times(*prepared)
        return milliseconds / 1e3

    def run_times(self, prepared: Prepared) -> F64:
        """(T,) seconds of each compute task, after float32."""
        return prepared.tasks.seconds / 1e3

    def guaranteed_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator sends over each link, whichever way round its rings walk."""
        forward = network.lower(taskgraph)
        backward = forward if self.seed is None else network.lower(taskgraph, backward=True)
        size, paths, rings = taskgraph.size, network.paths, network.rings_in_full
        sent: F64 = guaranteed_bytes(taskgraph.kind, taskgraph.op, size, forward, backward.ring, paths, rings)
        return sent

    def message_bytes(self, size: I64, members: I32) -> F64:
        """(n,) bytes that each message sends over an interface."""
        return message_bytes(size, members)


def _outcome(state: State, events: int) -> Outcome:
    """Return what is left of a run, in seconds."""
    start = state.began[: len(state.finish)]
    return Outcome(start / 1e3, state.finish / 1e3, state.link_bytes, float(state.makespan[0]) / 1e3, events)


def _check_segments(taskgraph: TaskGraph, segment: int) -> None:
    """Refuse messages of more segments than can be simulated, each of which takes one event.

    Segments that are smaller than FlexNet's only multiply the work, and have a limit of some seconds.
    """
    most = MOST_SEGMENTS if segment >= _SEGMENT else MOST_SMALL
    if 2.0 * float(taskgraph.size.sum(dtype=np.float64)) / segment * max(1, taskgraph.n_devices) < most:
        return
    reduces = taskgraph.kind == TaskKind.COLLECTIVE
    members = np.zeros(taskgraph.n_tasks)
    members[reduces] = np.diff(taskgraph.group_ptr)[taskgraph.group[reduces]]
    sent = np.where(reduces, 2.0 * np.maximum(members - 1, 0), taskgraph.kind == TaskKind.TRANSFER) * taskgraph.size
    if (needed := float(sent.sum()) / segment) > most:
        larger = min(_SEGMENT, 2 ** int(np.ceil(np.log2(sent.sum() / MOST_SMALL))))
        if sent.sum() / larger > MOST_SEGMENTS:
            larger = 2 ** int(np.ceil(np.log2(sent.sum() / MOST_SEGMENTS)))
        raise TopoplanError(
            f"simulator flexnet: segment-bytes is {segment}, and the messages of an iteration have {sent.sum():.3g} "
            f"bytes (the most: {taskgraph.label(int(np.argmax(sent)))}): {needed:.3g} segments, of which {most:.0e} "
            f"are simulated at most (take --simulator flexnet:segment-bytes={larger} or more, or --simulator fluid)"
        )


def directions(taskgraph: TaskGraph, seed: int) -> I8:
    """(T,) 1 for an all-reduce whose ring walks backwards, drawn with a fair coin each; 0 for all others."""
    coins = np.random.default_rng(seed).integers(0, 2, taskgraph.n_tasks)
    return np.where(taskgraph.kind == TaskKind.COLLECTIVE, coins, 0).astype(np.int8)


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
    reduces = taskgraph.kind == TaskKind.COLLECTIVE
    first[reduces] = taskgraph.group_members[taskgraph.group_ptr[taskgraph.group[reduces]]]
    return i32(first)

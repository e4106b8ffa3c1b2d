"""A plan as nodes of the trace of each rank; device ``d`` is rank ``d``.

A task is a node on its device, a transfer a SEND and a RECV, a collective a COLL on each member.  What has no run time
and no device of its own, as a join, is an operator of the CPU, which no kernel waits for, or no node at all.
``data_deps`` are the dependencies of the task graph.  One that leads from one rank to another without a transfer is a
message of one byte (`extras.SYNC`).

ASTRA-sim runs one SEND or COLL of a rank at a time.  Were two collectives in different orders on two ranks, both would
wait for ever.  So ``ctrl_deps`` chain them in one order for all ranks, that of their simulated start (`order`): every
node waits for nodes that come before it in this order alone, and the first one that has not ended can always run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from topoplan import Collective, Fabric, Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.arrays import F64, f64
from topoplan_engine.simulation.gradients import as_simulated
from topoplan_exporter_chakra.extras import METADATA, PLACES, ROW, ROW_FIELDS, SYNC, metadata
from topoplan_exporter_chakra.order import Order, Place
from topoplan_exporter_chakra.schema import CollectiveType, Node, NodeType, Trace, Value, encode

__all__ = ["GROUPS", "MICROSECOND", "STEM", "Written", "traces"]

#: Seconds of a microsecond; how the files of traces begin, and that of process groups.
MICROSECOND, STEM, GROUPS = 1e-6, "rank", "comm_groups.json"

_TYPES = {
    Collective.ALL_REDUCE: CollectiveType.ALL_REDUCE,
    Collective.ALL_GATHER: CollectiveType.ALL_GATHER,
    Collective.REDUCE_SCATTER: CollectiveType.REDUCE_SCATTER,
}


@attrs.frozen
class Written:
    """Nodes of all ranks, process groups by name, and what surrounds the tasks (`extras.metadata`)."""

    nodes: list[list[Node]]
    groups: dict[str, list[int]]
    metadata: str

    def files(self) -> dict[str, bytes]:
        """Return traces and process groups, by name of file."""
        files = {
            f"{STEM}.{rank}.et": encode(Trace({} if rank else {METADATA: self.metadata}, tuple(nodes)))
            for rank, nodes in enumerate(self.nodes)
        }
        return {**files, GROUPS: json.dumps(self.groups).encode() + b"\n"}


def traces(plan: Plan, microsecond: float, *, has_cpu: bool = True) -> Written:
    """Return a plan as traces.

    Args:
        plan: any plan on a fabric that stays.
        microsecond: how many seconds are written as one microsecond; durations are whole ones.
        has_cpu: joins are operators of the CPU.  Without them, what waits for a join waits for what the join waits
            for, what a host does before a collective is a kernel, and the rows of joins are in the metadata.

    Raises:
        TopoplanError: the fabric is rebuilt during the iteration, or the tasks wait for each other.
    """
    if not isinstance(plan.fabric, Fabric):
        raise TopoplanError("chakra: the fabric is rebuilt during the iteration, which traces cannot say")
    graph = as_simulated(plan)[0]
    writer = _Writer(graph, *_seconds(plan, graph), microsecond, has_cpu=has_cpu)
    for place in writer.order.places:
        writer.add(place)
    writer.fill()
    ptr, members = graph.group_ptr, graph.group_members
    groups = {str(row + 1): members[ptr[row] : ptr[row + 1]].tolist() for row in sorted(writer.groups)}
    return Written(writer.nodes, groups, metadata(graph, plan.cluster, plan.fabric, writer.skipped))


def _seconds(plan: Plan, graph: TaskGraph) -> tuple[F64, F64]:
    """Return when tasks start and finish: as simulated, as read, or all at once."""
    if plan.timeline is not None and len(plan.timeline.start) == graph.n_tasks:
        return plan.timeline.start, plan.timeline.finish
    read = graph.foreign.get("chakra")
    if read is not None and len(read["start"]) == graph.n_tasks:
        return read["start"], read["finish"]
    return f64([0.0] * graph.n_tasks), f64([0.0] * graph.n_tasks)


class _Writer:
    """Nodes of all ranks, in the order in which `add` is called.

    Attributes:
        order: what is to be added.
        nodes: by rank; the id of a node is its place there.
        groups: rows of groups that a node names.
        skipped: tasks that have no node -> the rank where they are, and their row.
    """

    def __init__(self, graph: TaskGraph, start: F64, finish: F64, microsecond: float, *, has_cpu: bool) -> None:
        self.order = Order.of(graph, start, finish)
        self.nodes: list[list[Node]] = [[] for _ in range(graph.n_devices)]
        self.groups: set[int] = set()
        self.skipped: dict[int, tuple[int, list[float]]] = {}
        self._has_cpu = has_cpu
        self._behind: dict[int, tuple[int, ...]] = {}  # skipped task -> nodes of its rank that it waits for
        self._graph, self._microsecond = graph, microsecond
        self._start, self._finish = start, finish
        self._last: list[tuple[int, ...]] = [()] * graph.n_devices  # the last SEND or COLL of each rank
        self._ended: dict[tuple[int, int], int] = {}  # (task, rank) -> node there that ends when the task has ended
        self._tag = graph.n_tasks

    def add(self, place: Place) -> None:
        """Add the nodes of a task, or of a message of one byte after it."""
        task, ranks, graph = place.task, self.order.ends[place.task], self._graph
        deps: tuple[int, ...]
        kind = TaskKind(graph.kind[task])
        if place.target >= 0:
            deps = self._behind[task] if task in self.skipped else (self._ended[task, ranks[0]],)
            self._send("sync", ranks[0], place.target, 1, self._tag, deps, {SYNC: True})
            self._ended[task, place.target] = self._receive("sync", ranks[0], place.target, 1, self._tag, {SYNC: True})
            self._tag += 1
        elif kind is TaskKind.TRANSFER and ranks[0] != ranks[1]:
            (dst, src), size = ranks, max(int(graph.size[task]), 1)
            deps, places = self._waits(task, src)
            attributes = {**self._row(task), **places}
            self._ended[task, src] = self._send(self._name(task), src, dst, size, task, deps, attributes)
            self._ended[task, dst] = self._receive(self._name(task), src, dst, size, task, {})
        elif kind is TaskKind.COLLECTIVE and len(ranks) > 1:
            for rank in ranks:
                self._add_member(task, rank)
        elif kind in (TaskKind.TRANSFER, TaskKind.COLLECTIVE) and not self._has_cpu:
            self.skipped[task] = ranks[0], self._values(task)
            self._behind[task] = self._waits(task, ranks[0])[0]
        else:
            cpu = kind in (TaskKind.TRANSFER, TaskKind.COLLECTIVE)
            deps, places = self._waits(task, ranks[0])
            attributes = {"is_cpu_op": cpu, **self._row(task), **places}
            self._ended[task, ranks[0]] = self._add(
                ranks[0], self._name(task), NodeType.COMP, deps, attributes, task=task
            )

    def fill(self) -> None:
        """Give ranks without a node one that does nothing: ASTRA-sim reads no empty trace."""
        for rank, nodes in enumerate(self.nodes):
            if not nodes:
                self._add(rank, "idle", NodeType.COMP, (), {"is_cpu_op": self._has_cpu})

    def _add_member(self, task: int, rank: int) -> None:
        """Add a collective on one of its ranks, behind what its host does before the first byte."""
        graph, ranks = self._graph, self.order.ends[task]
        row, size = int(graph.group[task]), int(graph.size[task])
        self.groups.add(row)
        kind = _TYPES[Collective(graph.collective[task])]
        if kind is CollectiveType.ALL_GATHER:  # counted by what one rank has, a reduce-scatter by the whole tensor
            size = -(-2 * size // len(ranks))
        elif kind is CollectiveType.REDUCE_SCATTER:
            size *= 2
        deps, places = self._waits(task, rank)
        if graph.seconds[task] > 0:
            cpu: dict[str, Value] = {"is_cpu_op": self._has_cpu}
            deps = (*deps, self._add(rank, f"{self._name(task)} inside the host", NodeType.COMP, deps, cpu, task=task))
        attributes: dict[str, Value] = {
            "is_cpu_op": False,
            "comm_type": int(kind),
            "comm_size": max(size, 1),
            "pg_name": str(row + 1),
            **(self._row(task) if rank == ranks[0] else {ROW: [float(task)]}),
            **places,
        }
        self._ended[task, rank] = self._add(rank, self._name(task), NodeType.COLL, deps, attributes, chained=True)

    def _send(
        self, name: str, src: int, dst: int, size: int, tag: int, deps: tuple[int, ...], extra: Mapping[str, Value]
    ) -> int:
        ends: dict[str, Value] = {"comm_size": size, "comm_src": src, "comm_dst": dst, "comm_tag": tag}
        return self._add(src, name, NodeType.SEND, deps, {"is_cpu_op": False, **ends, **extra}, chained=True)

    def _receive(self, name: str, src: int, dst: int, size: int, tag: int, extra: Mapping[str, Value]) -> int:
        ends: dict[str, Value] = {"comm_size": size, "comm_src": src, "comm_dst": dst, "comm_tag": tag}
        return self._add(dst, name, NodeType.RECV, (), {"is_cpu_op": False, **ends, **extra})

    def _add(
        self,
        rank: int,
        name: str,
        kind: NodeType,
        deps: tuple[int, ...],
        attributes: Mapping[str, Value],
        *,
        task: int = -1,
        chained: bool = False,
    ) -> int:
        """Add a node to a rank, with the duration of ``task`` unless it is -1, and return its id."""
        number = len(self.nodes[rank])
        seconds = float(self._graph.seconds[task]) if task >= 0 else 0.0
        start = float(self._start[task]) if task >= 0 else 0.0
        self.nodes[rank].append(
            Node(
                number,
                name,
                kind,
                self._last[rank] if chained else (),
                deps,
                round(start / self._microsecond),
                round(seconds / self._microsecond),
                attributes,
            )
        )
        if chained:
            self._last[rank] = (number,)
        return number

    def _waits(self, task: int, rank: int) -> tuple[tuple[int, ...], dict[str, Value]]:
        """Return the nodes of a rank that a task waits for, and where it stands among the successors of each.

        Nodes behind a task that has none come last, and without a place.
        """
        have = [(before, self._ended.get((before, rank)), place) for before, place in self.order.waits[task]]
        local = [(node, place) for before, node, place in have if node is not None and before not in self.skipped]
        further: dict[int, None] = {}
        for before, node, _ in have:
            if before in self.skipped:
                at_home = self.skipped[before][0] == rank
                further |= dict.fromkeys(self._behind[before] if at_home else () if node is None else (node,))
        nodes = [node for node, _ in local]
        places: dict[str, Value] = {PLACES: [place for _, place in local]} if local else {}
        return (*nodes, *(node for node in further if node not in nodes)), places

    def _row(self, task: int) -> dict[str, Value]:
        return {ROW: self._values(task)}

    def _values(self, task: int) -> list[float]:
        """Return the row of the task graph (`extras.ROW_FIELDS`)."""
        graph = self._graph
        columns = {"task": task, "start": self._start[task], "finish": self._finish[task]}
        if graph.micro_batch is None:
            columns["micro_batch"] = -1
        return [float(columns[field] if field in columns else getattr(graph, field)[task]) for field in ROW_FIELDS]

    def _name(self, task: int) -> str:
        """Say what a task does, for example ``conv1 forward``, ``linear1 to device 3`` or ``linear1 all-reduce``."""
        graph = self._graph
        op = int(graph.op[task])
        name = graph.op_names[op] if 0 <= op < len(graph.op_names) else f"task {task}"
        if graph.kind[task] == TaskKind.TRANSFER:
            return f"{name} to device {graph.dst[task]}"
        if graph.kind[task] == TaskKind.COLLECTIVE:
            return f"{name} {Collective(graph.collective[task]).label}"
        return f"{name} {TaskKind(graph.kind[task]).name.lower()}"

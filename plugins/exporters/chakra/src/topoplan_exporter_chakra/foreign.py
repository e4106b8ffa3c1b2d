"""Traces of other programs -> a task graph, for any network.

Rank ``r`` is a device of host ``r``; where a trace has operators of a CPU, a host has a second device for them, and one
more where it has collectives that take their duration.  All
dependencies hold, ``ctrl_deps`` too.  A message starts when its SEND can, as in ASTRA-sim; a RECV that waits for more
than the message is a join of both.  The n-th collective of a process group on one rank is the n-th on all others.

What of PyTorch's converter has no other meaning is as in ASTRA-sim (Workload.cc at 518bd51): the call of a collective
on the CPU takes its duration, and so does a broadcast; a dependency on a node that the trace lacks is none.  A node
that says its work (``num_ops``, ``tensor_size``) and no duration gets its time from whoever simulates
(`topoplan_engine.work`).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from topoplan import Cluster, Collective, Fabric, Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.errors import shown
from topoplan.model.taskgraph import MOST_BYTES
from topoplan_engine.csr import indptr
from topoplan_engine.work import work_columns
from topoplan_exporter_chakra.reading import Ranks, integer, matched, message_ends, on_cpu
from topoplan_exporter_chakra.schema import CollectiveType, Node, NodeType

__all__ = ["NETWORK", "plan_of"]

#: Name of the fabric of traces: they have none.
NETWORK = "none (traces have no network; name one with --topology)"

_SINGLE = {
    CollectiveType.ALL_REDUCE: Collective.ALL_REDUCE,
    CollectiveType.ALL_GATHER: Collective.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CollectiveType.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
}
#: Collectives that take their duration.
_REPLAYED = (CollectiveType.BROADCAST, CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER)
_MOST_OPS = 1e30


def plan_of(ranks: Ranks) -> Plan:
    """Return the tasks of traces, on hosts that nothing joins.

    Raises:
        TopoplanError: the traces do not fit each other, or hold what is not simulated.
    """
    tasks = _Tasks(ranks)
    n_ranks = len(ranks.traces)
    fabric = Fabric.from_links(name=NETWORK, n_hosts=n_ranks, links=[], bandwidth=[], latency=[])
    cluster = Cluster.uniform(n_hosts=n_ranks, devices_per_host=tasks.per_host, device_preset="rank", interfaces=1)
    return Plan(cluster=cluster, fabric=fabric, taskgraph=tasks.graph())


class _Tasks:
    """Collects rows of a task graph, and the dependencies of nodes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        nodes = [node for trace in ranks.traces for node in trace.nodes]
        has_cpu, replays = any(map(_computes_on_cpu, nodes)), any(map(_is_replayed, nodes))
        self.per_host = 1 + has_cpu + replays
        self._rows: list[tuple[int, int, float, int, int, int, int, int, int]] = []
        self._op_of: dict[str, int] = {}
        self._group_of: dict[tuple[int, ...], int] = {}
        self._work: dict[int, tuple[float, float]] = {}  # task -> operations and bytes, in the place of seconds
        self._edges: set[tuple[int, int]] = set()
        self._place: list[tuple[int, Node]] = []  # where each task comes from
        self._starts: dict[tuple[int, int], int] = {}  # (rank, id) -> task that waits for what the node waits for
        self._ends: dict[tuple[int, int], int] = {}  # (rank, id) -> task that ends when the node has ended
        self._add_nodes()
        self._add_collectives()
        self._add_edges()

    def _add(self, rank: int, node: Node, kind: TaskKind, **columns: float) -> int:
        """Add a task and return its number."""
        row = {"device": -1, "seconds": 0.0, "size": 0, "src": -1, "dst": -1, "group": -1, "collective": -1, **columns}
        op = self._op_of.setdefault(node.name, len(self._op_of))
        self._rows.append((int(kind), *row.values(), op))  # type: ignore[arg-type]
        self._place.append((rank, node))
        return len(self._rows) - 1

    def _join(self, rank: int, node: Node) -> int:
        group = self._group((rank * self.per_host,))
        return self._add(rank, node, TaskKind.COLLECTIVE, group=group, collective=Collective.JOIN)

    def _add_operator(self, rank: int, node: Node) -> int:
        """Add an operator, of the CPU or not; of one that says its work alone the seconds come later."""
        device = rank * self.per_host + _computes_on_cpu(node)
        task = self._add(rank, node, TaskKind.FORWARD, device=device, seconds=node.duration * 1e-6)
        if not node.duration and node.type is NodeType.COMP:
            ops, size = (self._quantity(rank, node, name) for name in ("num_ops", "tensor_size"))
            if ops or (size and "num_ops" in node.attributes):
                self._work[task] = ops, size
        return task

    def _quantity(self, rank: int, node: Node, attribute: str) -> float:
        value = node.attributes.get(attribute, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_OPS:
            what = f"has {attribute} {shown(value)} (expected a number from 0 to {_MOST_OPS:g})"
            raise TopoplanError(f"{self._ranks.where(rank, node)} {what}")
        return float(value)

    def _group(self, devices: tuple[int, ...]) -> int:
        return self._group_of.setdefault(devices, len(self._group_of))

    def _add_nodes(self) -> None:
        """Add all nodes but collectives."""
        sender = matched(self._ranks)
        for rank, trace in enumerate(self._ranks.traces):
            for node in trace.nodes:
                key = rank, node.id
                match node.type:
                    case NodeType.COMP:
                        self._starts[key] = self._add_operator(rank, node)
                    case NodeType.SEND | NodeType.RECV | NodeType.COLL if on_cpu(node):
                        self._starts[key] = self._add_operator(rank, node)
                    case NodeType.METADATA | NodeType.INVALID:
                        self._starts[key] = self._join(rank, node)
                    case NodeType.SEND:
                        self._starts[key] = self._add_message(rank, node)
                    case NodeType.RECV if node.ctrl_deps or node.data_deps:
                        self._starts[key] = self._join(rank, node)
                    case NodeType.MEM_LOAD | NodeType.MEM_STORE:
                        raise TopoplanError(
                            f"{self._ranks.where(rank, node)} is a {node.type.name} node, which is not simulated "
                            "(memory beyond the devices has no model here)"
                        )
                    case _:
                        pass
        self._ends = dict(self._starts)
        for (rank, number), send in sender.items():
            message = self._starts[send]
            if (rank, number) in self._starts:
                self._edges.add((message, self._starts[rank, number]))
            else:
                self._ends[rank, number] = message

    def _add_message(self, rank: int, node: Node) -> int:
        src, dst, _ = message_ends(self._ranks, rank, node)
        size = integer(self._ranks, rank, node, "comm_size", 0, MOST_BYTES)
        ends = {"src": src * self.per_host, "dst": dst * self.per_host}
        return self._add(rank, node, TaskKind.TRANSFER, size=size, **ends)

    def _add_collectives(self) -> None:
        """Add collectives, each once for all of its members."""
        calls: dict[tuple[str, int], list[Node]] = defaultdict(list)
        for rank, trace in enumerate(self._ranks.traces):
            for node in sorted(trace.nodes, key=lambda node: node.id):
                if node.type is NodeType.COLL and not on_cpu(node):
                    calls[self._group_name(rank, node), rank].append(node)
        for group in dict.fromkeys(name for name, _ in calls):
            members = self._members(group)
            for rank, nodes in [(rank, nodes) for (name, rank), nodes in calls.items() if name == group]:
                if rank not in members:
                    raise TopoplanError(
                        f"{self._ranks.where(rank, nodes[0])}: rank {rank} is not in its process group {shown(group)}"
                    )
            first = calls[group, members[0]]
            for rank in members:
                have = len(calls[group, rank])
                if have != len(first):
                    raise TopoplanError(
                        f"{self._ranks.where(rank)}: has {have} collectives of process group {shown(group)}, but rank "
                        f"{members[0]} has {len(first)} (every member needs all of them)"
                    )
            for number in range(len(first)):
                self._add_collective(members, [calls[group, rank][number] for rank in members])

    def _group_name(self, rank: int, node: Node) -> str:
        name = node.attributes.get("pg_name", "")
        if not isinstance(name, str):
            raise TopoplanError(f"{self._ranks.where(rank, node)} has pg_name {shown(name)} (expected a text)")
        if name not in ("", "0") and name not in (self._ranks.groups or {}):
            missing = "no file of process groups (comm_groups.json)" if self._ranks.groups is None else "no such group"
            raise TopoplanError(f"{self._ranks.where(rank, node)} is of process group {shown(name)}: {missing}")
        return "" if name == "0" else name

    def _members(self, group: str) -> tuple[int, ...]:
        return tuple(range(len(self._ranks.traces))) if group == "" else (self._ranks.groups or {})[group]

    def _add_collective(self, members: tuple[int, ...], nodes: list[Node]) -> None:
        """Add a collective: one task, or transfers between two joins for an all-to-all."""
        kinds = [integer(self._ranks, r, n, "comm_type", 0, 9) for r, n in zip(members, nodes, strict=True)]
        sizes = [integer(self._ranks, r, n, "comm_size", 0, MOST_BYTES, 0) for r, n in zip(members, nodes, strict=True)]
        odd = next(
            (index for index, each in enumerate(zip(kinds, sizes, strict=True)) if each != (kinds[0], sizes[0])), None
        )
        if odd is not None:
            raise TopoplanError(
                f"{self._ranks.where(members[odd], nodes[odd])}: is {_name_of(kinds[odd])} of {sizes[odd]} bytes, "
                f"but node {nodes[0].id} of rank {members[0]} is {_name_of(kinds[0])} of {sizes[0]} bytes"
            )
        kind, size, rank, node = CollectiveType(kinds[0]), sizes[0], members[0], nodes[0]
        keys = [(rank, node.id) for rank, node in zip(members, nodes, strict=True)]
        if kind in _REPLAYED and len(members) > 1:
            self._replay(members, nodes, kind)
            return
        enter = leave = -1
        if len(members) == 1 or kind is CollectiveType.BARRIER:
            enter = leave = self._join(rank, node)
        elif kind is CollectiveType.ALL_TO_ALL:
            enter, leave = self._join(rank, node), self._join(rank, node)
            self._add_exchange(members, node, -(-size // len(members)), enter, leave)
        elif kind in _SINGLE:
            if kind is CollectiveType.ALL_GATHER:  # of what one rank has; we count half of the whole tensor
                size *= len(members)
            if kind is not CollectiveType.ALL_REDUCE:
                size = -(-size // 2)
            group = self._group(tuple(rank * self.per_host for rank in members))
            enter = leave = self._add(rank, node, TaskKind.COLLECTIVE, group=group, size=size, collective=_SINGLE[kind])
        else:
            names = ", ".join(each.name for each in (*_SINGLE, CollectiveType.ALL_TO_ALL, CollectiveType.BARRIER))
            raise TopoplanError(
                f"{self._ranks.where(rank, node)} is a {kind.name}, which is not simulated (have: {names})"
            )
        self._starts.update(dict.fromkeys(keys, enter))
        self._ends.update(dict.fromkeys(keys, leave))

    def _replay(self, members: tuple[int, ...], nodes: list[Node], kind: CollectiveType) -> None:
        """Add a collective that takes its duration on each rank, which waits for no other one."""
        for rank, node in zip(members, nodes, strict=True):
            if not node.duration:
                names = ", ".join(each.name for each in (*_SINGLE, CollectiveType.ALL_TO_ALL, CollectiveType.BARRIER))
                raise TopoplanError(
                    f"{self._ranks.where(rank, node)} is a {kind.name} without a duration, which is not simulated (it "
                    f"takes its duration, as in ASTRA-sim; simulated are {names})"
                )
            device = (rank + 1) * self.per_host - 1  # one of its own: kernels that compute run beside it
            task = self._add(rank, node, TaskKind.FORWARD, device=device, seconds=node.duration * 1e-6)
            self._starts[rank, node.id] = self._ends[rank, node.id] = task

    def _add_exchange(self, members: tuple[int, ...], node: Node, size: int, enter: int, leave: int) -> None:
        """Add the transfers of an all-to-all."""
        for src in members:
            for dst in members:
                if src != dst:
                    ends = {"src": src * self.per_host, "dst": dst * self.per_host}
                    transfer = self._add(src, node, TaskKind.TRANSFER, size=size, **ends)
                    self._edges |= {(enter, transfer), (transfer, leave)}

    def _add_edges(self) -> None:
        for rank, trace in enumerate(self._ranks.traces):
            for node in trace.nodes:
                for needed in {*node.ctrl_deps, *node.data_deps}:
                    self._edges.add((self._ends[rank, needed], self._starts.get((rank, node.id), -1)))

    def graph(self) -> TaskGraph:
        """Return the task graph.

        Raises:
            TopoplanError: tasks wait for each other in a circle.
        """
        edges = np.array(sorted(self._edges), dtype=np.int64).reshape(-1, 2)
        names = ("kind", "device", "seconds", "size", "src", "dst", "group", "collective", "op")
        columns = {name: np.array([row[index] for row in self._rows]) for index, name in enumerate(names)}
        members = list(self._group_of)
        succ_ptr = indptr(np.bincount(edges[:, 0], minlength=len(self._rows)), np.int32)
        if not self._rows:
            raise TopoplanError(f"{self._ranks.name}: the traces have no nodes")
        graph = TaskGraph(
            **columns,  # type: ignore[arg-type]
            succ_ptr=succ_ptr,
            succ=edges[:, 1],
            group_ptr=indptr([len(each) for each in members], np.int32),
            group_members=[device for each in members for device in each],
            op_names=tuple(self._op_of),
            n_devices=len(self._ranks.traces) * self.per_host,
            foreign=work_columns(len(self._rows), self._work),
        )
        self._check_order(graph)
        return graph

    def _check_order(self, graph: TaskGraph) -> None:
        waits = graph.predecessor_counts().tolist()
        ready = [task for task, count in enumerate(waits) if not count]
        while ready:
            for after in graph.successors(ready.pop()).tolist():
                waits[after] -= 1
                if not waits[after]:
                    ready.append(after)
        stuck = next((task for task, count in enumerate(waits) if count), None)
        if stuck is not None:
            rank, node = self._place[stuck]
            raise TopoplanError(
                f"{self._ranks.where(rank, node)} waits for itself: cyclic dependency (or collectives that "
                "ranks start in different orders)"
            )


def _computes_on_cpu(node: Node) -> bool:
    """Return whether a node occupies the CPU: an operator there, or the call of a message or a collective."""
    return on_cpu(node) and node.type in (NodeType.COMP, NodeType.SEND, NodeType.RECV, NodeType.COLL)


def _is_replayed(node: Node) -> bool:
    return node.type is NodeType.COLL and not on_cpu(node) and node.attributes.get("comm_type") in _REPLAYED


def _name_of(kind: int) -> str:
    return CollectiveType(kind).name

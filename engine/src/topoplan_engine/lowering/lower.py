"""`Lowering`: strategies to task graphs, re-using every piece that did not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.memory import MemoryUse
from topoplan.model.problem import Demand
from topoplan.model.schedule import Schedule
from topoplan.model.strategy import Placement, Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.components import CostFunction
from topoplan_engine.lowering.interchange import interchangeable
from topoplan_engine.lowering.join import join, taskgraph_of
from topoplan_engine.lowering.pieces import EdgePiece, OperatorPiece, edge_piece, operator_piece
from topoplan_engine.partition import Transfers, transfers

if TYPE_CHECKING:
    from topoplan.model.spmd import SpmdProgram
    from topoplan_engine.lowering.fold import Alike, Folded
    from topoplan_engine.lowering.memory import Slices
    from topoplan_engine.lowering.spmd_prices import DeviceCosts

__all__ = ["Lowering"]

#: Pieces kept before the oldest half is dropped; a 128-server piece takes some 10 kB.
_KEPT = 20_000


class Lowering:
    """Lowers strategies of one graph on one cluster with one cost function."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self.graph = graph
        self.cluster = cluster
        self.costs = costs
        self._op_names = tuple(op.name for op in graph.operators)
        self._edges: list[tuple[int, int, int, int]] = [
            (u, out, v, into) for u, out, v, into in graph.edges.reshape(-1, 4).tolist()
        ]
        self._edge_kind = self._edge_kinds()
        self._edge_ops = np.array(self._edges, dtype=np.int32).reshape(-1, 4)[:, [0, 2]].T.copy()
        self._op_class, self._edge_class = interchangeable(graph, self._edge_kind)
        self._edges_at: list[list[int]] = [[] for _ in self._op_names]
        for edge, (u, _, v, _) in enumerate(self._edges):
            self._edges_at[u].append(edge)
            self._edges_at[v].append(edge)
        self._op_pieces: dict[Any, OperatorPiece] = {}
        self._edge_pieces: dict[Any, EdgePiece] = {}
        self._moved: dict[Any, Transfers] = {}
        self._slices: Slices | None = None

    def lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of one iteration under ``strategy``.

        Raises:
            TopoplanError: a placement that the cost function cannot price.
        """
        if strategy.program is not None:
            return self._of_program(strategy, strategy.program)
        ops, edges = self._pieces(strategy)
        joined = join(ops, edges, self._edge_ops)
        if strategy.schedule is None or strategy.schedule.trivial:
            return taskgraph_of(joined, self._op_names, self.cluster.n_devices)
        from topoplan_engine.lowering.schedule import scheduled

        gradient = np.concatenate([piece.weight_gradient for piece in ops])
        return scheduled(joined, strategy.schedule, gradient, self._op_names, self.cluster.n_devices)

    def _of_program(self, strategy: Strategy, program: SpmdProgram) -> TaskGraph:
        from topoplan_engine.lowering.spmd import program_taskgraph

        return program_taskgraph(self.graph, program, strategy.schedule, self._program_prices(program))

    def _program_prices(self, program: SpmdProgram) -> list[DeviceCosts]:
        from topoplan_engine.lowering.spmd_prices import device_costs

        return [
            device_costs(program, op, self.graph, self.cluster, self.costs) for op in range(len(self.graph.operators))
        ]

    def alike(self, strategy: Strategy) -> Alike:
        """Find what nothing tells apart in the iteration under ``strategy``, if all devices are alike."""
        from topoplan_engine.lowering.fold import Alike, parts_of
        from topoplan_engine.lowering.refine import classes

        joined = join(*self._pieces(strategy), self._edge_ops)
        columns = parts_of(joined, self._op_class, self._edge_class)
        return Alike(joined, classes(columns, self.cluster.n_devices))

    def fold(self, alike: Alike) -> Folded:
        """Return the iteration with one task for all that nothing tells apart."""
        from topoplan_engine.lowering.fold import folded

        return folded(*alike, self._op_names, self.cluster.n_devices)

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes that each device holds during the iteration; under a schedule, the most at a time."""
        if strategy.program is not None:
            from topoplan_engine.lowering.spmd_prices import program_memory

            return program_memory(strategy.program, self.graph, self._program_prices(strategy.program))
        ops = [self._operator_piece(op, placement) for op, placement in enumerate(strategy.placements)]
        if strategy.schedule is not None and not strategy.schedule.trivial:
            return self._scheduled_memory(ops, strategy, strategy.schedule)
        return np.bincount(
            np.concatenate([piece.devices for piece in ops]),
            weights=np.concatenate([piece.memory for piece in ops]),
            minlength=self.cluster.n_devices,
        ).astype(np.float64)

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """Return the same by what it is for, in whole bytes."""
        from topoplan_engine.lowering.memory import Slices, divided

        if strategy.program is not None:
            from topoplan_engine.lowering.spmd_prices import program_memory_use

            return program_memory_use(strategy.program, self.graph, self._program_prices(strategy.program))
        self._slices = self._slices or Slices(self.graph)
        ops = [self._operator_piece(op, placement) for op, placement in enumerate(strategy.placements)]
        return divided(strategy, ops, self._slices, self.memory(strategy))

    def _scheduled_memory(self, ops: Sequence[OperatorPiece], strategy: Strategy, schedule: Schedule) -> F64:
        from topoplan_engine.lowering.memory import Slices, scheduled_peak

        self._slices = self._slices or Slices(self.graph)
        memory, kept = [piece.memory for piece in ops], [piece.kept for piece in ops]
        return scheduled_peak(
            schedule,
            self._slices.held(strategy.placements, memory, kept, schedule),
            np.repeat(schedule.stage, [len(piece.devices) for piece in ops]),
            np.concatenate([piece.devices for piece in ops]),
            np.concatenate([piece.weight_gradient for piece in ops]),
            self.cluster.n_devices,
        )

    def demand(self, strategy: Strategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        if strategy.program is not None:
            from topoplan_engine.lowering.spmd_demand import taskgraph_demand

            return taskgraph_demand(self.lower(strategy), self.cluster)
        ops, edges = self._pieces(strategy)
        host, n_hosts = self.cluster.device_host, self.cluster.n_hosts
        sums: dict[bytes, float] = {}
        for piece in ops:
            ends = np.cumsum(piece.device_counts).tolist()
            for count, end, size in zip(piece.device_counts.tolist(), ends, piece.group_bytes.tolist(), strict=True):
                members = np.unique(host[piece.group_devices[end - count : end]])
                if len(members) > 1:
                    key = members.astype(np.int32).tobytes()
                    sums[key] = sums.get(key, 0.0) + size
        groups = [np.frombuffer(key, dtype=np.int32) for key in sums]
        sent, again = np.zeros((2, n_hosts * n_hosts))
        repeated = self._repeated_edges(strategy)
        for number, edge in enumerate(edges):
            source, target = host[edge.devices].astype(np.int64)
            apart = source != target
            source, target, size = source[apart], target[apart], edge.size[apart].astype(np.float64)
            moved = np.bincount(source * n_hosts + target, weights=size, minlength=n_hosts * n_hosts)
            sent += moved
            if number in repeated:
                again += moved
        forward, repeat = sent.reshape(n_hosts, n_hosts), again.reshape(n_hosts, n_hosts)
        return Demand(
            group_ptr=np.concatenate(([0], np.cumsum([len(g) for g in groups]))),
            group_members=np.concatenate(groups) if groups else [],
            group_bytes=list(sums.values()),
            matrix=forward + repeat + forward.T,  # gradients go back the same way
            forward=forward,  # what is repeated is sent again in the backward pass
        )

    def _repeated_edges(self, strategy: Strategy) -> set[int]:
        """Edges inside stages that recompute: their messages are sent again."""
        schedule = strategy.schedule
        if schedule is None or not any(schedule.recompute):
            return set()
        stage = schedule.stage.tolist()
        return {
            edge
            for edge, (u, _, v, _) in enumerate(self._edges)
            if stage[u] == stage[v] and schedule.recompute[stage[u]]
        }

    def operator(self, strategy: Strategy, op: int) -> OperatorPiece:
        """Return the piece of operator ``op``; as long as it is kept, the same object for the same placement."""
        return self._operator_piece(op, strategy.placements[op])

    def edge(self, strategy: Strategy, edge: int) -> EdgePiece:
        """Return the piece of an edge, likewise."""
        u, _, v, _ = self._edges[edge]
        return self._edge_piece(edge, strategy.placements[u], strategy.placements[v])

    def edges_at(self, ops: Iterable[int]) -> list[int]:
        """Return the edges at any of these operators."""
        return list(dict.fromkeys(edge for op in ops for edge in self._edges_at[op]))

    def _pieces(self, strategy: Strategy) -> tuple[list[OperatorPiece], list[EdgePiece]]:
        placements = strategy.placements
        ops = [self._operator_piece(op, placement) for op, placement in enumerate(placements)]
        edges = [self._edge_piece(e, placements[u], placements[v]) for e, (u, _, v, _) in enumerate(self._edges)]
        return ops, edges

    def _operator_piece(self, op: int, placement: Placement) -> OperatorPiece:
        key = (op, placement.key)
        piece = self._op_pieces.get(key)
        if piece is None:
            operator = self.graph.operators[op]
            piece = operator_piece(op, operator, placement, self.costs, self.cluster, self.graph.dialect)
            _keep(self._op_pieces, key, piece)
        return piece

    def _edge_piece(self, edge: int, source: Placement, target: Placement) -> EdgePiece:
        key = (self._edge_kind[edge], source.key, target.key)
        piece = self._edge_pieces.get(key)
        if piece is None:
            u, out, v, into = self._edges[edge]
            producer, consumer = self.graph.operators[u], self.graph.operators[v]
            given, wanted = producer.outputs[out], consumer.inputs[into]
            cut = (self._edge_kind[edge], source.degrees, target.degrees)
            moved = self._moved.get(cut)
            if moved is None:
                moved = transfers(producer, given, source.degrees, consumer, wanted, target.degrees)
                _keep(self._moved, cut, moved)
            piece = edge_piece(moved, wanted.itemsize, source, target)
            _keep(self._edge_pieces, key, piece)
        return piece

    def _edge_kinds(self) -> list[int]:
        """Number the edges so that edges between operators of one form share their pieces."""
        kinds: dict[Any, int] = {}
        numbers = []
        for u, out, v, into in self._edges:
            producer, consumer = self.graph.operators[u], self.graph.operators[v]
            given, wanted = producer.outputs[out], consumer.inputs[into]
            form = (producer.dims, given.axes, consumer.dims, wanted.axes, wanted.itemsize)
            numbers.append(kinds.setdefault(form, len(kinds)))
        return numbers


def _keep(pieces: dict[Any, Any], key: Any, piece: Any) -> None:
    if len(pieces) >= _KEPT:
        for old in list(pieces)[: _KEPT // 2]:
            del pieces[old]
    pieces[key] = piece

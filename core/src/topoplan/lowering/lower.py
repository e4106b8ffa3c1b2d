"""`Lowering`: strategies to task graphs, re-using every piece that did not change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from topoplan.arrays import F64
from topoplan.cluster import Cluster
from topoplan.components import CostFunction
from topoplan.graph import OperatorGraph
from topoplan.lowering.pieces import EdgePiece, OperatorPiece, edge_piece, operator_piece
from topoplan.partition import Transfers, transfers
from topoplan.problem import Demand
from topoplan.strategy import Placement, Strategy
from topoplan.taskgraph import TaskGraph

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
        self._edges_at: list[list[int]] = [[] for _ in self._op_names]
        for edge, (u, _, v, _) in enumerate(self._edges):
            self._edges_at[u].append(edge)
            self._edges_at[v].append(edge)
        self._op_pieces: dict[Any, OperatorPiece] = {}
        self._edge_pieces: dict[Any, EdgePiece] = {}
        self._moved: dict[Any, Transfers] = {}

    def lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of one iteration under ``strategy``.

        Raises:
            TopoplanError: a placement that the cost function cannot price.
        """
        from topoplan.lowering.assemble import assemble

        ops, edges = self._pieces(strategy)
        parts = np.array([len(piece.devices) for piece in ops], dtype=np.int32)
        groups = [len(piece.group_bytes) for piece in ops]
        number = np.arange(len(ops), dtype=np.int32)
        columns = assemble(
            _pointer([parts]),
            np.concatenate([piece.devices for piece in ops]),
            np.repeat(number, parts),
            np.concatenate([piece.forward for piece in ops]),
            np.concatenate([piece.backward for piece in ops]),
            np.repeat(number, groups),
            _pointer([piece.part_counts for piece in ops]),
            np.concatenate([piece.group_parts for piece in ops]),
            np.concatenate([piece.group_bytes for piece in ops]),
            np.concatenate([piece.group_seconds for piece in ops]),
            _pointer([np.array([len(piece.src) for piece in edges], dtype=np.int32)]),
            self._edge_ops[0],
            self._edge_ops[1],
            _concatenated([piece.src for piece in edges], np.int32),
            _concatenated([piece.dst for piece in edges], np.int32),
            _concatenated([piece.size for piece in edges], np.int64),
            _concatenated([piece.local for piece in edges], np.bool_),
        )
        names = ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "succ_ptr", "succ")
        for column in columns:
            column.setflags(write=False)
        return TaskGraph(
            **dict(zip(names, columns, strict=True)),
            group_ptr=_pointer([piece.device_counts for piece in ops]),
            group_members=np.concatenate([piece.group_devices for piece in ops]),
            op_names=self._op_names,
            n_devices=self.cluster.n_devices,
        )

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes that each device holds during the iteration."""
        ops = [self._operator_piece(op, placement) for op, placement in enumerate(strategy.placements)]
        return np.bincount(
            np.concatenate([piece.devices for piece in ops]),
            weights=np.concatenate([piece.memory for piece in ops]),
            minlength=self.cluster.n_devices,
        ).astype(np.float64)

    def demand(self, strategy: Strategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
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
        matrix = np.zeros(n_hosts * n_hosts)
        for edge in edges:
            source, target = host[edge.devices].astype(np.int64)
            apart = source != target
            source, target, size = source[apart], target[apart], edge.size[apart].astype(np.float64)
            matrix += np.bincount(source * n_hosts + target, weights=size, minlength=n_hosts * n_hosts)
            matrix += np.bincount(target * n_hosts + source, weights=size, minlength=n_hosts * n_hosts)
        return Demand(
            group_ptr=np.concatenate(([0], np.cumsum([len(g) for g in groups]))),
            group_members=_concatenated(groups, np.int32),
            group_bytes=list(sums.values()),
            matrix=matrix.reshape(n_hosts, n_hosts),
        )

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


def _pointer(counts: list[Any]) -> Any:
    """Turn counts of rows, table by table, into the pointer of all rows one after the other."""
    lengths = np.concatenate(counts)
    pointer = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=pointer[1:])
    return pointer


def _concatenated(rows: list[Any], dtype: Any) -> Any:
    return np.concatenate(rows) if rows else np.zeros(0, dtype=dtype)

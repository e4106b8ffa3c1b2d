"""The fragments of one graph's task graphs, each derived once and found again by value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.plugin.components import CostFunction
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering.interchange import interchangeable
from topoplan_engine.lowering.join import Joined, join
from topoplan_engine.lowering.pieces import EdgePiece, FragmentKey, OperatorPiece, edge_piece, operator_piece
from topoplan_engine.partition import Transfers, transfers

__all__ = ["Fragments"]

#: Fragments of operators, of edges, and transfers that are kept; a 128-server fragment takes some 10 kB.
_KEPT = 20_000


class Fragments:
    """What single placements, and pairs of them at the ends of edges, contribute to task graphs.

    Attributes:
        graph, cluster, costs: what they are derived from.
        op_names: names of all operators.
        edges: (producer, output, consumer, input) of every edge.
        op_class, edge_class: equal numbers for interchangeable operators and edges.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self.graph, self.cluster, self.costs = graph, cluster, costs
        self.op_names = tuple(op.name for op in graph.operators)
        self.edges: list[tuple[int, int, int, int]] = [
            (u, out, v, into) for u, out, v, into in graph.edges.reshape(-1, 4).tolist()
        ]
        kinds = self._edge_kinds()
        self._edge_ends = [(kind, u, v) for kind, (u, _, v, _) in zip(kinds, self.edges, strict=True)]
        self._edge_ops = np.array(self.edges, dtype=np.int32).reshape(-1, 4)[:, [0, 2]].T.copy()
        self.op_class, self.edge_class = interchangeable(graph, kinds)
        self._edges_at: list[list[int]] = [[] for _ in self.op_names]
        for edge, (u, _, v, _) in enumerate(self.edges):
            self._edges_at[u].append(edge)
            self._edges_at[v].append(edge)
        self._op_pieces: LruCache[FragmentKey, OperatorPiece] = LruCache(_KEPT)
        self._edge_pieces: LruCache[FragmentKey, EdgePiece] = LruCache(_KEPT)
        self._transfers: LruCache[Any, Transfers] = LruCache(_KEPT)

    def operators(self, placements: Sequence[Placement]) -> list[OperatorPiece]:
        """Return the fragments of all operators."""
        return [self.operator(op, placement) for op, placement in enumerate(placements)]

    def all_edges(self, placements: Sequence[Placement]) -> list[EdgePiece]:
        """Return the fragments of all edges."""
        return [self.edge(edge, placements) for edge in range(len(self.edges))]

    def joined(self, placements: Sequence[Placement]) -> Joined:
        """Return the columns of all fragments, one after the other."""
        return join(self.operators(placements), self.all_edges(placements), self._edge_ops)

    def edges_at(self, ops: Iterable[int]) -> list[int]:
        """Return the edges at any of these operators."""
        return list(dict.fromkeys(edge for op in ops for edge in self._edges_at[op]))

    def operator(self, op: int, placement: Placement) -> OperatorPiece:
        """Return the fragment of an operator; as long as it is kept, the same object for the same placement."""
        key = (op, placement.key)
        try:
            return self._op_pieces[key]
        except KeyError:
            operator = self.graph.operators[op]
            piece = operator_piece(key, operator, placement, self.costs, self.cluster, self.graph.reduces_per_part)
            return self._op_pieces.put(key, piece)

    def edge(self, edge: int, placements: Sequence[Placement]) -> EdgePiece:
        """Return the fragment of an edge, likewise."""
        kind, u, v = self._edge_ends[edge]
        source, target = placements[u], placements[v]
        key = (kind, source.key, target.key)
        try:
            return self._edge_pieces[key]
        except KeyError:
            itemsize = self.graph.operators[v].inputs[self.edges[edge][3]].itemsize
            piece = edge_piece(key, self._transfers_of(edge, source, target), itemsize, source, target)
            return self._edge_pieces.put(key, piece)

    def _transfers_of(self, edge: int, source: Placement, target: Placement) -> Transfers:
        u, out, v, into = self.edges[edge]
        cut = (self._edge_ends[edge][0], source.degrees, target.degrees)
        known = self._transfers.find(cut)
        if known is not None:
            return known
        producer, consumer = self.graph.operators[u], self.graph.operators[v]
        given, wanted = producer.outputs[out], consumer.inputs[into]
        moved = transfers(producer, given, source.degrees, consumer, wanted, target.degrees)
        return self._transfers.put(cut, moved)

    def _edge_kinds(self) -> list[int]:
        """Number the edges so that edges between operators of one form share their fragments."""
        kinds: dict[Any, int] = {}
        numbers = []
        for u, out, v, into in self.edges:
            producer, consumer = self.graph.operators[u], self.graph.operators[v]
            given, wanted = producer.outputs[out], consumer.inputs[into]
            form = (producer.dims, given.axes, consumer.dims, wanted.axes, wanted.itemsize)
            numbers.append(kinds.setdefault(form, len(kinds)))
        return numbers

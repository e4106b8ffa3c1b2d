"""The fragments of one model's task graphs: each is derived once and cached by value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import Axis, OperatorGraph, Tensor
from topoplan.model.placement import Placement
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering.fragments import (
    EdgeFragment,
    FragmentKey,
    OperatorFragment,
    edge_fragment,
    micro_batch_seconds,
    operator_fragment,
)
from topoplan_engine.lowering.gradient_groups import GradientGroups, PlacedGroups, gradient_groups, placed_groups
from topoplan_engine.lowering.gradient_peaks import gradient_order
from topoplan_engine.lowering.parts import PartTable, concatenate
from topoplan_engine.lowering.passes import BackwardPasses
from topoplan_engine.lowering.symmetry.automorphism import automorphic_operators
from topoplan_engine.optimizer import OptimizerCosts
from topoplan_engine.partition import Transfers, slice_bounds, transfers
from topoplan_engine.training import gradient_flow, trained_weights

__all__ = ["FragmentCache"]

#: Entries of each cache; a fragment for 128 servers takes some 10 kB.
_ENTRIES = 20_000
#: Placements whose all-reduces are kept, for operators of one form.
_PLACED = 2_000


class FragmentCache:
    """Fragments of operators and edges, by their placements.

    Attributes:
        graph, cluster, costs: what fragments are derived from.
        op_names: names of all operators.
        optimizer_costs: the same costs, if they price the optimizer; else None.
        edges: (producer, output, consumer, input) of every edge.
        edge_ends: (kind, producer, consumer) of every edge; edges of one kind share their fragments.
        edge_ops: (2, m) producers and consumers of all edges.
        edge_tensors: (m,) number of the tensor that passes each edge: equal for all that read one output.
        itemsizes: bytes of an element that passes each edge.
        gradient_order: in which a backward pass makes gradients of activations.
        op_class, edge_class: equal numbers for automorphic operators and edges.
        passes: which operators have a backward pass, and which edges gradients.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self.graph, self.cluster, self.costs = graph, cluster, costs
        self.optimizer_costs = costs if isinstance(costs, OptimizerCosts) else None
        self.op_names = tuple(op.name for op in graph.operators)
        self.edges: list[tuple[int, int, int, int]] = [
            (u, output, v, argument) for u, output, v, argument in graph.edges.reshape(-1, 4).tolist()
        ]
        forms: dict[Any, int] = {}
        self.passes = BackwardPasses.of(graph)
        # Operators of one form have the same groups of gradients.
        self._op_forms = [
            forms.setdefault((op.kind, op.dims, op.weights, trained), len(forms))
            for op, trained in zip(graph.operators, gradient_flow(graph).weights, strict=True)
        ]
        kinds = self._edge_kinds()
        self.edge_ends = [(kind, u, v) for kind, (u, _, v, _) in zip(kinds, self.edges, strict=True)]
        outputs = [edge[:2] for edge in self.edges]
        numbers = {output: number for number, output in enumerate(dict.fromkeys(outputs))}
        self.edge_tensors = np.array([numbers[output] for output in outputs], dtype=np.int64)
        self.itemsizes = [graph.operators[v].inputs[argument].itemsize for _, _, v, argument in self.edges]
        self.edge_ops = np.array(self.edges, dtype=np.int32).reshape(-1, 4)[:, [0, 2]].T.copy()
        self.op_class, self.edge_class = automorphic_operators(graph, kinds)
        self.gradient_order = gradient_order(graph)
        self._edges_at: list[list[int]] = [[] for _ in self.op_names]
        for edge, (u, _, v, _) in enumerate(self.edges):
            self._edges_at[u].append(edge)
            self._edges_at[v].append(edge)
        self._op_fragments: LruCache[FragmentKey, OperatorFragment] = LruCache(_ENTRIES)
        self._micro_batches: LruCache[tuple[int, bytes, int], F64] = LruCache(_ENTRIES)
        self._group_hosts: LruCache[FragmentKey, list[bytes]] = LruCache(_ENTRIES)
        self._edge_fragments: LruCache[FragmentKey, EdgeFragment] = LruCache(_ENTRIES)
        self._transfers: LruCache[Any, Transfers] = LruCache(_ENTRIES)
        self._slices: LruCache[Any, I64] = LruCache(_ENTRIES)
        self._placed_groups: LruCache[Any, PlacedGroups] = LruCache(_PLACED)
        self._gradient_groups: LruCache[Any, GradientGroups] = LruCache(_ENTRIES)

    def operators(self, placements: Sequence[Placement]) -> list[OperatorFragment]:
        """Return the fragments of all operators."""
        return [self.operator(op, placement) for op, placement in enumerate(placements)]

    def all_edges(self, placements: Sequence[Placement]) -> list[EdgeFragment]:
        """Return the fragments of all edges."""
        return [self.edge(edge, placements) for edge in range(len(self.edges))]

    def part_table(self, placements: Sequence[Placement]) -> PartTable:
        """Return all fragments, one after the other."""
        return concatenate(self.operators(placements), self.all_edges(placements), self.edge_ops)

    def edges_at(self, ops: Iterable[int]) -> list[int]:
        """Return the edges at any of these operators."""
        return list(dict.fromkeys(edge for op in ops for edge in self._edges_at[op]))

    def operator(self, op: int, placement: Placement) -> OperatorFragment:
        """Return the fragment of an operator; as long as it is cached, the same object for the same placement."""
        key = (op, placement.key)
        try:
            return self._op_fragments[key]
        except KeyError:
            operator = self.graph.operators[op]
            fragment = operator_fragment(
                key,
                operator,
                placement,
                self.placed_groups(op, placement),
                self.costs,
            )
            return self._op_fragments.put(key, fragment)

    def micro_batch_seconds(self, placements: Sequence[Placement], micro_batches: int) -> F64:
        """(3, parts) seconds of one micro-batch: forward, backward, and of it gradients of weights."""
        return np.concatenate(
            [self._seconds(op, placement, micro_batches) for op, placement in enumerate(placements)], axis=1
        )

    def _seconds(self, op: int, placement: Placement, micro_batches: int) -> F64:
        key = op, placement.key, micro_batches
        cached = self._micro_batches.find(key)
        if cached is not None:
            return cached
        seconds = micro_batch_seconds(op, self.graph.operators[op], placement, micro_batches, self.costs)
        return self._micro_batches.put(key, seconds)

    def hosts_of_groups(self, fragment: OperatorFragment) -> list[bytes]:
        """Return the hosts of each all-reduce group of an operator, ascending, each once, as bytes of int32."""
        cached = self._group_hosts.find(fragment.key)
        if cached is not None:
            return cached
        host, ends = self.cluster.device_host, np.cumsum(fragment.device_counts).tolist()
        groups = np.split(host[fragment.group_devices], ends[:-1]) if ends else []
        return self._group_hosts.put(fragment.key, [np.unique(hosts).astype(np.int32).tobytes() for hosts in groups])

    def edge(self, edge: int, placements: Sequence[Placement]) -> EdgeFragment:
        """Return the fragment of an edge; as long as it is cached, the same object for the same placements."""
        _, u, v = self.edge_ends[edge]
        return self.edge_between(edge, placements[u], placements[v])

    def edge_between(self, edge: int, source: Placement, target: Placement) -> EdgeFragment:
        """Return the fragment of an edge between the placements of its producer and its consumer."""
        key = (self.edge_ends[edge][0], source.key, target.key)
        try:
            return self._edge_fragments[key]
        except KeyError:
            pairs = self.transfers_of(edge, source, target)
            gradient = bool(self.passes.edges[edge])
            fragment = edge_fragment(key, pairs, self.itemsizes[edge], source, target, gradient)
            return self._edge_fragments.put(key, fragment)

    def placed_groups(self, op: int, placement: Placement) -> PlacedGroups:
        """Return the all-reduces of an operator's gradients."""
        key = (self._op_forms[op], placement.key)
        placed = self._placed_groups.find(key)
        if placed is None:
            groups = self._groups_of(op, placement.degrees)
            placed = placed_groups(groups, placement.devices, self.cluster, self.graph.reduces_per_part)
            self._placed_groups.put(key, placed)
        return placed

    def _groups_of(self, op: int, degrees: tuple[int, ...]) -> GradientGroups:
        key = (self._op_forms[op], degrees)
        cached = self._gradient_groups.find(key)
        if cached is not None:
            return cached
        weights = trained_weights(self.graph, op)
        groups = gradient_groups(self.graph.operators[op], degrees, self.cluster.gpus_per_device, weights)
        return self._gradient_groups.put(key, groups)

    def transfers_of(self, edge: int, source: Placement, target: Placement) -> Transfers:
        """Return what parts of an edge's producer and consumer send each other; their devices do not matter."""
        u, output, v, argument = self.edges[edge]
        key = (self.edge_ends[edge][0], source.degrees, target.degrees)
        cached = self._transfers.find(key)
        if cached is not None:
            return cached
        stop_if_wanted()
        producer, consumer = self.graph.operators[u], self.graph.operators[v]
        product, argument_tensor = producer.outputs[output], consumer.inputs[argument]
        slices = transfers(producer, product, source.degrees, consumer, argument_tensor, target.degrees)
        return self._transfers.put(key, slices)

    def edge_axes(self, edge: int) -> tuple[Axis, ...]:
        """Return the axes of the tensor that passes an edge, as its producer has them."""
        u, output, _, _ = self.edges[edge]
        return self.graph.operators[u].outputs[output].axes

    def slices_of(self, edge: int, placements: Sequence[Placement]) -> tuple[I64, I64]:
        """(2, P, axes) where the slices of an edge's tensor begin and end that its producer's parts make.

        And likewise those that its consumer's parts read.
        """
        u, output, v, argument = self.edges[edge]
        source = self._slices_of(u, self.graph.operators[u].outputs[output], placements[u].degrees)
        return source, self._slices_of(v, self.graph.operators[v].inputs[argument], placements[v].degrees)

    def _slices_of(self, op: int, tensor: Tensor, degrees: tuple[int, ...]) -> I64:
        key = op, tensor.axes, degrees
        cached = self._slices.find(key)
        if cached is not None:
            return cached
        return self._slices.put(key, slice_bounds(self.graph.operators[op], tensor, degrees))

    def _edge_kinds(self) -> list[int]:
        """Number the edges so that edges between operators of one form share their fragments."""
        kinds: dict[Any, int] = {}
        numbers = []
        for (u, output, v, argument), gradient in zip(self.edges, self.passes.edges.tolist(), strict=True):
            producer, consumer = self.graph.operators[u], self.graph.operators[v]
            product, argument_tensor = producer.outputs[output], consumer.inputs[argument]
            axes = (product.axes, argument_tensor.axes, argument_tensor.itemsize)
            form = (producer.dims, consumer.dims, axes, gradient)
            numbers.append(kinds.setdefault(form, len(kinds)))
        return numbers

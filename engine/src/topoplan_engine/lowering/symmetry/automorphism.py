"""Automorphisms of a model: classes of operators, and of edges, that only their numbers tell apart.

The tables of a recommendation model are the usual case: many operators of one form that feed one concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import U64
from topoplan.model.graph import OperatorGraph

__all__ = ["automorphic_operators"]


def automorphic_operators(graph: OperatorGraph, edge_kinds: Sequence[int]) -> tuple[U64, U64]:
    """Return classes of operators (n_ops,) and of edges (m,), each numbered by its first member.

    Operators are of one class when they have the same form, take the same tensors, and their outputs go to the same
    consumers in edges of the same kind.  They stand next to each other, and their outputs are inputs in the same order:
    so what a device lists of them has one order, whichever of them these are.

    Args:
        graph: the model.
        edge_kinds: (m,) equal where the ends of two edges are of the same form.
    """
    edges = [tuple(row) for row in graph.edges.reshape(-1, 4).tolist()]
    sources: list[list[tuple[int, ...]]] = [[] for _ in graph.operators]
    uses: list[list[tuple[int, ...]]] = [[] for _ in graph.operators]
    for (u, output, v, argument), kind in zip(edges, edge_kinds, strict=True):
        sources[v].append((u, output, argument))
        uses[u].append((v, output, kind, argument))
    first: dict[object, int] = {}
    op_classes: list[int] = []
    for number, op in enumerate(graph.operators):
        form = (op.kind, op.dims, op.inputs, op.weights, op.outputs, op.work, op.traffic, op.tags)
        key = (form, tuple(sources[number]), tuple(sorted(use[:3] for use in uses[number])))
        alike = number > 0 and first.get(key) == op_classes[-1] and _in_order(uses[number - 1], uses[number])
        if not alike:
            first[key] = number
        op_classes.append(first[key])
    single = [op_classes.count(number) == 1 for number in range(len(op_classes))]
    labels: dict[object, int] = {}
    edge_classes = []
    for number, ((u, output, v, argument), kind) in enumerate(zip(edges, edge_kinds, strict=True)):
        # Which input it is does not matter if the producer may change places with others.
        place = argument if single[op_classes[u]] else -1
        edge_classes.append(labels.setdefault((op_classes[u], output, op_classes[v], kind, place), number))
    return np.array(op_classes, dtype=np.uint64), np.array(edge_classes, dtype=np.uint64)


def _in_order(uses: Sequence[tuple[int, ...]], later: Sequence[tuple[int, ...]]) -> bool:
    """Whether each use of an operator is an earlier input than the same use of a later one."""
    return all(a[3] < b[3] for a, b in zip(sorted(uses), sorted(later), strict=True))

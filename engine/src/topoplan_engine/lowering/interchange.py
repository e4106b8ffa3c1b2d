"""Operators that may change places: which of a model's operators and edges nothing but their number tells apart.

The tables of a recommendation model are the usual case: many operators of one form that feed one concatenation.
Folding (`topoplan_engine.lowering.fold`) then takes "table 3 on device 5" and "table 9 on device 2" for the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import U64
from topoplan.model.graph import OperatorGraph

__all__ = ["interchangeable"]


def interchangeable(graph: OperatorGraph, edge_kinds: Sequence[int]) -> tuple[U64, U64]:
    """Return classes of operators (n_ops,) and of edges (m,), each numbered by its first member.

    Operators are of one class when they have the same form, take the same tensors, and their outputs go to the same
    consumers in edges of the same kind.

    Args:
        graph: the model.
        edge_kinds: (m,) equal where the ends of two edges are of the same form.
    """
    edges = [tuple(row) for row in graph.edges.reshape(-1, 4).tolist()]
    taken: list[list[tuple[int, ...]]] = [[] for _ in graph.operators]
    given: list[list[tuple[int, ...]]] = [[] for _ in graph.operators]
    for (u, out, v, into), kind in zip(edges, edge_kinds, strict=True):
        taken[v].append((u, out, into))
        given[u].append((v, out, kind))
    first: dict[object, int] = {}
    ops = []
    for number, op in enumerate(graph.operators):
        form = (op.kind, op.dims, op.inputs, op.weights, op.outputs, op.work, op.traffic, op.tags)
        ops.append(first.setdefault((form, tuple(taken[number]), tuple(sorted(given[number]))), number))
    alone = [ops.count(number) == 1 for number in range(len(ops))]
    labels: dict[object, int] = {}
    classes = []
    for number, ((u, out, v, into), kind) in enumerate(zip(edges, edge_kinds, strict=True)):
        # Which input it is does not matter where the producer may change places with others.
        place = into if alone[ops[u]] else -1
        classes.append(labels.setdefault((ops[u], out, ops[v], kind, place), number))
    return np.array(ops, dtype=np.uint64), np.array(classes, dtype=np.uint64)

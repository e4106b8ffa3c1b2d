"""Operators that every device runs whole, and of whose weights each device has a term of the gradient alone.

What is computed of weights alone is a weight itself: one normalized by its lengths, one with adapters added, a table of
positions that is looked up without samples.  Devices compute it whole, and use it for different samples or slices.  So
the gradient that comes back to each is its own term, and that of the weights below must be summed as that of any
weight.  So it is with what sees all samples on each device where its readers have some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import I64
from topoplan.model.graph import OperatorGraph
from topoplan.model.sharding import REPLICATED, Signature
from topoplan_engine.of_graphs import of_last_graphs

__all__ = ["whole_with_terms"]

#: In place of a dimension that is cut: none, every argument is whole; or none, and some argument is not.
_WHOLE, _OTHER = -1, -2


def whole_with_terms(graph: OperatorGraph, rules: Sequence[Sequence[Signature]]) -> frozenset[tuple[int, int]]:
    """Return each (operator, axis of the mesh) along which the operator is whole and its gradients are terms of a sum.

    Args:
        graph: the model.
        rules: (n_ops,) signatures of each operator, one for each axis of its mesh.
    """
    edges = np.unique(graph.edges.reshape(-1, 4)[:, [0, 2]], axis=0)
    n_axes = max(map(len, rules))
    dims = np.full((n_axes, len(rules)), _OTHER)
    for op, row in enumerate(rules):
        dims[: len(row), op] = [_dim(rule) for rule in row]
    samples, of_weights = _kinds(graph)
    whole = set[tuple[int, int]]()
    for axis, cut in enumerate(dims):
        above, reader = edges[(cut[edges[:, 0]] == _WHOLE) & (cut[edges[:, 1]] >= 0)].T
        terms = above[of_weights[above].astype(np.bool_) | (cut[reader] == samples[reader])]
        pending = np.unique(terms).tolist()
        while pending:
            whole.update((op, axis) for op in pending)
            makers = edges[np.isin(edges[:, 1], pending), 0]
            pending = [op for op in np.unique(makers).tolist() if cut[op] == _WHOLE and (op, axis) not in whole]
    return frozenset(whole)


def _dim(rule: Signature) -> int:
    return rule.dim if rule.dim >= 0 else _WHOLE if set(rule.inputs) <= {REPLICATED} else _OTHER


@of_last_graphs
def _kinds(graph: OperatorGraph) -> tuple[I64, I64]:
    """(n_ops,) the dimension of samples of each operator, or -1; whether it computes something of weights alone."""
    samples = np.array([op.sample_dim for op in graph.operators], dtype=np.int64)
    of_weights = (samples < 0).astype(np.int64)
    for u, _, v, _ in graph.edges.reshape(-1, 4).tolist():  # by consumers, and makers come before them
        of_weights[v] &= of_weights[u]
    return samples, of_weights

"""Operators that differ in their name alone: what follows from one of them holds for all, and is derived once.

Layers of a model are equal, so a model of hundreds of operators has a few dozen that differ.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import OperatorGraph

__all__ = ["first_equal"]

#: The last graph, and its answer: comparing two graphs takes as long as deriving it.
_last: tuple[OperatorGraph | None, tuple[int, ...]] = (None, ())


def first_equal(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops) for each operator, the first one of the graph that differs from it in its name alone."""
    global _last
    last_graph, numbers = _last
    if last_graph is not graph:
        first: dict[object, int] = {}
        numbers = tuple(first.setdefault(attrs.evolve(op, name=""), k) for k, op in enumerate(graph.operators))
        _last = graph, numbers
    return numbers

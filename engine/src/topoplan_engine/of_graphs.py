"""Answers that hold for a graph as long as it lives, kept for the last graphs that were asked about."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from topoplan.model.graph import OperatorGraph

__all__ = ["of_last_graphs"]

_Answer = TypeVar("_Answer")

#: A search asks about a model, about a small one with a layer of each kind, and about their stages, in turn.
_GRAPHS = 16


def of_last_graphs(function: Callable[[OperatorGraph], _Answer]) -> Callable[[OperatorGraph], _Answer]:
    """Return the function with a memory of its last answers; a graph is known by its identity.

    >>> @of_last_graphs
    ... def operators(graph):
    ...     print("counts")
    ...     return len(graph.operators)
    >>> from topoplan_operators import GraphBuilder
    >>> builder = GraphBuilder("linear", batch_size=8)
    >>> _ = builder.linear(builder.input((8, 4)), 4)
    >>> graph = builder.build()
    >>> operators(graph) == operators(graph)
    counts
    True
    """
    last: deque[tuple[OperatorGraph, _Answer]] = deque(maxlen=_GRAPHS)

    @functools.wraps(function)
    def answer_of(graph: OperatorGraph) -> _Answer:
        for before, answer in last:
            if before is graph:
                return answer
        answer = function(graph)
        last.append((graph, answer))
        return answer

    return answer_of

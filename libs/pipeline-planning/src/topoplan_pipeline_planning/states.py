"""The antichain states of an operator graph: the layers between which a pipeline can be cut.

A pipeline is a chain of layers, but a model is a graph.  PipeDream (Narayanan et al., SOSP 2019; the module ``graph``
of its released optimizer), and later DAPPLE's planner, cut a graph along antichains: an antichain and all its ancestors
can be a prefix of the pipeline.  A chain of operators has one state per operator.  The states of parallel branches
multiply, so the caller limits their number.

`antichain_states` enumerates all states from the first operator.  `prefix_states` is the alternative for graphs with
too many states: one state per operator, the prefixes of the order of operators.  `joined_states` has the states of two
such results.  Sets of operators are Python integers, bit ``i`` for operator ``i``.  The result is boolean matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I64

__all__ = ["States", "TooManyStatesError", "antichain_states", "joined_states", "prefix_states"]

Bools = NDArray[np.bool_]


class TooManyStatesError(Exception):
    """The graph has more antichain states than the limit."""


@attrs.frozen(eq=False)
class States:
    """The layers of L cuts through n operators, in topological order.

    Attributes:
        closed: (L, n) the operators of each state and their ancestors.
        crossing: (L, n) those of them whose outputs cross a cut after the state.
        before: (L, L) row j marks the states k from which j is reachable; they come earlier in the order.
    """

    closed: Bools
    crossing: Bools
    before: Bools


def antichain_states(children: Sequence[Sequence[int]], limit: int) -> States:
    """Return the antichain states of a graph.

    A state is an antichain together with the earlier operators that have readers after it.  A successor of a state
    replaces one of these operators by one of its children, if no descendant of the child is in the state already.
    States are sorted topologically by depth-first search, in the order of discovery.  PipeDream's order is the same, up
    to the order of Python sets.

    Args:
        children: of each operator, all with greater numbers.  The first operator is the start of the pipeline.
        limit: greatest number of states.

    Raises:
        TooManyStatesError: there are more than ``limit`` states.
    """
    ancestors, descendants, branching = _relations(children)
    number: dict[int, int] = {1: 0}
    antichains: list[int] = [1]
    augmented: list[int] = []
    steps_of: list[list[int]] = []
    for antichain in antichains:  # grows during the iteration
        members = antichain
        for u in _members(antichain):
            members |= branching[u]
        augmented.append(members)
        steps: list[int] = []
        for u in _members(members):
            for v in children[u]:
                if antichain >> v & 1 or descendants[v] & members:
                    continue
                replacement = members & ~(1 << u) | 1 << v
                heads = sum(1 << x for x in _members(replacement) if not descendants[x] & replacement)
                state = number.setdefault(heads, len(antichains))
                if state == len(antichains):
                    if state >= limit:
                        raise TooManyStatesError
                    antichains.append(heads)
                steps.append(state)
        steps_of.append(steps)

    order = _topological(steps_of)
    place = {state: position for position, state in enumerate(order)}
    prefixes: list[int] = []
    before = [0] * len(order)
    for position, state in enumerate(order):
        prefix = antichains[state]
        for u in _members(antichains[state]):
            prefix |= ancestors[u]
        prefixes.append(prefix)
        for successor in steps_of[state]:
            before[place[successor]] |= before[position] | 1 << position
    n = len(children)
    return States(_matrix(prefixes, n), _matrix([augmented[s] for s in order], n), _matrix(before, len(order)))


def prefix_states(children: Sequence[Sequence[int]]) -> States:
    """Return one state per operator: the prefixes of the order of the operators.

    A cut is crossed by every output with a reader after it; the cut after the last operator by its own output.
    """
    n = len(children)
    last = np.array([max(row, default=-1) for row in children])
    position = np.arange(n)
    closed = position[None, :] <= position[:, None]
    crossing = closed & (last[None, :] > position[:, None]) | np.eye(n, dtype=np.bool_)
    return States(closed, crossing, position[None, :] < position[:, None])


def joined_states(first: States, second: States) -> tuple[States, I64]:
    """Return the states of both, those that are equal once, and the places of the states of ``first`` among them.

    They are sorted by their numbers of operators, so that a state that contains another one comes after it.
    """
    closed = np.concatenate([first.closed, second.closed])
    crossing = np.concatenate([first.crossing, second.crossing])
    _, rows = np.unique(closed, axis=0, return_index=True)  # of equal ones the first
    rows = np.sort(rows)
    rows = rows[np.argsort(closed[rows].sum(axis=1), kind="stable")]
    closed, crossing = closed[rows], crossing[rows]
    contained = ~(closed[None, :, :] & ~closed[:, None, :]).any(axis=2)
    joined = States(closed, crossing, contained & ~np.eye(len(rows), dtype=np.bool_))
    return joined, np.argsort(rows, kind="stable")[: len(first.closed)].astype(np.int64)


def _relations(children: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Return for each operator its ancestors, its descendants, and its open ancestors.

    An ancestor is open if it has a child that is neither the operator nor one of the operator's ancestors.
    """
    n = len(children)
    ancestors, descendants, child_masks = [0] * n, [0] * n, [0] * n
    for u in range(n):
        for v in children[u]:
            child_masks[u] |= 1 << v
            ancestors[v] |= ancestors[u] | 1 << u
    for u in reversed(range(n)):
        for v in children[u]:
            descendants[u] |= descendants[v] | 1 << v
    branching = [
        sum(1 << p for p in _members(ancestors[u]) if child_masks[p] & ~(ancestors[u] | 1 << u)) for u in range(n)
    ]
    return ancestors, descendants, branching


def _members(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _topological(successors_of: Sequence[Sequence[int]]) -> list[int]:
    """Return the reverse postorder of a depth-first search in the order of nodes and successors."""
    visited = [False] * len(successors_of)
    postorder: list[int] = []
    for root in range(len(successors_of)):
        if visited[root]:
            continue
        visited[root] = True
        stack = [(root, iter(successors_of[root]))]
        while stack:
            state, successors = stack[-1]
            successor = next((s for s in successors if not visited[s]), None)
            if successor is None:
                postorder.append(state)
                stack.pop()
            else:
                visited[successor] = True
                stack.append((successor, iter(successors_of[successor])))
    return postorder[::-1]


def _matrix(rows: Sequence[int], width: int) -> Bools:
    """Unpack bit sets into rows of booleans."""
    size = (width + 7) // 8
    bits = np.frombuffer(b"".join(row.to_bytes(size, "little") for row in rows), dtype=np.uint8)
    return np.unpackbits(bits.reshape(len(rows), size), axis=1, bitorder="little")[:, :width].astype(np.bool_)

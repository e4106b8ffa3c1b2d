"""Layers that a pipeline can be cut after: the antichain states of an operator graph.

A pipeline needs a chain of layers, but a model is a graph.  PipeDream (Narayanan et al., SOSP 2019; the module
``graph`` of its released optimizer) and after it DAPPLE's planner cut a graph along antichains: an antichain and all
that comes before it can be a prefix of the pipeline.  A chain has one state per operator; parallel branches
multiply, so that the number of states is bounded here by the caller.

`antichain_states` closes the first operator under "go on by one edge".  `prefix_states` is the coarse way out for
graphs with too many: one state per operator, the prefixes of the order that the operators stand in.  Sets of
operators are Python integers, bit ``i`` for operator ``i``; the result is boolean matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

__all__ = ["States", "TooManyStatesError", "antichain_states", "prefix_states"]

Bools = NDArray[np.bool_]


class TooManyStatesError(Exception):
    """The graph has more antichain states than were allowed."""


@attrs.frozen(eq=False)
class States:
    """The layers of L cuts through n operators, in topological order.

    Attributes:
        closed: (L, n) the operators up to and with each state.
        crossing: (L, n) those of them whose outputs cross a cut after the state.
        before: (L, L) row j marks the states k from which j can be reached; they come earlier in the order.
    """

    closed: Bools
    crossing: Bools
    before: Bools


def antichain_states(children: Sequence[Sequence[int]], limit: int) -> States:
    """Return the antichain states of a graph.

    A state is an antichain together with the operators before it that still have readers beyond it.  A
    following state replaces one of these operators by one of its children, where nothing that follows the
    child is in the state already.  States are sorted topologically by depth-first search, in the order in
    which they were found; PipeDream's own order is the same up to the order of Python sets.

    Args:
        children: of each operator, all with greater numbers.  The first operator is where the pipeline starts.
        limit: give up beyond so many states.

    Raises:
        TooManyStatesError: there are more than ``limit`` states.
    """
    ancestors, descendants, branching = _relations(children)
    number: dict[int, int] = {1: 0}
    antichains: list[int] = [1]
    augmented: list[int] = []
    following: list[list[int]] = []
    for antichain in antichains:  # grows while it is gone through
        members = antichain
        for u in _members(antichain):
            members |= branching[u]
        augmented.append(members)
        steps: list[int] = []
        for u in _members(members):
            for v in children[u]:
                if antichain >> v & 1 or descendants[v] & members:
                    continue
                moved = members & ~(1 << u) | 1 << v
                heads = sum(1 << x for x in _members(moved) if not descendants[x] & moved)
                state = number.setdefault(heads, len(antichains))
                if state == len(antichains):
                    if state >= limit:
                        raise TooManyStatesError
                    antichains.append(heads)
                steps.append(state)
        following.append(steps)

    order = _topological(following)
    place = {state: position for position, state in enumerate(order)}
    closed: list[int] = []
    before = [0] * len(order)
    for position, state in enumerate(order):
        covered = antichains[state]
        for u in _members(antichains[state]):
            covered |= ancestors[u]
        closed.append(covered)
        for after in following[state]:
            before[place[after]] |= before[position] | 1 << position
    n = len(children)
    return States(_matrix(closed, n), _matrix([augmented[s] for s in order], n), _matrix(before, len(order)))


def prefix_states(children: Sequence[Sequence[int]]) -> States:
    """Return one state per operator: the prefixes of the order of the operators.

    What crosses a cut is every output with a reader beyond it; after the last operator, its own output.
    """
    n = len(children)
    last = np.array([max(kids, default=-1) for kids in children])
    position = np.arange(n)
    closed = position[None, :] <= position[:, None]
    crossing = closed & (last[None, :] > position[:, None]) | np.eye(n, dtype=np.bool_)
    return States(closed, crossing, position[None, :] < position[:, None])


def _relations(children: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Return ancestors and descendants of each operator, and its ancestors that it does not close.

    An ancestor is not closed by an operator if it has a child that is neither the operator nor before it.
    """
    n = len(children)
    ancestors, descendants, kids = [0] * n, [0] * n, [0] * n
    for u in range(n):
        for v in children[u]:
            kids[u] |= 1 << v
            ancestors[v] |= ancestors[u] | 1 << u
    for u in reversed(range(n)):
        for v in children[u]:
            descendants[u] |= descendants[v] | 1 << v
    branching = [sum(1 << p for p in _members(ancestors[u]) if kids[p] & ~(ancestors[u] | 1 << u)) for u in range(n)]
    return ancestors, descendants, branching


def _members(bits: int) -> Iterator[int]:
    """Go through the set bits, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _topological(following: Sequence[Sequence[int]]) -> list[int]:
    """Return the reverse postorder of a depth-first search that takes nodes and followers as they stand."""
    visited = [False] * len(following)
    finished: list[int] = []
    for root in range(len(following)):
        if visited[root]:
            continue
        visited[root] = True
        stack = [(root, iter(following[root]))]
        while stack:
            state, successors = stack[-1]
            after = next((s for s in successors if not visited[s]), None)
            if after is None:
                finished.append(state)
                stack.pop()
            else:
                visited[after] = True
                stack.append((after, iter(following[after])))
    return finished[::-1]


def _matrix(rows: Sequence[int], width: int) -> Bools:
    """Unpack bit sets into rows of booleans."""
    size = (width + 7) // 8
    packed = np.frombuffer(b"".join(row.to_bytes(size, "little") for row in rows), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(rows), size), axis=1, bitorder="little")[:, :width].astype(np.bool_)

"""Blocks of a graph: what a pipeline divides where operators have no layers' numbers in their names.

    operators in order ─► tensors that cross the cut behind each ─► cuts crossed by no more than both next to them, and
                                                                    those in front of operators that read data alone
                                                                    └► a block ends there, if it has weights

In a chain every cut is crossed by one tensor; around a residual branch the fewest cross before and behind it.  Towers
and tables that begin with data of their own are separate blocks: what they make has to reach the operator that joins
them, wherever the cuts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topoplan import Operator, OperatorGraph
from topoplan.arrays import I64
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.of_graphs import of_last_graphs

__all__ = ["LayerNumbers", "blocks_of", "crossing_tensors", "layer_numbers", "shared_evenly", "work_of"]


def crossing_tensors(graph: OperatorGraph) -> list[int]:
    """(n_ops - 1,) how many tensors cross the cut behind each operator; what several operators read counts once.

    Examples:
        >>> from topoplan_frontend_vgg16 import Vgg16
        >>> set(crossing_tensors(Vgg16().build(8)))
        {1}
    """
    last: dict[tuple[int, int], int] = {}
    for source, output, reader, _ in graph.edges.reshape(-1, 4).tolist():
        last[source, output] = max(last.get((source, output), source), reader)
    steps = np.zeros(len(graph.operators) + 1, dtype=np.int64)
    for (source, _), reader in last.items():
        steps[source] += 1
        steps[reader] -= 1
    crossing: list[int] = np.cumsum(steps)[: len(graph.operators) - 1].tolist()
    return crossing


def blocks_of(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops,) the block of each operator, from 0 without gaps.

    Examples:
        >>> from topoplan_frontend_vgg16 import Vgg16
        >>> blocks_of(Vgg16().build(8))[:6]
        (0, 0, 1, 2, 2, 3)
    """
    crossing, reads = crossing_tensors(graph), {*graph.edges.reshape(-1, 4)[:, 2].tolist()}
    around = [math.inf, *crossing, math.inf]
    is_border = [width <= min(around[k], around[k + 2]) or k + 1 not in reads for k, width in enumerate(crossing)]
    # A border is kept if weights follow before the next one: what has none belongs to the block before it.
    ends = [*(k + 1 for k, border in enumerate(is_border) if border), len(graph.operators)]
    has_weights = [any(op.weights for op in graph.operators[first:end]) for first, end in pairwise([0, *ends])]
    block, result = 0, []
    for number, (first, end) in enumerate(pairwise([0, *ends])):
        block += number > 0 and has_weights[number] and any(has_weights[:number])
        result += [block] * (end - first)
    return tuple(result)


class LayerNumbers(NamedTuple):
    """The layers of a model, in the order of the model.

    Attributes:
        of: (n_ops,) layer of each operator: -1 before the first one, ``n_layers`` behind the last one.  An operator
            without a layer belongs to the layer before it.
        n_layers: how many there are; 0 for a model that cannot be divided.
        named: whether numbers in the names of operators count them; otherwise they are blocks
            (`blocks_of`), which are unequal.
    """

    of: tuple[int, ...]
    n_layers: int
    named: bool = True


@of_last_graphs
def layer_numbers(graph: OperatorGraph) -> LayerNumbers:
    """Return the layers of a model: those that have numbers, if two of them are equal or blocks are no more.

    Examples:
        >>> from topoplan_frontend_transformer import Transformer
        >>> numbers = layer_numbers(Transformer().build(batch_size=8))
        >>> numbers.of[0], numbers.of[-1], numbers.n_layers
        (0, 24, 24)
    """
    layers = layers_of(graph)
    names = layers.layer
    numbers = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
    if len(numbers) < 2 or all(names[op] == names[first] for op, first in enumerate(layers.first)):
        blocks = blocks_of(graph)
        if blocks[-1] and blocks[-1] + 1 > len(numbers):
            return LayerNumbers(blocks, blocks[-1] + 1, named=False)
    last = max((index for index, name in enumerate(names) if name), default=len(names))
    current, result = -1, []
    for index, name in enumerate(names):
        current = max(current, numbers[name]) if name else current
        result.append(len(numbers) if index > last else current)
    return LayerNumbers(tuple(result), len(numbers))


def work_of(op: Operator) -> float:
    """Return how much an operator does: measured seconds, or else FLOPs of the forward pass."""
    if op.profile is not None:
        return op.profile.forward + op.profile.backward
    return sum(term.coefficient * math.prod(op.dims[dim].size for dim in term.dims) for term in op.work)


def shared_evenly(work: Sequence[float], parts: int) -> list[int]:
    """Return how many items, in turn, each part has, so that the largest sum of a part is least; at least one each.

    Of equal choices it is that whose later parts have more.

    >>> shared_evenly([3, 1, 1, 1], 2)
    [1, 3]
    """
    sums = np.concatenate([[0.0], np.cumsum(work)])
    count = len(sums) - 1
    most = sums[1:].copy()  # of the first k + 1 items in one part
    choice: list[I64] = []
    for part in range(1, parts):
        best, start = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
        for end in range(part, count):
            largest = np.maximum(most[part - 1 : end], sums[end + 1] - sums[part : end + 1])
            start[end] = part + int(largest.argmin())
            best[end] = largest[start[end] - part]
        most = best
        choice.append(start)
    ends = [count]
    for starts in reversed(choice):
        ends.append(int(starts[ends[-1] - 1]))
    return [last - first for first, last in pairwise([0, *reversed(ends)])]

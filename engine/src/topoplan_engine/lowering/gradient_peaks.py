"""Gradients of activations in the backward pass: how far they raise what a device holds.

A backward pass runs operators from the last to the first.  The gradient of an output is there from the end of the
first pass that makes it, that of its last consumer, to the end of its own operator's pass.  A pass adds the gradients
of inputs that it makes (`topoplan.model.costs.PartCosts.gradients`), and what its operator kept for it is free
afterwards.  So a device holds the most somewhere in between: where a loss begins, with two gradients of the size of
scores over a vocabulary beside all activations, or at the widest layers.

Data flow: parts with their bytes, operator by operator, and a *slot* each, the device and stage that the part belongs
to ─► `rises`: for each slot the most bytes that a backward pass adds to those at its begin.  Where all devices run the
same operators, columns of these ─► `rise_in_backward`: the same, with what else comes and goes beside gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.costs import PartCosts
from topoplan.model.graph import OperatorGraph
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.lowering.fragments import OperatorFragment

__all__ = [
    "GradientOrder",
    "Rise",
    "gradient_bytes",
    "gradient_order",
    "last_readers",
    "levels_in_backward",
    "order_of_edges",
    "rise_in_backward",
    "rises",
    "widest",
]


class GradientOrder(NamedTuple):
    """CSR: the operators whose outputs' gradients are there after the backward pass of each operator, not before."""

    ptr: I32
    producer: I32


class Rise(NamedTuple):
    """Bytes beyond those at the begin of a backward pass where they are the most; gathered weights among them."""

    total: float
    gathered: float

    @classmethod
    def of(cls, levels: F64, gathered: F64) -> Rise:
        """Return what is there at most, given (n,) bytes while each operator's part runs, and weights among them."""
        most = int(levels.argmax())
        return cls(max(0.0, float(levels[most])), float(gathered[most]))


def gradient_order(graph: OperatorGraph) -> GradientOrder:
    """Return which gradients each backward pass is the first to make."""
    return order_of_edges(graph.edges.reshape(-1, 4)[:, [0, 2]], len(graph.operators))


def order_of_edges(edges: I32 | I64, count: int) -> GradientOrder:
    """Return the same of (E, 2) producers and consumers among ``count`` operators.

    >>> order_of_edges(np.array([(0, 1), (0, 2), (1, 2)]), 3)
    GradientOrder(ptr=array([0, 0, 0, 2], dtype=int32), producer=array([0, 1], dtype=int32))
    """
    last = last_readers(edges, count)
    producers = np.flatnonzero(last >= 0)
    producers = producers[np.argsort(last[producers], kind="stable")]
    counts = np.bincount(last[producers], minlength=len(last))
    return GradientOrder(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), producers.astype(np.int32))


def last_readers(edges: I32 | I64, count: int) -> I64:
    """(count,) the last consumer of each producer, which makes its gradient first; -1 where there is none.

    Args:
        edges: (E, 2) producers and consumers.
        count: of both.

    >>> last_readers(np.array([(0, 1), (0, 2), (1, 2)]), 3).tolist()
    [2, 2, -1]
    """
    last = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last, edges[:, 0], edges[:, 1])
    return last


def rise_in_backward(made_by: I64, outputs: F64, extras: F64, freed: F64, entered: F64, gathered: F64) -> Rise:
    """Return what a backward pass of one micro-batch has at most beyond what is there at its begin.

    Arguments are those of `levels_in_backward`.

    >>> last, zeros = last_readers(np.array([(0, 1), (1, 2)]), 3), np.zeros(3)
    >>> rise_in_backward(last, np.array([4.0, 4, 0]), np.array([0.0, 0, 6]), np.full(3, 1.0), zeros, zeros).total
    6.0
    """
    return Rise.of(levels_in_backward(made_by, outputs, extras, freed, entered, gathered), gathered)


def levels_in_backward(
    made_by: I64, outputs: F64, extras: F64, freed: F64, entered: F64, gathered: F64, micro_batches: int = 1
) -> F64:
    """(n,) what a backward pass of one micro-batch has beyond what is there at its begin, operator by operator.

    Args:
        made_by: (n,) which of the operators, in the order of the forward pass, makes the gradient of the output of each
            first; n where it is there before, -1 where there is none.
        outputs, extras: (n,) bytes of the batch of gradients of outputs, and of what a pass makes beside them.
        freed: (n,) bytes of the batch that are free after the pass of each.
        entered: (n,) bytes of the batch that come before it.
        gathered: (n,) bytes that are there while it runs.
        micro_batches: of the batch.
    """
    n = len(made_by)
    change = -outputs - freed
    inside = (made_by >= 0) & (made_by < n)
    change += np.bincount(made_by[inside], outputs[inside], n)
    before = outputs[made_by == n].sum()
    start = before + np.append(np.cumsum((change + entered)[::-1])[::-1][1:], 0.0) + entered
    level: F64 = (start + extras) / micro_batches + gathered
    return level


def gradient_bytes(prices: Sequence[OperatorFragment | PartCosts]) -> F64 | None:
    """(2, P) bytes of the gradients of all parts; None where no estimator counts any."""
    if all(price.gradients is None for price in prices):
        return None
    return np.concatenate(
        [np.zeros((2, len(price.memory))) if price.gradients is None else price.gradients for price in prices], axis=1
    )


def rises(order: GradientOrder, op_ptr: I32, slot: I32, gradients: F64, freed: F64, n_slots: int) -> F64:
    """Return how many bytes a backward pass holds at most beyond those at its begin.

    Args:
        order: of the graph.
        op_ptr: (n_ops + 1,) first part of each operator.
        slot: (P,) of each part.
        gradients: (2, P) bytes of the gradients of outputs, and of what a pass makes.
        freed: (P,) bytes of activations that are free after the pass of a part.
        n_slots: slots.
    """
    level, most = np.zeros(n_slots), np.zeros(n_slots)
    _climb(*order, i32(op_ptr), i32(slot), gradients[0], gradients[1], freed, level, most)
    return most


def widest(order: GradientOrder, outputs: F64, extras: F64) -> F64:
    """Return for each operator what gradients take while its pass runs, if everything is on one device.

    Args:
        order: of the graph.
        outputs, extras: (..., n_ops) bytes.
    """
    n_ops, producer = len(order.ptr) - 1, order.producer
    first = np.repeat(np.arange(n_ops), np.diff(order.ptr))  # the pass that makes each gradient first
    levels = np.zeros_like(extras)
    for index in np.ndindex(extras.shape[:-1]):
        change = -np.bincount(first, outputs[index][producer], n_ops).astype(np.float64)
        change[producer] += outputs[index][producer]
        levels[index] = np.cumsum(change) + extras[index]
    return levels


@kernel
def _climb(
    ptr: I32, producer: I32, op_ptr: I32, slot: I32, outputs: F64, extras: F64, freed: F64, level: F64, most: F64
) -> None:
    """Write the most bytes of each slot to ``most``; ``level`` are those at present, 0 at the begin."""
    for op in range(len(op_ptr) - 2, -1, -1):
        for part in range(op_ptr[op], op_ptr[op + 1]):
            level[slot[part]] += extras[part]
            most[slot[part]] = max(most[slot[part]], level[slot[part]])
        for part in range(op_ptr[op], op_ptr[op + 1]):
            level[slot[part]] -= extras[part] + freed[part] + outputs[part]
        for k in range(ptr[op], ptr[op + 1]):
            for part in range(op_ptr[producer[k]], op_ptr[producer[k] + 1]):
                level[slot[part]] += outputs[part]

"""What trains: which gradients an iteration computes, and which operators have a backward pass.

A weight may be frozen, and an input may be one through which no gradient flows back (`topoplan.Tensor.requires_grad`).
What follows is PyTorch's rule.  An operator needs a gradient if one of its weights is trained or a gradient flows into
one of its inputs; it gets one if its outputs end the model, or lead to an operator that gets one.  Both together are a
backward pass; without one, its weights have no gradient, no all-reduce and no optimizer state, and nothing is sent back
to it.  Where everything requires a gradient, every operator has a backward pass, also one on data alone, as in FlexNet.

    requires_grad ─► gradient_flow ─► products of the backward pass (estimators), messages and tasks (lowering),
                                      bytes of gradients and optimizer state, all-reduces, FLOPs
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, OperatorGraph, Role, Tensor
from topoplan_engine.of_graphs import of_last_graphs
from topoplan_engine.partition import multiplies

__all__ = [
    "GradientFlow",
    "frozen",
    "gradient_flow",
    "has_sparse_gradient",
    "is_view",
    "operands_with_gradient",
    "products_of_inputs",
    "products_of_weights",
    "shared_weights",
    "tensors_read",
    "trained_bytes",
    "trained_weights",
    "trains_product",
]


class GradientFlow(NamedTuple):
    """The gradients of a graph.

    Attributes:
        everything: whether every weight and every input requires a gradient.
        backward: (n_ops) whether each operator has a backward pass.
        inputs: (n_ops) of each input, whether its gradient is computed; never of data.
        weights: (n_ops) of each weight, whether its gradient is computed.
        edges: (m,) whether a gradient goes back along each edge.
    """

    everything: bool
    backward: tuple[bool, ...]
    inputs: tuple[tuple[bool, ...], ...]
    weights: tuple[tuple[bool, ...], ...]
    edges: np.ndarray

    def trained(self, op: Operator, number: int) -> list[tuple[int, Tensor]]:
        """Return the weights of operator ``number``, which is ``op``, that get a gradient, with their places."""
        return [(k, op.weights[k]) for k, has_gradient in enumerate(self.weights[number]) if has_gradient]


@of_last_graphs
def gradient_flow(graph: OperatorGraph) -> GradientFlow:
    """Return which gradients are computed.

    A model of two linear layers, the first of which is frozen: nothing goes back between them.

    >>> from topoplan_operators import GraphBuilder
    >>> builder = GraphBuilder("two-layers", batch_size=8)
    >>> hidden = builder.linear(builder.input((8, 4)), 4, bias=False, name="backbone")
    >>> _ = builder.linear(hidden, 2, bias=False, name="head")
    >>> flow = gradient_flow(frozen(builder.build(), ["backbone"]))
    >>> flow.backward, flow.edges.tolist()
    ((False, True), [False])
    """
    return _flow(graph)


def frozen(graph: OperatorGraph, names: Collection[str]) -> OperatorGraph:
    """Return a graph that does not train the weights of some operators.

    Raises:
        TopoplanError: the graph has no operator of a name.
    """
    if unknown := set(names) - {op.name for op in graph.operators}:
        raise TopoplanError(f"model {graph.name!r}: has no operator {min(unknown)!r} to freeze")

    def without_gradient(op: Operator) -> Operator:
        return attrs.evolve(op, weights=tuple(attrs.evolve(tensor, requires_grad=False) for tensor in op.weights))

    operators = tuple(without_gradient(op) if op.name in names else op for op in graph.operators)
    return attrs.evolve(graph, operators=operators)


def shared_weights(op: Operator) -> set[int]:
    """Return the inputs of ``op`` that are weights of another operator, which has them in memory and reduces them.

    Unlike training data they need gradients.  The tag ``shared`` has their names, with spaces between.
    """
    names = op.tags.get("shared", "").split()
    return {k for k, tensor in enumerate(op.inputs) if tensor.name in names}


def trained_weights(graph: OperatorGraph, op: int) -> tuple[Tensor, ...]:
    """Return the weights of an operator that are trained."""
    operator = graph.operators[op]
    return tuple(tensor for _, tensor in gradient_flow(graph).trained(operator, op))


def trained_bytes(graph: OperatorGraph, op: int) -> int:
    """Return the bytes of the weights of an operator that are trained."""
    return sum(tensor.nbytes for tensor in trained_weights(graph, op))


def has_sparse_gradient(op: Operator) -> bool:
    """Whether the gradient of an operator's table is that of the rows that were looked up.

    Such a table is updated in place, row by row: neither a gradient nor optimizer state of its size exists.  The tag
    ``gradient`` says ``sparse`` or ``dense``; without it tables of bags (kind ``embedding``) are sparse and others
    are not.
    """
    return op.tags.get("gradient", "sparse" if op.kind == "embedding" else "dense") == "sparse"


def trains_product(op: Operator, trained: Sequence[bool]) -> bool:
    """Whether a weight that enters the operator's product is ``trained``: one of most axes, not a bias beside it."""
    if products_of_inputs(op):
        return False
    rank = max((len(tensor.axes) for tensor in op.weights), default=0)
    return any(has for tensor, has in zip(op.weights, trained, strict=True) if len(tensor.axes) == rank)


def products_of_inputs(op: Operator) -> bool:
    """Whether an operator multiplies inputs alone: a kernel that the model computes, with at most a bias of its own."""
    output_dims = {axis.dim for tensor in op.outputs for axis in tensor.axes}
    return multiplies(op) and all(
        axis.size == 1 or (axis.dim >= 0 and axis.dim in output_dims) for tensor in op.weights for axis in tensor.axes
    )


def operands_with_gradient(op: Operator, computed: Sequence[bool]) -> int:
    """Return how many operands among the inputs of an operator have a gradient.

    Weights of another operator are one operand, kernel and bias together, and so is what a recurrence reads: its input
    and the states of the step before, which are multiplied with weights of one product.

    Args:
        op: the operator.
        computed: of each input, whether its gradient is computed.
    """
    shared = shared_weights(op)
    count = sum(has for k, has in enumerate(computed) if k not in shared)
    return (count if multiplies(op) else min(count, 1)) + any(computed[k] for k in shared)


def products_of_weights(op: Operator, trained: Sequence[bool]) -> int:
    """Return how many products make gradients of the weights of an operator, at most one for each of two operands.

    One where an input is multiplied with weights.  Without inputs both operands may be weights: of a product B A that
    is computed in each forward pass, each has a gradient of its own.

    Args:
        op: the operator.
        trained: whether each of its weights is.
    """
    summed = {number for number, dim in enumerate(op.dims) if dim.role is Role.REDUCTION}
    operands = [not op.inputs and bool(summed & {axis.dim for axis in tensor.axes}) for tensor in op.weights]
    of_operands = sum(is_one and has for is_one, has in zip(operands, trained, strict=True))
    return max(int(trains_product(op, trained)), min(2, of_operands))


def tensors_read(op: Operator, has_gradient: Sequence[bool]) -> tuple[set[int], set[int]]:
    """Return the arguments and the outputs of an operator that its backward pass, if it has one, reads.

    Arguments are numbered through inputs, then weights; ``has_gradient`` says of each whether its gradient is computed.
    The operator says it itself (`Operator.saved`), or its linearity does: the gradient of an argument depends on those
    alone in which the operator is not linear together with it.

    Raises:
        TopoplanError: the operator names a tensor that it has not.
    """
    if op.saved is not None:
        names = [{tensor.name: k for k, tensor in enumerate(each)} for each in (op.inputs, op.outputs)]
        for name in op.saved:
            if not any(name in numbers for numbers in names):
                raise TopoplanError(f"operator {op.name!r}: saves {name!r}, which it has not")
        inputs, outputs = ({numbers[name] for name in op.saved if name in numbers} for numbers in names)
        return inputs, outputs
    arguments = {*range(len(op.inputs) + len(op.weights))}
    read: set[int] = set()
    for argument, computed in zip(sorted(arguments), has_gradient, strict=True):
        if computed:
            together = max((linear for linear in op.linear_in if argument in linear), key=len, default=())
            read |= arguments - {*together}
    return read, set()


def _flow(graph: OperatorGraph) -> GradientFlow:
    edges: I64 = graph.edges.reshape(-1, 4).astype(np.int64)
    operators = graph.operators
    computed: list[set[int]] = [set() for _ in operators]
    for _, _, v, into in edges.tolist():
        computed[v].add(into)
    shared = [shared_weights(op) for op in operators]
    everything = all(tensor.requires_grad for op in operators for tensor in (*op.inputs, *op.weights))
    if everything:
        return GradientFlow(
            everything=True,
            backward=(True,) * len(operators),
            inputs=tuple(
                tuple(k in computed[v] or k in shared[v] for k in range(len(op.inputs)))
                for v, op in enumerate(operators)
            ),
            weights=tuple((True,) * len(op.weights) for op in operators),
            edges=np.ones(len(edges), dtype=np.bool_),
        )
    needs, flows = _needed(operators, edges.tolist(), shared)
    gets = _given(len(operators), edges.tolist(), flows, needs)
    backward = tuple(need and get for need, get in zip(needs, gets, strict=True))
    return GradientFlow(
        everything=False,
        backward=backward,
        inputs=tuple(tuple(has and backward[v] for has in row) for v, row in enumerate(flows)),
        weights=tuple(
            tuple(tensor.requires_grad and backward[v] for tensor in op.weights) for v, op in enumerate(operators)
        ),
        edges=np.array([flows[v][k] and backward[v] for _, _, v, k in edges.tolist()], dtype=np.bool_),
    )


def _needed(
    operators: Sequence[Operator], edges: Sequence[Sequence[int]], shared: Sequence[set[int]]
) -> tuple[list[bool], list[list[bool]]]:
    """Return which operators need a gradient, and into which of their inputs one would flow."""
    sources: list[dict[int, int]] = [{} for _ in operators]
    for u, _, v, into in edges:
        sources[v][into] = u
    needs: list[bool] = []
    flows: list[list[bool]] = []
    for v, op in enumerate(operators):
        row = [
            tensor.requires_grad and (k in shared[v] or (k in sources[v] and needs[sources[v][k]]))
            for k, tensor in enumerate(op.inputs)
        ]
        flows.append(row)
        needs.append(any(row) or any(tensor.requires_grad for tensor in op.weights))
    return needs, flows


def _given(
    count: int, edges: Sequence[Sequence[int]], flows: Sequence[Sequence[bool]], needs: Sequence[bool]
) -> list[bool]:
    """Return which operators get a gradient if they need one: from the end of the model, or from a consumer."""
    readers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for u, _, v, into in edges:
        readers[u].append((v, into))
    gets = [False] * count
    for u in reversed(range(count)):
        gets[u] = not readers[u] or any(gets[v] and needs[v] and flows[v][into] for v, into in readers[u])
    return gets


def is_view(operator: Operator) -> bool:
    """Whether the outputs of an operator are elements of its only input, which it neither computes nor copies."""
    if operator.work or operator.weights or operator.extras or len(operator.inputs) != 1 or not operator.linear_in:
        return False
    return sum(output.nbytes for output in operator.outputs) <= operator.inputs[0].nbytes

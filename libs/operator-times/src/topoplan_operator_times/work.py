"""FLOPs and bytes of the parts of an operator, independent of the device.

They follow from the iteration space.  `topoplan_engine.partition` gives the sizes of a part and its slices of the
tensors, and the operator's polynomials give the FLOPs and bytes of the forward pass.

The costs of the backward pass are multiples of those of the forward pass (`backward_factors`):

- A product (linear, convolution, attention) has one gradient for its weights and one for its input.  Each is a product
  over the same three index ranges in its own kernel: 2 x.  Without weights there is one for each operand.
- An operator that maps its input (pooling, activation, addition) has one kernel with equal FLOPs.  It reads the saved
  input and output and the gradient, and writes a gradient: 2 x the bytes.
- An operator that only moves data (concatenation, reshape) moves them back: 1 x.
- Training data need no gradient: 1 x for a first linear layer or an embedding, 0 for a reshape of data.  A recurrence
  on data has those of its states, too.
- A kernel that the model computes is an input, like what it is multiplied with; a bias beside it adds no product.
- Neither does a weight that is not trained: 1 x for a frozen linear layer behind one that is trained, 0 for one that
  nothing is trained before (`topoplan_engine.training`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.graph import Operator, OperatorGraph, Role, Tensor, Term
from topoplan_engine.partition import equal_slice_elements, part_sizes, slice_elements
from topoplan_engine.training import (
    gradient_flow,
    has_sparse_gradient,
    operands_with_gradient,
    products_of_inputs,
    products_of_weights,
    shared_weights,
    trains_product,
)
from topoplan_operator_times.saved import NO_GRADIENTS, Gradients

__all__ = [
    "BackwardFactors",
    "PartWork",
    "backward_factors",
    "factors_of",
    "part_work",
    "parts_are_equal",
    "weight_shares",
]


@attrs.frozen(eq=False)
class PartWork:
    """(P,) each: FLOPs and device-memory bytes of one forward pass, bytes of weights and of what is kept.

    ``trained`` are bytes of ``weights`` that are trained, ``gradients`` the two rows of
    `topoplan.model.costs.PartCosts.gradients`, ``sparse_gradient`` those of a table's gradient that has a row, with its
    index, for each look-up; 0 for other operators.
    """

    flops: F64
    traffic: F64
    weights: F64
    saved: F64
    trained: F64
    gradients: F64
    sparse_gradient: F64


@attrs.frozen
class BackwardFactors:
    """FLOPs, bytes and kernels of the backward pass, in multiples of the forward pass."""

    flops: float
    traffic: int
    kernels: int


#: Kinds of recurrent layers, as `topoplan_operators.recurrent` has them, and of one step of these.
_RECURRENT = ("gru", "lstm", "rnn")
_CELLS = tuple(f"{kind}_cell" for kind in _RECURRENT)
#: Bytes of the index of a row of a table.
_INDEX = 8
#: Of an operator without a backward pass.
_NONE = BackwardFactors(0, 0, 0)


def factors_of(graph: OperatorGraph) -> list[BackwardFactors]:
    """Return the factors of all operators of a graph."""
    flow = gradient_flow(graph)
    rows = zip(graph.operators, flow.inputs, flow.weights, flow.backward, strict=True)
    return [
        backward_factors(op, operands_with_gradient(op, inputs), weights) if has_backward else _NONE
        for op, inputs, weights, has_backward in rows
    ]


def weight_shares(graph: OperatorGraph) -> list[float | None]:
    """Return for each operator which share of its backward pass gradients of weights take.

    None where everything is trained, which `topoplan.model.costs.PartCosts` has a rule for.
    """
    flow = gradient_flow(graph)
    if flow.everything:
        return [None] * len(graph.operators)
    return [
        1 / (1 + any(inputs)) if trains_product(op, weights) else 0.0
        for op, inputs, weights in zip(graph.operators, flow.inputs, flow.weights, strict=True)
    ]


def backward_factors(op: Operator, produced: int, trained: Sequence[bool] | None = None) -> BackwardFactors:
    """Return the factors of an operator that has a backward pass.

    Args:
        op: the operator.
        produced: number of its inputs that need a gradient.
        trained: of each weight, whether it is trained; None: all are.
    """
    products = 0
    if products_of_inputs(op) or _is_shared_recurrence(op):
        products = min(produced, 2)
        if op.weights and not products:
            return BackwardFactors(0, 1, 1)  # the bias sums the gradients of the output
    elif op.weights:
        of_weights = products_of_weights(op, (True,) * len(op.weights) if trained is None else trained)
        # Inside attention, products of projections need gradients even where all inputs are data.
        products = of_weights + (produced > 0 or op.kind == "attention")
        if not of_weights and max(len(tensor.axes) for tensor in op.weights) < 2:
            products = 0  # a normalization whose scale is frozen maps its input
        elif not produced and op.kind in _RECURRENT:
            return BackwardFactors(of_weights + _states_share(op), of_weights + 1, of_weights + 1)
        elif not products:
            return BackwardFactors(0, 1, 1)  # the bias of a frozen first layer sums the gradients of its output
    elif any(dim.role is Role.REDUCTION for dim in op.dims):
        products = min(produced, 2)
    if products or not produced:
        return BackwardFactors(products, products, products)
    return BackwardFactors(1, 2, 1) if op.work else BackwardFactors(0, 1, 1)


def _is_shared_recurrence(op: Operator) -> bool:
    """Whether an operator is a cell of a recurrence whose weights are those of another step."""
    return op.kind in _CELLS and bool(shared_weights(op))


def _states_share(op: Operator) -> float:
    """Return which share of a recurrence's FLOPs reads its states: these have gradients also where its input is data.

    The state before the first step has none, but what is projected has one in each step.
    """
    matrices = {tensor.name: tensor.elements for tensor in op.weights if len(tensor.axes) == 2}
    steps = next(dim.size for dim in op.dims if dim.name == "t")
    states = matrices["weight_hh"] * (steps - 1) / steps + matrices.get("weight_hr", 0)
    return states / sum(matrices.values())


def part_work(
    op: Operator,
    degrees: tuple[int, ...],
    share: int,
    saved: Sequence[Tensor] = (),
    trained: Sequence[Tensor] | None = None,
    gradients: Gradients = NO_GRADIENTS,
    *,
    of_one: bool = False,
) -> PartWork:
    """Return FLOPs, memory traffic and stored bytes of every part of ``op`` cut by ``degrees``.

    Args:
        op: the operator.
        degrees: number of parts along each dimension.
        share: GPUs among which a part's samples are divided, weights replicated; the result is that of
            the GPU with the most samples.
        saved: what it keeps for backward passes (`topoplan_operator_times.saved`).
        trained: its weights that are trained; None: all.
        gradients: which gradients of activations are there in its backward pass.
        of_one: return those of one part, where all are equal (`parts_are_equal`).
    """
    counted = (np.array([dim.size // degree]) for dim, degree in zip(op.dims, degrees, strict=True))
    sizes = [size.astype(np.float64) for size in (counted if of_one else part_sizes(op, degrees))]
    sample, ratio = op.sample_dim, np.ones(1)
    if share > 1 and sample >= 0:
        per_gpu = np.ceil(sizes[sample] / share)
        ratio = per_gpu / sizes[sample]
        sizes[sample] = per_gpu
    parts = 1 if of_one else int(np.prod(degrees, dtype=np.int64))

    def elements(tensor: Tensor) -> I64:
        return np.array([equal_slice_elements(op, tensor, degrees)]) if of_one else slice_elements(op, tensor, degrees)

    def nbytes(tensor: Tensor) -> F64:
        """Bytes of the slice that one GPU holds; a tensor without a sample axis is held whole by each."""
        slice_bytes = elements(tensor).astype(np.float64) * tensor.itemsize
        return slice_bytes * ratio if any(axis.dim == sample for axis in tensor.axes) else slice_bytes

    def total(tensors: Sequence[Tensor]) -> F64:
        return sum((nbytes(tensor) for tensor in tensors), np.zeros(parts))

    sparse = np.zeros(parts)
    if has_sparse_gradient(op) and trained != ():
        (indices, *_), (table, *_) = op.inputs, op.weights
        sparse = nbytes(indices) / indices.itemsize * (nbytes(table) / table.shape[0] + _INDEX)
    weights, outputs = total(op.weights), total(op.outputs)
    traffic = _polynomial(op.traffic, sizes, parts) if op.traffic else total(op.inputs) + weights + outputs
    return PartWork(
        flops=_polynomial(op.work, sizes, parts),
        traffic=traffic,
        weights=weights,
        saved=total(saved),
        trained=weights if trained is None else total(trained),
        gradients=np.stack([total(gradients.outputs), np.maximum(total(gradients.inputs), total(gradients.scratch))]),
        sparse_gradient=sparse,
    )


def parts_are_equal(op: Operator, degrees: tuple[int, ...], tensors: Sequence[Tensor]) -> bool:
    """Return whether all parts of an operator are equal, and touch as much of its tensors and some others."""
    even = all(type(degree) is int and dim.size % degree == 0 for dim, degree in zip(op.dims, degrees, strict=True))
    touched = (*op.inputs, *op.weights, *op.outputs, *tensors)
    return even and all(equal_slice_elements(op, tensor, degrees) is not None for tensor in touched)


def _polynomial(terms: tuple[Term, ...], sizes: list[F64], parts: int) -> F64:
    """Evaluate a cost polynomial for all parts."""
    total = np.zeros(parts)
    for term in terms:
        product = np.full(parts, float(term.coefficient))
        for dim in term.dims:
            product *= sizes[dim]
        total += product
    return total

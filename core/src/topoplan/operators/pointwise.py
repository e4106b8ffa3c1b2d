"""Operators that look at one element, or one row, at a time: arithmetic, softmax, concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan.operators.dense import SOFTMAX_FLOPS
from topoplan.operators.handle import Handle, plain

__all__ = ["concat", "elementwise", "softmax"]

#: Numbers of FlexNet's operator types, which are part of the names under which it measures.
FLEXNET_TYPE = {"relu": 13, "add": 31, "multiply": 32}


def _every_axis(shape: Sequence[int]) -> tuple[Dimension, ...]:
    """Return one dimension per axis: samples ``n`` first, then attributes ``a1``, ``a2``, ..."""
    rest = (Dimension(f"a{k}", size, Role.ATTRIBUTE) for k, size in enumerate(shape[1:], 1))
    return (Dimension("n", shape[0], Role.SAMPLE), *rest)


def elementwise(kind: str, inputs: Sequence[Handle]) -> Operator:
    """Return ``relu`` of one tensor, or the sum or product (``add``, ``multiply``) of two of one shape."""
    if any(x.shape != inputs[0].shape for x in inputs):
        raise TopoplanError(f"{kind}: shapes {' and '.join(str(x.shape) for x in inputs)} differ")
    dims = _every_axis(inputs[0].shape)
    axes = tuple(range(len(dims)))
    arity = "Unary" if len(inputs) == 1 else "Binary"
    return Operator(
        name="",
        kind=kind,
        dims=dims,
        inputs=tuple(plain(f"x{k}", x, *axes) for k, x in enumerate(inputs)),
        outputs=(plain("y", inputs[0], *axes),),
        work=(Term(1, axes),),
        structure=f"Element{arity}_{FLEXNET_TYPE[kind]}",
    )


def softmax(x: Handle) -> Operator:
    """Return softmax over the last axis, which therefore cannot be cut."""
    *free, classes = _every_axis(x.shape)
    dims = (*free, Dimension(classes.name, classes.size))
    axes = tuple(range(len(dims)))
    return Operator(
        name="",
        kind="softmax",
        dims=dims,
        inputs=(plain("x", x, *axes),),
        outputs=(plain("y", x, *axes),),
        work=(Term(SOFTMAX_FLOPS, axes),),
        structure="Softmax",
    )


def concat(inputs: Sequence[Handle], axis: int) -> Operator:
    """Return the inputs side by side along ``axis``; a part touches of each input what falls into its share."""
    shape = list(inputs[0].shape)
    if not 0 < axis < len(shape):
        raise TopoplanError(f"concat: axis {axis} is none of 1..{len(shape) - 1}")
    tensors, start = [], 0
    for k, x in enumerate(inputs):
        if x.shape[:axis] != inputs[0].shape[:axis] or x.shape[axis + 1 :] != inputs[0].shape[axis + 1 :]:
            raise TopoplanError(f"concat: shapes {inputs[0].shape} and {x.shape} differ beside axis {axis}")
        axes = [Axis(size, dim) for dim, size in enumerate(x.shape)]
        axes[axis] = Axis(x.shape[axis], axis, offset=-start)
        tensors.append(Tensor(f"x{k}", tuple(axes), x.itemsize))
        start += x.shape[axis]
    shape[axis] = start
    dims = _every_axis(shape)
    return Operator(
        name="",
        kind="concat",
        dims=dims,
        inputs=tuple(tensors),
        outputs=(plain("y", Handle(tuple(shape), inputs[0].itemsize), *range(len(dims))),),
        structure=f"Concat_{axis}",
    )

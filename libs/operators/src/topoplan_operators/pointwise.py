"""Operators that look at one element, or one row, at a time: arithmetic, softmax, concatenation."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Tensor, Term
from topoplan_operators.dense import SOFTMAX_FLOPS
from topoplan_operators.handle import Handle, every_axis, plain

__all__ = ["FUNCTIONS", "accumulated", "concat", "elementwise", "softmax"]

#: Numbers of FlexNet's operator types, which are part of the names under which it measures.
FLEXNET_TYPE = {"relu": 13, "add": 31, "multiply": 32}

#: Functions of one element.  Dropout draws what it drops: as many draws as parts, so it is linear in none of them.
FUNCTIONS = (
    *("abs", "clamp", "clone", "contiguous", "dropout", "erf", "exp", "gelu", "log", "neg", "pow", "relu", "rsqrt"),
    *("sigmoid", "silu", "sqrt", "tanh"),
)

#: Kind and number of tensors -> `Operator.linear_in`; a number added or a quotient rounded is not linear.
_LINEAR = {
    ("clone", 1): ((0,),),
    ("contiguous", 1): ((0,),),
    ("neg", 1): ((0,),),
    ("add", 2): ((0, 1),),
    ("subtract", 2): ((0, 1),),
    ("multiply", 1): ((0,),),
    ("multiply", 2): ((0,), (1,)),
    ("divide", 1): ((0,),),
    ("divide", 2): ((0,),),
}
#: Functions whose derivative is one of their answers.
_BY_ANSWER = frozenset(("exp", "relu", "rsqrt", "sigmoid", "sqrt", "tanh"))
#: Those whose derivative is known beforehand, or drawn, with one tensor.
_BY_NOTHING = frozenset(("add", "ceil", "dropout", "floor", "not", "round", "sign", "subtract"))


def elementwise(kind: str, inputs: Sequence[Handle], weights: Sequence[Handle] = ()) -> Operator:
    """Return one of `FUNCTIONS` of one tensor, or arithmetic of two tensors, or of one and a number.

    Arithmetic is ``add``, ``subtract``, ``multiply``, ``divide``, ``floor_divide`` and ``pow``.  An axis of size 1
    meets every element of the other tensor's, and so does an axis that only the other tensor has, which stands before
    all of this one's.

    Args:
        kind: see above.
        inputs: tensors that other operators make.
        weights: tensors that are parameters; they come after the inputs.

    Raises:
        TopoplanError: the shapes do not fit.
    """
    operands = [*inputs, *weights]
    rank = max(len(x.shape) for x in operands)
    sizes = [*zip(*((1,) * (rank - len(x.shape)) + x.shape for x in operands), strict=True)]
    shape = tuple(map(max, sizes))
    if any({*extents} - {1, most} for extents, most in zip(sizes, shape, strict=True)):
        raise TopoplanError(f"{kind}: shapes {' and '.join(str(x.shape) for x in operands)} differ")
    dims = every_axis(shape) if shape else ()
    axes = tuple(range(rank))
    tensors = [
        plain(f"x{k}", x, *(d if size == shape[d] else -1 for d, size in enumerate(x.shape, rank - len(x.shape))))
        for k, x in enumerate(operands)
    ]
    arity = "Unary" if len(operands) == 1 else "Binary"
    return Operator(
        name="",
        kind=kind,
        dims=dims,
        inputs=tuple(tensors[: len(inputs)]),
        weights=tuple(tensors[len(inputs) :]),
        outputs=(plain("y", Handle(shape, inputs[0].itemsize), *axes),),
        work=() if kind in ("clone", "contiguous") else (Term(1, axes),),
        tags={"flexnet": f"Element{arity}_{FLEXNET_TYPE[kind]}"} if kind in FLEXNET_TYPE else {},
        linear_in=_LINEAR.get((kind, len(operands)), ()),
        saved=_saved(kind, len(operands)),
        extras=(Tensor("mask", tuple(Axis(size, dim) for dim, size in enumerate(shape)), 1),)
        if kind == "dropout"
        else (),
    )


def _saved(kind: str, operands: int) -> tuple[str, ...] | None:
    """Return what the backward pass of a function reads; None for what its linearity says: its inputs, or nothing."""
    if operands > 1:
        return None
    return ("y",) if kind in _BY_ANSWER else () if kind in _BY_NOTHING else None


def softmax(x: Handle, axis: int = -1, *, log: bool = False) -> Operator:
    """Return softmax, or its logarithm, over one axis, which therefore cannot be cut."""
    dims = list(every_axis(x.shape))
    dims[axis] = Dimension(dims[axis].name, dims[axis].size)
    axes = tuple(range(len(dims)))
    return Operator(
        name="",
        kind="log_softmax" if log else "softmax",
        dims=tuple(dims),
        inputs=(plain("x", x, *axes),),
        outputs=(plain("y", x, *axes),),
        work=(Term(SOFTMAX_FLOPS, axes),),
        tags={} if log else {"flexnet": "Softmax"},
        saved=("y",),
    )


def accumulated(kind: str, x: Handle, axis: int) -> Operator:
    """Return for each element what it makes with all before it along ``axis``, which cannot be cut: ``cumsum``, ...."""
    operator = softmax(x, axis)
    return attrs.evolve(
        operator,
        kind=kind,
        work=(Term(1, operator.work[0].dims),),
        tags={},
        linear_in=((0,),) if kind == "cumsum" else (),
        saved=() if kind == "cumsum" else ("x", "y"),
    )


def concat(inputs: Sequence[Handle], axis: int, *, sample: int = 0) -> Operator:
    """Return the inputs side by side along ``axis``; a part touches of each input what falls into its share."""
    shape = list(inputs[0].shape)
    if not 0 <= axis < len(shape) or axis == sample:
        choices = f"1..{len(shape) - 1}" if sample == 0 else f"the {len(shape)}, or that of samples"
        raise TopoplanError(f"concat: axis {axis} is none of {choices}")
    tensors, start = [], 0
    for k, x in enumerate(inputs):
        if x.shape[:axis] != inputs[0].shape[:axis] or x.shape[axis + 1 :] != inputs[0].shape[axis + 1 :]:
            raise TopoplanError(f"concat: shapes {inputs[0].shape} and {x.shape} differ beside axis {axis}")
        axes = [Axis(size, dim) for dim, size in enumerate(x.shape)]
        axes[axis] = Axis(x.shape[axis], axis, offset=-start)
        tensors.append(Tensor(f"x{k}", tuple(axes), x.itemsize))
        start += x.shape[axis]
    shape[axis] = start
    dims = every_axis(shape)
    return Operator(
        name="",
        kind="concat",
        dims=dims,
        inputs=tuple(tensors),
        outputs=(plain("y", Handle(tuple(shape), inputs[0].itemsize), *range(len(dims))),),
        tags={"flexnet": f"Concat_{axis}"},
        linear_in=(tuple(range(len(inputs))),),
    )

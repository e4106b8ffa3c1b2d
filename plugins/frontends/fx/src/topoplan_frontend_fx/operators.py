"""What each operator of FlexFlow's fx files is here: functions from a node and its inputs to an `Operator`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from topoplan import Operator, TopoplanError
from topoplan_frontend_fx.reading import Node
from topoplan_operators import Handle, dense, normalization, pointwise, products, shaping, spatial

__all__ = ["ACTIVATIONS", "ARITIES", "OPERATORS", "UNCHANGED", "Make"]

#: Builds an operator; the last argument says whether a function is applied to its output.
Make = Callable[[Node, Sequence[Handle], bool], Operator]

#: Functions that become the activation of a convolution or linear layer.
ACTIVATIONS = ("RELU", "SIGMOID", "TANH", "ELU", "GELU")
#: Operators that change no element, or its type alone.
UNCHANGED = ("IDENTITY", "CONTIGUOUS", "FLOAT", "TO", "TYPE_AS")
#: ``ActiMode``: 10 is none.
_NO_ACTIVATION = 10


def _activated(node: Node, position: int, follows: bool) -> bool:
    return follows or node.integer(position, "activation") != _NO_ACTIVATION


def _linear(node: Node, inputs: Sequence[Handle], follows: bool) -> Operator:
    return dense.linear(
        inputs[0],
        node.integer(0, "output channels", 1),
        bias=bool(node.integer(2, "bias (0 or 1)")),
        activation=_activated(node, 1, follows),
    )


def _conv2d(node: Node, inputs: Sequence[Handle], follows: bool) -> Operator:
    # Seven sizes, the activation, then groups (not in 2020) and bias.
    if len(node.parameters) > 9 and node.integer(8, "groups", 1) != 1:
        raise TopoplanError(f"{node.where}: CONV2D: {node.parameters[8]} groups (only 1 can be planned)")
    pairs = [
        (node.integer(k, f"{what} height", low), node.integer(k + 1, f"{what} width", low))
        for k, what, low in ((1, "kernel", 1), (3, "stride", 1), (5, "padding", 0))
    ]
    return spatial.conv2d(
        inputs[0],
        node.integer(0, "output channels", 1),
        pairs[0],
        stride=pairs[1],
        padding=pairs[2],
        bias=bool(node.integer(len(node.parameters) - 1, "bias (0 or 1)")),
        activation=_activated(node, 7, follows),
    )


def _pool2d(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    return spatial.pool2d(
        inputs[0],
        node.integer(0, "kernel", 1),
        stride=node.integer(1, "stride", 1),
        padding=node.integer(2, "padding", 0),
    )


def _flat(_: Node, inputs: Sequence[Handle], __: bool) -> Operator:
    return spatial.flat(inputs[0]) if len(inputs[0].shape) == 4 else shaping.flatten(inputs[0], 1)


def _concat(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    return pointwise.concat(inputs, _axis(node, 0, inputs[0]))


def _split(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    # FlexFlow reads the parameter as the axis, and cuts into as many pieces as there are users.
    return shaping.chunk(inputs[0], max(len(node.users), 1), _behind_samples(node, [_axis(node, 0, inputs[0])])[0])


def _shaped(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    """Reshape; the axis of samples may have the batch that was traced, and one size -1 is what remains."""
    samples, *per_sample = inputs[0].shape
    sizes = [node.integer(k, "size", -1) for k in range(len(node.parameters))][1:]
    if sizes.count(-1) == 1:
        product = -math.prod(sizes)
        sizes[sizes.index(-1)] = math.prod(per_sample) // product if product else 0
    if math.prod(sizes) != math.prod(per_sample) or not node.parameters or min(sizes, default=1) < 1:
        shape = "x".join(node.parameters)
        raise TopoplanError(
            f"{node.where}: {node.operator}: {shape} does not keep samples apart in {inputs[0].shape} "
            "(the first size must be that of the batch)"
        )
    return shaping.view(inputs[0], (samples, *sizes))


def _transpose(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    axes = [_axis(node, k, inputs[0]) for k in range(2)]
    return shaping.transpose(inputs[0], *_behind_samples(node, axes))


def _permute(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    rank = len(inputs[0].shape)
    order = [_axis(node, k, inputs[0]) for k in range(len(node.parameters))]
    if sorted(order) != list(range(rank)):
        raise TopoplanError(f"{node.where}: PERMUTE: {', '.join(node.parameters)} is no order of {rank} axes")
    return shaping.permute(inputs[0], [0, *_behind_samples(node, order[1:])])


def _axis(node: Node, position: int, x: Handle) -> int:
    """Return an axis of ``x``; negative ones count from the end."""
    rank = len(x.shape)
    axis = node.integer(position, "axis")
    if not -rank <= axis < rank:
        raise TopoplanError(f"{node.where}: {node.operator}: axis {axis} is none of {rank} axes")
    return axis % rank


def _behind_samples(node: Node, axes: list[int]) -> list[int]:
    if 0 in axes:
        raise TopoplanError(
            f"{node.where}: {node.operator}: changes the axis of samples, which must stay the first and whole"
        )
    return axes


def _batch_matmul(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    rank = len(inputs[0].shape)
    if not 3 <= rank <= 4 or any(len(x.shape) != rank for x in inputs):
        shapes = " and ".join(str(x.shape) for x in inputs)
        raise TopoplanError(f"{node.where}: BATCH_MATMUL: {shapes} (expected two tensors of three or four axes)")
    return products.einsum("bij,bjk->bik" if rank == 3 else "bhij,bhjk->bhik", inputs, kind="bmm")


def _embedding(node: Node, inputs: Sequence[Handle], _: bool) -> Operator:
    if len(inputs[0].shape) != 2:
        raise TopoplanError(f"{node.where}: EMBEDDING: indices of shape {inputs[0].shape} are not (samples, positions)")
    return dense.token_embedding(inputs[0], node.integer(0, "rows", 1), node.integer(1, "row length", 1))


def _elementwise(kind: str) -> Make:
    return lambda _, inputs, __: pointwise.elementwise(kind, inputs)


OPERATORS: Mapping[str, Make] = {
    "LINEAR": _linear,
    "CONV2D": _conv2d,
    "POOL2D": _pool2d,
    "FLAT": _flat,
    "CONCAT": _concat,
    "SPLIT": _split,
    "RESHAPE": _shaped,
    "VIEW": _shaped,
    "TRANSPOSE": _transpose,
    "PERMUTE": _permute,
    "BATCH_MATMUL": _batch_matmul,
    "EMBEDDING": _embedding,
    "SOFTMAX": lambda _, inputs, __: pointwise.softmax(inputs[0]),
    "BATCH_NORM": lambda _, inputs, __: normalization.batch_norm(inputs[0]),
    "LAYER_NORM": lambda _, inputs, __: normalization.layer_norm(inputs[0]),
    **{
        name: _elementwise(name.lower())
        for name in (*ACTIVATIONS, "DROPOUT", "EXP", "POW", "RSQRT", "ADD", "SUBTRACT", "MULTIPLY", "DIVIDE")
    },
    "SCALAR_ADD": _elementwise("scalar_add"),
    "SCALAR_SUB": _elementwise("scalar_subtract"),
    "SCALAR_MULTIPLY": _elementwise("multiply"),
    "SCALAR_TRUEDIV": _elementwise("divide"),
    "SCALAR_FLOORDIV": _elementwise("floor_divide"),
    "FLOOR_DIVIDE": _elementwise("floor_divide"),
}

#: Operators that read two tensors, or as many as there are (None); all others read one.
ARITIES: Mapping[str, int | None] = {
    "ADD": 2,
    "SUBTRACT": 2,
    "MULTIPLY": 2,
    "DIVIDE": 2,
    "BATCH_MATMUL": 2,
    "CONCAT": None,
}

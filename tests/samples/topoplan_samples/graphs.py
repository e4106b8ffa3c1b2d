"""Models that tests of several packages search: a few operators, made by hand."""

from __future__ import annotations

import attrs

from topoplan import Axis, Dimension, Operator, OperatorGraph, Role, Tensor, Term
from topoplan_operators import GraphBuilder, losses

__all__ = ["computed_weight", "layer_graph", "linear_chain", "linear_operator", "tensor", "two_linears"]


def two_linears(batch=8):
    """Return two linear layers with a ReLU between them."""
    b = GraphBuilder("small", batch)
    x = b.linear(b.input((4,)), 6)
    b.linear(b.relu(x), 2)
    return b.build()


def linear_chain(layers, width, batch, relu=True, dialect="standard"):
    """Return linear layers without bias, each with a ReLU behind it or none, and a loss that sums all."""
    b = GraphBuilder("small", batch, dialect)
    x = b.input((width,))
    for _ in range(layers):
        x = b.linear(x, width, bias=False)
        if relu:
            x = b.relu(x)
    b.append(losses.total(x), [x], "loss")
    return b.build()


def tensor(name, sizes, dims, itemsize=4):
    """Return a tensor whose axes have these sizes, and these dimensions of an iteration space; -1 for none."""
    return Tensor(name, tuple(Axis(size, dim) for size, dim in zip(sizes, dims, strict=True)), itemsize)


def linear_operator(name, batch, inputs, outputs, bias=False, tags=()):
    """Return a linear operator ``(s, i) -> (s, o)``."""
    weight, shift = tensor("w", (outputs, inputs), (1, 2)), tensor("b", (outputs,), (1,))
    return Operator(
        name=name,
        kind="linear",
        dims=(
            Dimension("s", batch, Role.SAMPLE),
            Dimension("o", outputs, Role.PARAMETER),
            Dimension("i", inputs, Role.REDUCTION),
        ),
        inputs=(tensor("x", (batch, inputs), (0, 2)),),
        weights=(weight, shift) if bias else (weight,),
        outputs=(tensor("y", (batch, outputs), (0, 1)),),
        work=(Term(2.0, (0, 1, 2)),),
        tags=dict(tags),
    )


def computed_weight(batch, inputs, outputs, rank):
    """Return a layer whose weight is computed: a table of so many numbers for each output, times a matrix."""
    table = Operator(
        name="table",
        kind="linear",
        dims=(
            Dimension("o", outputs, Role.PARAMETER),
            Dimension("i", inputs, Role.PARAMETER),
            Dimension("r", rank, Role.REDUCTION),
        ),
        inputs=(),
        weights=(tensor("a", (outputs, rank), (0, 2)), tensor("b", (rank, inputs), (2, 1))),
        outputs=(tensor("w", (outputs, inputs), (0, 1)),),
        work=(Term(2.0, (0, 1, 2)),),
    )
    layer = linear_operator("layer", batch, inputs, outputs)
    layer = attrs.evolve(layer, inputs=(*layer.inputs, *layer.weights), weights=())
    return OperatorGraph(name="computed", operators=(table, layer), edges=[(0, 0, 1, 1)], batch_size=batch)


def layer_graph(edges, weights, outputs, batch):
    """Return opaque layers with so many bytes of weights, and of outputs for each sample."""
    operators = []
    for op, weight in enumerate(weights):
        operators.append(
            Operator(
                name=f"op{op}",
                kind="layer",
                dims=(Dimension("sample", batch, Role.SAMPLE),),
                inputs=tuple(_samples(outputs[u], batch) for u, v in edges if v == op),
                weights=(Tensor("w", (Axis(int(weight)),), itemsize=1),) if weight else (),
                outputs=(_samples(outputs[op], batch),),
            )
        )
    joined = [(u, 0, v, [a for a, b in edges if b == v].index(u)) for u, v in edges]
    return OperatorGraph(name="layers", operators=tuple(operators), edges=joined, batch_size=batch)


def _samples(nbytes, batch):
    return Tensor("x", (Axis(batch, 0), Axis(int(nbytes))), itemsize=1)

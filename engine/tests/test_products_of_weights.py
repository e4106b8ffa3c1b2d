"""A product of two weights, which a model computes in each forward pass, has a gradient for each."""

from __future__ import annotations

import attrs
import pytest

from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor
from topoplan_engine.throughput import model_flops
from topoplan_engine.training import products_of_weights
from topoplan_operator_times.work import backward_factors, factors_of
from topoplan_operators import GraphBuilder
from topoplan_operators.dense import linear
from topoplan_operators.handle import Handle
from topoplan_operators.products import einsum
from topoplan_operators.recurrent import Recurrence, cell, recurrent


@pytest.mark.parametrize(("trained", "products"), [((True, True), 2), ((True, False), 1), ((False, False), 0)])
def test_each_of_two_weights_that_are_multiplied_has_a_gradient(trained, products):
    """B A of 128 x 4 and 4 x 128: one product forward, and as many back as there are trained operands.

    PyTorch's counter has 3 x 131,072 FLOP of both for `W + B A` with a frozen W, and 2 x 1,048,576 of the layer.
    """
    kernels = Handle((128, 4)), Handle((4, 128))
    op = einsum("or,ri->oi", (), kernels)
    assert products_of_weights(op, trained) == products
    assert backward_factors(op, 0, trained).flops == products
    weights = tuple(attrs.evolve(w, requires_grad=has) for w, has in zip(op.weights, trained, strict=True))
    b = GraphBuilder("merged", 32)
    data = b.input((128,))
    (product,) = b.append(attrs.evolve(op, weights=weights), [], "product")
    b.append(einsum("bi,oi->bo", (data, product)), [data, product], "layer")
    layer = 2 * 32 * 128 * 128
    assert model_flops(b.build()) == (1 + products) * 2 * 128 * 128 * 4 + (layer if products == 0 else 2 * layer)


def test_a_bias_is_no_operand_of_a_product():
    b = GraphBuilder("layer", 32)
    b.linear(b.input((128,)), 64)
    (op,) = b.build().operators
    assert products_of_weights(op, (True, True)) == 1
    assert products_of_weights(op, (False, True)) == 0


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("hidden", "products"), [(False, 1), (True, 2)])
def test_a_bias_beside_a_computed_kernel_adds_no_product(hidden, products, has_bias):
    """A kernel that is normalized or merged has one gradient, its input another where it is no data.

    PyTorch's counter has 2 x 81,920 FLOP of a first transposed convolution with a normalized kernel, with its bias and
    without.
    """
    graph = _with_computed_kernel(hidden, has_bias=has_bias, trains=True)
    (op,) = (op for op in graph.operators if op.name == "layer")
    assert factors_of(graph)[graph.operators.index(op)].flops == products


@pytest.mark.parametrize("trains", [False, True])
def test_the_bias_beside_a_kernel_of_integers_adds_no_product(trains):
    """Behind a layer on data that is trained: the gradient of the input alone, whether or not the bias is trained."""
    graph = _with_computed_kernel(True, has_bias=True, trains=trains, kernel=False)
    assert factors_of(graph)[-1].flops == 1
    assert model_flops(graph) == 2 * (2 * 32 * 128 * 128 + 32 * 128) + 2 * (2 * 32 * 128 * 64 + 32 * 64)


def _with_computed_kernel(hidden, *, has_bias, trains, kernel=True):
    """Return a layer on data or behind another, whose kernel is the view of a weight."""
    b = GraphBuilder("computed", 32)
    x = b.input((128,))
    x = b.linear(x, 128, name="first") if hidden else x
    weight = Tensor("w", (Axis(64, 0), Axis(128, 1)), requires_grad=kernel)
    output = attrs.evolve(weight, name="y")
    dims = Dimension("o", 64, Role.ATTRIBUTE), Dimension("i", 128, Role.ATTRIBUTE)
    made = Operator(name="", kind="opaque", dims=dims, inputs=(), weights=(weight,), outputs=(output,))
    (computed,) = b.append(made, [], "kernel")
    op = linear(x, 64, bias=has_bias, activation=False)
    biases = tuple(attrs.evolve(tensor, requires_grad=trains) for tensor in op.weights[1:])
    b.append(attrs.evolve(op, inputs=(*op.inputs, op.weights[0]), weights=biases), [x, computed], "layer")
    return b.build()


@pytest.mark.parametrize(
    ("kind", "projected", "backward"),
    [
        # Of the products of one, three and four gates of 64 channels and a state of 32, in five steps on data: all of
        # the weights, and of four steps those of the state.  PyTorch's counter has as many.
        ("rnn", 0, 2 * 16 * (5 * 32 * (64 + 32) + 4 * 32 * 32)),
        ("gru", 0, 2 * 16 * 3 * (5 * 32 * (64 + 32) + 4 * 32 * 32)),
        ("lstm", 0, 2 * 16 * 4 * (5 * 32 * (64 + 32) + 4 * 32 * 32)),
        ("lstm", 16, 2 * 16 * (4 * (5 * 32 * (64 + 16) + 4 * 32 * 16) + 2 * 5 * 16 * 32)),
    ],
)
def test_a_recurrence_on_data_has_gradients_of_its_states(kind, projected, backward):
    b = GraphBuilder("recurrence", 16)
    x = b.input((5, 64))
    b.append(recurrent(x, Recurrence(kind=kind, channels=64, hidden=32, projected=projected)), [x], "layer")
    graph = b.build()
    (op,), (factors,) = graph.operators, factors_of(graph)
    assert factors.flops * op.work[0].coefficient * 16 * 5 == pytest.approx(backward, rel=1e-12)


@pytest.mark.parametrize(("trains", "products"), [(True, 2), (False, 1)])
def test_a_step_whose_weights_are_those_of_the_first_has_all_gradients(trains, products):
    """Of the weights, where they are trained, and of what the step reads: each as many FLOPs as the step."""
    b = GraphBuilder("steps", 16)
    x = b.linear(b.input((64,)), 64)
    first = cell(x, sizes := Recurrence(kind="gru", channels=64, hidden=32))
    weights = tuple(attrs.evolve(weight, requires_grad=trains) for weight in first.weights)
    h = b.append(attrs.evolve(first, weights=weights), [x], "first")[0]
    second = cell(x, sizes, states=[h])
    (names, owners) = [w.name for w in weights], {f"owner.{w.name}": "first" for w in weights}
    tags = {"shared": " ".join(names)} | owners
    second = attrs.evolve(second, inputs=(*second.inputs, *weights), weights=(), tags=tags)
    b.append(second, [x, h, *(Handle(w.shape) for w in weights)], "second")
    graph = b.build()
    assert factors_of(graph)[-1].flops == products
    step = 2 * 3 * 32 * (64 + 32) * 16
    assert model_flops(graph) == (1 + products) * (2 * 16 * 64 * 64 + 16 * 64) + 2 * (1 + products) * step

"""A product of two weights, which a model computes in each forward pass, has a gradient for each."""

from __future__ import annotations

import attrs
import pytest

from topoplan_engine.throughput import model_flops
from topoplan_engine.training import products_of_weights
from topoplan_operator_times.work import backward_factors
from topoplan_operators import GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.products import einsum


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

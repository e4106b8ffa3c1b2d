"""Operators are the kernels that they launch."""

from __future__ import annotations

import pytest

from topoplan_estimator_kernels.operators import operator_seconds
from topoplan_kernel_constants.kernels import Kernels
from topoplan_operator_times.parts import PartShape, Slice

H100 = Kernels.of("h100")


def part(kind, inputs, weights, outputs, gradients=(True,), **constants):
    """A part whose axes are dimensions of their own."""
    slices = [tuple(Slice(shape, tuple(range(len(shape)))) for shape in of) for of in (inputs, weights, outputs)]
    return PartShape(
        kind=kind,
        sizes=outputs[0],
        inputs=slices[0],
        weights=slices[1],
        outputs=slices[2],
        gradients=gradients,
        constants=tuple(sorted(constants.items())),
    )


def test_a_linear_layer_is_its_products():
    shapes = [(4096, 1024)], [(2048, 1024)], [(4096, 2048)]
    seconds = operator_seconds(H100, "tf32", part("linear", *shapes))
    assert seconds.forward == H100.product("tf32", "forward", 1, 4096, 2048, 1024)
    data = H100.product("tf32", "data", 1, 4096, 1024, 2048)
    weight = H100.product("tf32", "weight", 1, 2048, 1024, 4096)
    assert seconds.backward == pytest.approx(data + weight)
    first = operator_seconds(H100, "tf32", part("linear", *shapes, gradients=(False,)))
    assert first.backward == pytest.approx(weight)
    frozen = operator_seconds(H100, "tf32", part("linear", *shapes, frozen=1))
    assert frozen.backward == pytest.approx(data)


def test_an_operator_that_nobody_measured_moves_its_bytes():
    shape = [(2**20, 64)]
    seconds = operator_seconds(H100, "fp32", part("fold", shape, [], shape))
    assert seconds.forward == pytest.approx(H100.moving("fp32", "copy", "forward", 1, 2**26), rel=1e-6)
    assert operator_seconds(H100, "fp32", part("view", shape, [], shape)).forward == 0

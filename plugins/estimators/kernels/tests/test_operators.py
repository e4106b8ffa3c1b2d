"""Operators are the kernels that they launch."""

from __future__ import annotations

import attrs
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


def test_experts_are_one_grouped_product():
    rows = part("expert_linear", [(1, 64, 512, 4096)], [(64, 4096, 1024)], [(1, 64, 512, 1024)])
    rows = attrs.evolve(
        rows,
        inputs=(attrs.evolve(rows.inputs[0], dims=(0, 1, 2, 3)),),
        weights=(attrs.evolve(rows.weights[0], dims=(1, 3, 4)),),
        outputs=(attrs.evolve(rows.outputs[0], dims=(0, 1, 2, 4)),),
    )
    grouped, batched = operator_seconds(H100, "bf16", rows), operator_seconds(H100, "bf16", rows, batched=True)
    assert grouped.forward == H100.product("bf16-grouped", "forward", 64, 512, 1024, 4096)
    assert batched.forward > H100.product("bf16", "forward", 64, 512, 1024, 4096)  # and copies
    faster = operator_seconds(H100, "bf16", rows, narrow="fp8")
    assert grouped.forward / 2 < faster.forward < 1.2 * grouped.forward  # what is cast is 4096 x 512 x 64


def test_parts_of_causal_queries_share_the_pairs():
    def seconds(queries, keys, **constants):
        sizes = (1, queries, 8, 4, keys, 128, 128)
        of = attrs.evolve(part("scaled_dot_product_attention", [], [], [sizes], **constants), sizes=sizes)
        return operator_seconds(H100, "bf16", of).forward

    whole, half = seconds(8192, 8192, causal=1), seconds(4096, 8192, causal=1)
    assert whole / 2 == pytest.approx(half, rel=0.15)
    assert seconds(8192, 8192, causal=1, window=128) < whole / 20


def test_an_operator_that_nobody_measured_moves_its_bytes():
    shape = [(2**20, 64)]
    seconds = operator_seconds(H100, "fp32", part("fold", shape, [], shape))
    assert seconds.forward == pytest.approx(H100.moving("fp32", "copy", "forward", 1, 2**26), rel=1e-6)
    assert operator_seconds(H100, "fp32", part("view", shape, [], shape)).forward == 0


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norms_without_weights_are_those_with_weights(kind):
    """OLMo's have none."""
    shape = [(4, 1024, 2048)]
    bare, scaled = (operator_seconds(H100, "bf16", part(kind, shape, weights, shape)) for weights in ([], [(2048,)]))
    assert bare.forward == scaled.forward > 0
    assert bare.backward == scaled.backward > 0

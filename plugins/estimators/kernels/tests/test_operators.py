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


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_weights_that_are_multiplied_have_a_product_for_the_gradient_of_each(frozen):
    """B A of 4,096 x 512 and 512 x 1,024: dB = dC A' and dA = B' dC, of those that are trained."""
    weights = Slice((4096, 512), (0, 2)), Slice((512, 1024), (2, 1))
    shape = part("linear", [], [], [(4096, 1024)], gradients=(), frozen=frozen)
    seconds = operator_seconds(H100, "tf32", attrs.evolve(shape, weights=weights))
    assert seconds.forward == H100.product("tf32", "forward", 1, 4096, 1024, 512)
    first, second = (
        H100.product("tf32", role, 1, *sizes)
        for role, sizes in (("data", (4096, 512, 1024)), ("weight", (1024, 512, 4096)))
    )
    assert seconds.backward == pytest.approx((frozen != 1) * first + (frozen != 2) * second)


def test_experts_are_one_grouped_product():
    rows = part("expert_linear", [(1, 64, 512, 4096)], [(64, 4096, 1024)], [(1, 64, 512, 1024)])
    rows = attrs.evolve(
        rows,
        inputs=(attrs.evolve(rows.inputs[0], dims=(0, 1, 2, 3)),),
        weights=(attrs.evolve(rows.weights[0], dims=(1, 3, 4)),),
        outputs=(attrs.evolve(rows.outputs[0], dims=(0, 1, 2, 4)),),
    )
    grouped, batched = operator_seconds(H100, "bf16", rows), operator_seconds(H100, "bf16", rows, experts="batched")
    assert grouped.forward == H100.product("bf16-grouped", "forward", 64, 512, 1024, 4096)
    assert batched.forward > H100.product("bf16", "forward", 64, 512, 1024, 4096)  # and copies
    faster = operator_seconds(H100, "bf16", rows, narrow="fp8")
    assert grouped.forward / 2 < faster.forward < 1.2 * grouped.forward  # what is cast is 4096 x 512 x 64


def _experts(weights, **constants):
    rows = part("expert_linear", [(1, 16, 4096, 2880)], weights, [(1, 16, 4096, 2880)], **constants)
    return attrs.evolve(rows, weights=tuple(attrs.evolve(w, dims=(1, 3, 4)[: len(w.shape)]) for w in rows.weights))


def test_megatrons_biases_of_answers_are_weighed_in_fp32_expert_by_expert():
    """Forward a product and a sum are written in fp32, joined and cast: 4 + 10 + 8 + 6 bytes for each answer.

    Backward the gradient is cast twice (6 + 6), two products are written and summed (12 + 12), slices joined (4).
    Biases of other products are added within them.
    """
    matrix, biased = [(16, 2880, 2880)], [(16, 2880, 2880), (16, 2880)]
    plain, inner, answers = (
        operator_seconds(H100, "bf16", each, fused=True)
        for each in (_experts(matrix), _experts(biased), _experts(biased, answers=1))
    )
    assert inner == plain
    answer_count = 16 * 4096 * 2880
    for more, nbytes in ((answers.forward - plain.forward, 28), (answers.backward - plain.backward, 40)):
        assert 1 < more * 3.35e12 / (nbytes * answer_count) < 1.35  # of an H100's 3.35 TB/s, copies reach 78 %


def test_fused_experts_add_biases_and_limit_within_their_products():
    """Transformer Engine, ``ops/fused/grouped_mlp.py``: what is left reads the gradients of answers once."""
    matrix, biased = [(16, 2880, 2880)], [(16, 2880, 2880), (16, 2880)]
    plain, answers = (
        operator_seconds(H100, "bf16", each, fused=True, experts="fused")
        for each in (_experts(matrix), _experts(biased, answers=1))
    )
    assert answers.forward == plain.forward
    assert 0 < answers.backward - plain.backward < 2 * 2 * 16 * 4096 * 2880 / 3.35e12
    shape = [(16, 4096, 2880)]
    assert operator_seconds(H100, "bf16", part("clamp", shape, [], shape), fused=True, experts="fused").forward == 0


def test_biases_of_experts_are_a_sum_behind_their_product():
    """PyTorch reads and writes each answer once more, and reads its gradient once more: 4 and 2 bytes."""
    plain, biased = (
        operator_seconds(H100, "bf16", _experts(weights))
        for weights in ([(16, 2880, 2880)], [(16, 2880, 2880), (16, 2880)])
    )
    size = 16 * 4096 * 2880
    assert biased.forward - plain.forward == pytest.approx(4 * size / 3.35e12, rel=0.25)
    assert 0 < biased.backward - plain.backward < 3 * 2 * size / 3.35e12


def test_a_clamp_reads_and_writes_and_megatron_joins_the_halves_again():
    """4 bytes forward and 6 backward; joining reads and writes 4 more each way (fused_bias_geglu.py)."""
    shape, size = [(16, 4096, 2880)], 16 * 4096 * 2880
    plain, fused = (operator_seconds(H100, "bf16", part("clamp", shape, [], shape), fused=f) for f in (False, True))
    for seconds, nbytes in ((plain.forward, 4), (plain.backward, 6), (fused.forward, 8), (fused.backward, 10)):
        assert seconds == pytest.approx(nbytes * size / 3.35e12, rel=0.2)


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

"""Operators of traced models: sums of products, moves of elements, losses, attention with biases, gating."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, Role
from topoplan_engine.partition import multiplies, replica_groups, slice_elements, transfers
from topoplan_engine.sharding.signatures import signatures
from topoplan_operator_times.work import backward_factors
from topoplan_operators import (
    GraphBuilder,
    Handle,
    attention,
    dense,
    experts,
    losses,
    normalization,
    pointwise,
    products,
    reductions,
    shaping,
    spatial,
    tokens,
)

X = Handle((4, 6, 8))


def flops(op: Operator) -> float:
    return math.fsum(term.coefficient * math.prod(op.sizes[d] for d in term.dims) for term in op.work)


def roles(op: Operator) -> dict[str, Role | None]:
    return {dim.name: dim.role for dim in op.dims}


class TestEinsum:
    def test_letters_are_dimensions(self) -> None:
        op = products.einsum("becd,edh->bech", [Handle((4, 2, 3, 8))], [Handle((2, 8, 5))])
        assert roles(op) == {
            "b": Role.SAMPLE,
            "e": Role.PARAMETER,
            "c": Role.ATTRIBUTE,
            "d": Role.REDUCTION,
            "h": Role.PARAMETER,
        }
        assert op.outputs[0].shape == (4, 2, 3, 5)
        assert flops(op) == 2 * 4 * 2 * 3 * 8 * 5
        assert slice_elements(op, op.weights[0], (1, 2, 1, 1, 1)).tolist() == [40, 40]

    @pytest.mark.parametrize(
        ("expression", "message"),
        [
            ("bsd,dh", "does not name the axes"),
            ("bsd->bd", "does not name the axes"),
            ("bsd,dh->bsx", "does not name the axes"),
            ("bs,dh->bh", "'bs' does not fit shape"),
            ("bsb,sh->bh", "'bsb' does not fit shape"),
            ("bsd,sh->bdh", "'s' is 6 and 8"),
        ],
    )
    def test_expressions_that_do_not_fit(self, expression, message) -> None:
        with pytest.raises(TopoplanError, match=message):
            products.einsum(expression, [X, Handle((8, 5))])


class TestMoves:
    def test_shapes(self) -> None:
        assert shaping.transpose(X, 0, 2).outputs[0].shape == (8, 6, 4)
        assert shaping.view(X, (4, 48)).outputs[0].shape == (4, 48)
        assert shaping.flatten(X, 1).outputs[0].shape == (4, 48)
        assert [t.shape for t in shaping.chunk(X, 3, 1).outputs] == [(4, 2, 8)] * 3
        assert shaping.append_token(X).outputs[0].shape == (4, 7, 8)
        assert shaping.take_token(X).outputs[0].shape == (4, 8)

    def test_they_compute_nothing_and_are_linear(self) -> None:
        for op in (shaping.transpose(X, 0, 1), shaping.view(X, (24, 8)), shaping.flatten(X, 0), shaping.take_token(X)):
            assert flops(op) == 0
            assert op.linear_in == ((0,),)

    def test_samples_stay_samples(self) -> None:
        op = shaping.transpose(Handle((6, 4, 8)), 0, 1, sample=1)
        assert op.sample_dim == 1
        assert op.outputs[0].axes[0].dim == 1

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: shaping.view(X, (4, 47)), "differ in elements"),
            (lambda: shaping.flatten(X, 3), "axis 3 is none of 0..2"),
            (lambda: shaping.chunk(X, 4, 1), "4 parts do not divide 6"),
            (lambda: normalization.layer_norm(X, 3), "3 axes of 3"),
            (lambda: pointwise.elementwise("add", [X, Handle((4, 6))]), "differ"),
            (lambda: pointwise.elementwise("add", [X, Handle((4, 2, 8))]), "differ"),
            (lambda: losses.nll_loss(X, Handle((4, 6))), "do not fit"),
            (lambda: shaping.split(X, (3, 4), 1), "sizes 3, 4 along axis 1"),
            (lambda: shaping.sliced(X, 1, 2, 7), "2 to 7 by 1 along axis 1"),
            (lambda: shaping.select(X, 1, 6), "position 6 of axis 1"),
            (lambda: reductions.reduced("mean", X, (1, -2)), "axes 1, -2 of a tensor of 3"),
            (lambda: reductions.reduced("mean", X, (3,)), "axes 3 of a tensor of 3"),
            (lambda: normalization.local_response_norm(X, 0), "size 0"),
            (lambda: normalization.batch_scale(X, Handle((5,)), Handle((6,))), "are not those of 6 channels"),
            (lambda: tokens.gather(X, Handle(()), 0), "axis 0 of"),
            (lambda: tokens.gather_elements(X, Handle((4, 7, 8)), 2), "axis 2 of"),
            (lambda: tokens.gather_elements(X, Handle((4, 6)), 1), "axis 1 of"),
            (lambda: tokens.scatter_add(X, Handle((5,)), 3), "do not send"),
            (lambda: tokens.dispatch(X, Handle((4, 5, 2)), 3, 2), "by choices"),
            (lambda: tokens.combine(X, X, X), "do not fit"),
            (
                lambda: spatial.conv2d(
                    Handle((1, 8, 4, 4)), 6, 3, stride=1, padding=1, bias=True, activation=False, groups=4
                ),
                "4 groups do not divide 8 and 6 channels",
            ),
            (
                lambda: spatial.conv2d(
                    Handle((1, 8, 4, 4)), 8, 3, stride=1, padding=0, bias=True, activation=False, dilation=2
                ),
                "kernel 3, stride 1, padding 0, dilation 2 do not fit an input of 4",
            ),
            (lambda: experts.gating(X, 2, 0, 1), "0 slots"),
            (lambda: dense.multihead_attention(X, X, X, 3), "3 heads do not divide 8"),
            (lambda: dense.multihead_attention(X, X, Handle((5, 6, 8)), 2), "do not fit"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, make, message) -> None:
        with pytest.raises(TopoplanError, match=message):
            make()


class TestCosts:
    def test_attention_with_biases_costs_what_attention_costs(self) -> None:
        positions, samples, width, heads = 5, 3, 8, 2
        x = Handle((positions, samples, width))
        op = dense.multihead_attention(x, x, x, heads)
        by_hand = samples * (
            8 * positions * width**2 + 4 * positions**2 * width + dense.SOFTMAX_FLOPS * heads * positions**2
        )
        assert flops(op) == by_hand
        assert sum(t.elements for t in op.weights) == 4 * width**2 + 4 * width
        assert [t.shape for t in op.outputs] == [(5, 3, 8), (3, 5, 5)]

    def test_a_table_of_rows_for_each_position(self) -> None:
        op = dense.token_embedding(Handle((4, 6)), 100, 8)
        assert flops(op) == pytest.approx(4 * 6 * 8)
        assert roles(op) == {"n": Role.SAMPLE, "t": Role.ATTRIBUTE, "d": Role.PARAMETER, "r": Role.REDUCTION}

    def test_losses_are_one_number(self) -> None:
        loss = losses.nll_loss(Handle((4, 10, 6)), Handle((4, 6)))
        assert loss.outputs[0].shape == losses.total(X).outputs[0].shape == ()
        assert flops(loss) == pytest.approx(24)
        assert flops(losses.total(X)) == 192

    def test_broadcast_axes_are_not_cut_with_the_others(self) -> None:
        op = pointwise.elementwise("add", [X], [Handle((1, 6, 8))])
        assert slice_elements(op, op.weights[0], (2, 3, 1)).tolist() == [16] * 6
        assert slice_elements(op, op.inputs[0], (2, 3, 1)).tolist() == [32] * 6


class TestAttentionWithoutWeights:
    def test_flops_are_those_of_two_products(self) -> None:
        # torch 2.13's FlopCounterMode says 75,497,472 for these shapes, causal or not, with enable_gqa.
        q, k, v = Handle((2, 128, 8, 32)), Handle((2, 192, 2, 32)), Handle((2, 192, 2, 64))
        op = attention.scaled_dot_product(q, k, v)
        assert flops(op) == 2 * 2 * 8 * 128 * 192 * (32 + 64) == 75_497_472
        assert op.outputs[0].shape == (2, 128, 8, 64)

    @pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (5, 9), (9, 5), (64, 64)])
    @pytest.mark.parametrize("window", [None, 1, 3, 6, 100])
    def test_flops_of_causal_attention_are_those_of_the_pairs_that_a_mask_leaves(self, queries, keys, window) -> None:
        mask = np.tril(np.ones((queries, keys), bool))
        mask = mask if window is None else mask & ~np.tril(np.ones((queries, keys), bool), -window)
        assert attention.attended_pairs(queries, keys, window) == mask.sum()
        q, k, v = Handle((2, queries, 4, 8)), Handle((2, keys, 2, 8)), Handle((2, keys, 2, 16))
        op = attention.scaled_dot_product(q, k, v, causal=True, window=window)
        assert flops(op) == pytest.approx(2 * 2 * 4 * mask.sum() * (8 + 16))

    def test_the_backward_pass_has_two_products_for_each(self) -> None:
        x = Handle((2, 4, 3, 2))
        assert multiplies(attention.scaled_dot_product(x, x, x))
        factors = backward_factors(attention.scaled_dot_product(x, x, x), 3)
        assert (factors.flops, factors.traffic, factors.kernels) == (2, 2, 2)
        assert not multiplies(experts.top_k(Handle((4, 6)), 2))

    def test_heads_are_cut_as_keys_and_values_have_them(self) -> None:
        q, kv = Handle((2, 16, 8, 4)), Handle((2, 16, 2, 4))
        op = attention.scaled_dot_product(q, kv, kv)
        assert {d.name: d.size for d in op.dims if d.role is not None} == {"n": 2, "q": 16, "h": 2}
        assert [slice_elements(op, t, (1, 1, 2, 1, 1, 1, 1))[0] for t in (*op.inputs, *op.outputs)] == [
            512,
            128,
            128,
            512,
        ]
        split = attention.scaled_dot_product(Handle((2, 16, 2, 4, 4)), kv, kv)
        assert {d.name: d.size for d in split.dims if d.role is not None} == {"n": 2, "q": 16, "h": 2, "g": 4}

    @pytest.mark.parametrize(
        ("shapes", "options", "message"),
        [
            (((2, 5, 6, 2), (2, 4, 4, 2), (2, 4, 4, 2)), {}, "do not fit"),
            (((2, 5, 6, 2), (2, 4, 3, 4), (2, 4, 3, 4)), {}, "do not fit"),
            (((2, 5, 6, 2), (2, 4, 3, 2), (2, 5, 3, 2)), {}, "do not fit"),
            (((2, 5, 6, 2), (3, 4, 3, 2), (3, 4, 3, 2)), {}, "do not fit"),
            (((2, 5, 12), (2, 4, 6), (2, 4, 6)), {}, "need the numbers of heads"),
            (((2, 5, 12), (2, 4, 6), (2, 4, 6)), {"heads": (4, 3)}, "no multiple of 3"),
            (((2, 5, 12), (2, 4, 7), (2, 4, 6)), {"heads": (4, 2)}, "do not fit"),
            (((2, 5, 6, 2), (2, 4, 3, 2), (2, 4, 3, 2)), {"heads": (6, 3)}, "need the numbers of heads"),
            (((2, 5), (2, 4), (2, 4)), {}, "is not samples"),
        ],
    )
    def test_shapes_that_do_not_fit(self, shapes, options, message) -> None:
        with pytest.raises(TopoplanError, match=message) as caught:
            attention.scaled_dot_product(*map(Handle, shapes), **options)
        assert "\n" not in str(caught.value)

    def test_rotary_channels_stay_together(self) -> None:
        op = attention.rotary(Handle((2, 5, 3, 8)), rotated=4)
        assert roles(op) == {"n": Role.SAMPLE, "a1": Role.ATTRIBUTE, "a2": Role.ATTRIBUTE, "a3": None}
        assert flops(op) == 3 * 2 * 5 * 3 * 4
        with pytest.raises(TopoplanError, match="3 of 8 channels"):
            attention.rotary(Handle((2, 5, 3, 8)), rotated=3)


class TestViews:
    def test_an_axis_that_is_split_is_cut_as_its_first_part(self) -> None:
        op = shaping.view(Handle((8, 6, 20)), (8, 6, 4, 5))
        assert [(d.name, d.size) for d in op.dims] == [("n", 8), ("a1", 6), ("a2", 4)]
        assert slice_elements(op, op.inputs[0], (1, 1, 4)).tolist() == [240] * 4

    def test_what_cannot_be_followed_is_whole(self) -> None:
        op = shaping.view(Handle((8, 6, 5)), (8, 5, 6))
        assert [d.name for d in op.dims] == ["n"]
        assert [axis.dim for axis in op.outputs[0].axes] == [0, -1, -1]

    def test_samples_inside_another_axis_are_no_samples(self) -> None:
        op = shaping.view(Handle((6, 8, 5)), (48, 5), sample=1)
        assert op.sample_dim == -1
        assert shaping.view(Handle((8, 6, 5)), (48, 5)).sample_dim == 0


class TestConvolutions:
    def test_groups_and_dilation(self) -> None:
        # torch 2.13's FlopCounterMode says these for (2, 8, 14, 14): to 16 channels, 3 x 3, one zero on each side.
        x = Handle((2, 8, 14, 14))
        options = {"stride": 1, "padding": 1, "bias": True, "activation": False}
        counted = {1: 903_168, 4: 225_792, 8: 112_896}
        for groups, known in counted.items():
            op = spatial.conv2d(x, 16, 3, groups=groups, **options)
            assert op.work[0].coefficient * math.prod(op.sizes) == known
            assert [w.shape for w in op.weights] == [(16, 8 // groups, 3, 3), (16,)]
        dilated = spatial.conv2d(x, 16, 3, dilation=2, **{**options, "padding": 2})
        assert dilated.outputs[0].shape == (2, 16, 14, 14)
        assert slice_elements(dilated, dilated.inputs[0], (1, 1, 14, 1, 1)).max() == 2 * 8 * 5 * 14

    def test_channels_are_cut_as_their_groups(self) -> None:
        op = spatial.conv2d(Handle((2, 8, 4, 4)), 16, 3, stride=1, padding=1, bias=True, activation=False, groups=4)
        assert roles(op) == {
            "n": Role.SAMPLE,
            "g": Role.PARAMETER,
            "h": Role.ATTRIBUTE,
            "w": Role.ATTRIBUTE,
            "o": None,
            "i": None,
        }
        assert slice_elements(op, op.weights[0], (1, 4, 1, 1, 1, 1)).tolist() == [4 * 2 * 9] * 4

    def test_one_axis_of_positions_and_three(self) -> None:
        options = {"bias": False, "activation": False}
        sound = spatial.convolution(Handle((2, 3, 16)), 4, (5,), stride=(2,), padding=[(4, 0)], **options)
        assert (sound.kind, sound.outputs[0].shape) == ("conv1d", (2, 4, 8))
        volume = spatial.convolution(
            Handle((2, 3, 4, 8, 8)), 4, (2, 2, 2), stride=(2,) * 3, padding=[(0, 0)] * 3, **options
        )
        assert (volume.kind, volume.outputs[0].shape) == ("conv3d", (2, 4, 2, 4, 4))


class TestStatisticsOfAllSamples:
    def test_parts_hold_partial_sums(self) -> None:
        rules = [str(rule) for rule in signatures(normalization.batch_statistics(Handle((8, 4, 6))))]
        assert "(gather_0, gather_0) -> (reduce, reduce)" in rules
        assert "(gather_1, gather_1) -> (gather_0, gather_0)" in rules

    def test_every_part_gets_the_sums_of_all_others(self) -> None:
        b = GraphBuilder("norm", 8)
        b.batch_norm(b.relu(b.input((4, 6))), synchronized=True)
        graph = b.build()
        assert [op.kind for op in graph.operators] == ["relu", "batch_statistics", "batch_scale"]
        _, sums, scale = graph.operators
        moved = transfers(sums, sums.outputs[0], (4, 1, 1), scale, scale.inputs[1], (4, 1, 1))
        assert moved.elements.tolist() == [4] * 16
        assert [w.shape for w in scale.weights] == [(4,), (4,)]
        assert replica_groups(scale, scale.weights[0], (4, 1, 1)).tolist() == [[0, 1, 2, 3]]


class TestTokens:
    def test_experts_get_what_they_have_slots_for(self) -> None:
        b = GraphBuilder("moe", 4)
        x = b.linear(b.input((16, 8)), 8)
        gates, experts_of = b.top_k(b.softmax(b.linear(x, 4)), 2)
        slots = experts.capacity(1.0, 2, 16, 4)
        hidden = b.einsum("becd,edh->bech", [b.dispatch(x, experts_of, 4, slots)], [(4, 8, 32)])
        y = b.combine(b.einsum("bech,ehd->becd", [hidden], [(4, 32, 8)]), gates, experts_of)
        assert y.shape == (4, 16, 8)
        graph = b.build()
        products_of_experts = [op for op in graph.operators if op.kind == "einsum"]
        # Each of 16 positions is seen by two experts, no more.
        assert [flops(op) for op in products_of_experts] == [2 * 4 * 16 * 2 * 8 * 32] * 2
        assert flops(next(op for op in graph.operators if op.kind == "combine")) == pytest.approx(2 * 2 * 4 * 16 * 8)

    def test_only_the_chosen_rows_move(self) -> None:
        op = tokens.gather(Handle((1000, 8)), Handle((6,)))
        assert op.outputs[0].shape == (6, 8)
        moved = math.fsum(t.coefficient * math.prod(op.sizes[d] for d in t.dims) for t in op.traffic)
        assert moved == 2 * 4 * 6 * 8 + 4 * 6


def test_a_part_of_a_split_has_what_falls_into_its_stretch() -> None:
    op = shaping.split(Handle((4, 12)), (6, 4, 2), -1)
    assert [slice_elements(op, t, (1, 3)).tolist() for t in op.outputs] == [[16, 8, 0], [0, 8, 8], [0, 0, 8]]


def test_numbers_and_rows_meet_every_element() -> None:
    op = pointwise.elementwise("add", [X, Handle((8,))])
    assert op.outputs[0].shape == (4, 6, 8)
    assert slice_elements(op, op.inputs[1], (4, 1, 2)).tolist() == [4] * 8
    assert pointwise.elementwise("pow", [X, Handle(())]).outputs[0].shape == (4, 6, 8)


def test_rms_norm_has_weights_alone() -> None:
    op = normalization.rms_norm(X)
    assert [w.shape for w in op.weights] == [(8,)]
    assert roles(op) == {"n": Role.SAMPLE, "a1": Role.ATTRIBUTE, "a2": None}


def test_a_block_of_a_language_model_joins() -> None:
    b = GraphBuilder("block", 4)
    x = b.rms_norm(b.linear(b.input((16, 32)), 32))
    q, k, v = (b.view(b.linear(x, heads * 8, bias=False), (16, heads, 8)) for heads in (4, 2, 2))
    y = b.scaled_dot_product_attention(b.rotary(q), b.rotary(k), v, causal=True)
    assert b.linear(b.view(y, (16, 32)), 32, bias=False).shape == (4, 16, 32)
    names = [op.name for op in b.build().operators]
    assert names[-3:] == ["attention1", "view4", "linear5"]


def test_the_builder_takes_operators_of_any_kind() -> None:
    b = GraphBuilder("small", 4)
    x = b.input((6, 8))
    norm = b.append(normalization.layer_norm(x), [x])[0]
    b.append(losses.total(norm), [norm], "loss")
    graph = b.build()
    assert [op.name for op in graph.operators] == ["layer_norm1", "loss"]
    assert graph.edges.tolist() == [[0, 0, 1, 0]]

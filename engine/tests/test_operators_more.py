"""Operators of traced models: sums of products, moves of elements, losses, attention with biases, gating."""

from __future__ import annotations

import math

import pytest

from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, Role
from topoplan_engine.partition import slice_elements
from topoplan_operators import GraphBuilder, Handle, dense, experts, losses, pointwise, products, shaping

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
            (lambda: pointwise.layer_norm(X, 3), "3 axes of 3"),
            (lambda: pointwise.elementwise("add", [X, Handle((4, 6))]), "differ"),
            (lambda: pointwise.elementwise("add", [X, Handle((4, 2, 8))]), "differ"),
            (lambda: losses.nll_loss(X, Handle((4, 6))), "do not fit"),
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


def test_the_builder_takes_operators_of_any_kind() -> None:
    b = GraphBuilder("small", 4)
    x = b.input((6, 8))
    norm = b.append(pointwise.layer_norm(x), [x])[0]
    b.append(losses.total(norm), [norm], "loss")
    graph = b.build()
    assert [op.name for op in graph.operators] == ["layer_norm1", "loss"]
    assert graph.edges.tolist() == [[0, 0, 1, 0]]

"""The BERT models: layers, parameters, slots, and what follows the number of devices."""

from __future__ import annotations

from collections import Counter

import pytest

from topoplan.errors import TopoplanError
from topoplan_frontend_hidup import BertSgmoe
from topoplan_samples.frontends import builder_of

build = builder_of(BertSgmoe)
SMALL = {"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "positions": 8, "words": 60}


def small(batch_size=None, **given):
    return build(batch_size, **{**SMALL, **given})


def parameters(graph):
    return sum(tensor.elements for op in graph.operators for tensor in op.weights)


def test_a_layer_is_attention_and_a_dense_half_or_experts():
    layers = [[op.kind for op in small().operators if op.name.startswith(f"layer{k}_")] for k in range(2)]
    attention = [*["transpose"] * 3, "multihead_attention", "transpose", "dropout", "add", "layer_norm"]
    assert layers[0] == [*attention, "linear", "relu", "dropout", "linear", "dropout", "add", "layer_norm"]
    assert layers[1] == [*attention, "gating", "einsum", "einsum", "relu", "einsum", "einsum", "add", "layer_norm"]


def test_layers_alternate():
    kinds = Counter(op.kind for op in small(layers=5).operators)
    assert kinds["multihead_attention"] == 5
    assert kinds["gating"] == 2
    assert kinds["linear"] == 3 * 2 + 1


def test_parameters_by_hand():
    d, h, words, experts = 16, 32, 2 * (60 // 2 + 1), 4
    attention = 3 * d * d + 3 * d + d * d + d
    norms = 2 * 2 * d
    dense = 2 * d * h + h + d
    mixture = d * experts + experts * 2 * d * h
    assert parameters(small()) == 2 * words * d + words + 2 * (attention + norms) + dense + mixture


def test_batch_experts_and_vocabulary_follow_the_devices():
    graph = small(**{"world-size": 8})
    shapes = {op.name: [tensor.shape for tensor in (*op.inputs, *op.weights)] for op in graph.operators}
    assert graph.batch_size == 8 * 32
    assert shapes["layer1_gating"] == [(256, 8, 16), (16, 16)]
    assert shapes["decoder"][1] == (64, 16)
    assert small(batch_size=6, experts=3).operators[0].inputs[0].shape == (6, 8)


def test_slots_are_an_even_share_of_the_choices_and_a_bit():
    gating = next(op for op in small().operators if op.kind == "gating")
    assert gating.outputs[0].shape == (64, 8, 4, 5)  # ceil(8 / 4 * 1.25 * 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"heads": 3}, "3 heads do not divide 16"), ({"world-size": 0}, "world-size: 0"), ({"layers": 0}, "layers: 0")],
)
def test_bad_options_are_named(given, message):
    with pytest.raises(TopoplanError, match=message):
        small(**given)

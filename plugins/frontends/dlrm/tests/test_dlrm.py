"""DLRM: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_dlrm import Dlrm
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(Dlrm)


@parametrize_with_checks(Dlrm)
def test_conformance(check) -> None:
    check()


def test_default_model() -> None:
    graph = build()
    assert [op.name for op in graph.operators] == ["bot0", "emb0", "interact", "top0"]
    assert graph.batch_size == 64
    assert graph.operators[2].outputs[0].shape == (64, 4)


def test_published_configuration() -> None:
    graph = build(preset="dlrm16")
    assert (graph.batch_size, len(graph.operators)) == (16384, 40)
    assert sum(len(op.weights) for op in graph.operators) == 62
    graph = build(preset="dlrm128", dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (65536, 88)
    assert sum(len(op.weights) for op in graph.operators) == 110
    assert round(dense_parameters(graph) / 1e6, 1) == 306.3


def test_an_option_overrides_the_preset() -> None:
    graph = build(batch_size=8, **{"preset": "dlrm16", "arch-embedding-size": "10-20", "embedding-bag-size": "3"})
    embeddings = [op for op in graph.operators if op.kind == "embedding"]
    assert [op.weights[0].shape for op in embeddings] == [(10, 256), (20, 256)]
    assert [op.inputs[0].shape for op in embeddings] == [(8, 3)] * 2


def test_element_sizes_differ_between_dialects() -> None:
    def sizes(dialect):
        return {op.kind: op.outputs[0].itemsize for op in build(dialect=dialect).operators}

    assert sizes("standard") == {"linear": 4, "embedding": 4, "concat": 4}
    # FlexNet gives rows the size of their indices; the concatenation copies the bottom MLP, its first input
    assert sizes("flexnet") == {"linear": 4, "embedding": 8, "concat": 4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arch-mlp-bot": "1024"}, "arch-mlp-bot: 1024 alone has no layer"),
        ({"arch-mlp-top": "8"}, "arch-mlp-top: 8 alone has no layer"),
        ({"arch-embedding-size": []}, "arch-embedding-size: the list is empty"),
        ({"arch-embedding-size": "10-0"}, "arch-embedding-size: 0 is too small"),
        ({"arch-sparse-feature-size": "-1"}, "arch-sparse-feature-size: -1 is too small"),
        ({"preset": "dlrm64"}, "preset"),
    ],
)
def test_bad_options_are_named(given, message) -> None:
    with pytest.raises(TopoplanError, match=message):
        build(**given)

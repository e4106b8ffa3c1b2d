"""Transformer: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_transformer import Transformer
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(Transformer)


@parametrize_with_checks(Transformer)
def test_conformance(check) -> None:
    check()


@pytest.mark.parametrize(
    ("preset", "batch_size", "operators", "weights", "parameters"),
    [
        ("transformer16", 1024, 61, 68, "56.6"),
        ("transformer32", 2048, 121, 134, "113.3"),
        ("transformer128", 8192, 121, 134, "201.4"),
    ],
)
@pytest.mark.parametrize("dialect", ["standard", "flexnet"])
def test_published_configurations(preset, batch_size, operators, weights, parameters, dialect) -> None:
    graph = build(preset=preset, dialect=dialect)
    assert (graph.batch_size, len(graph.operators)) == (batch_size, operators)
    assert sum(len(op.weights) for op in graph.operators) == weights
    assert f"{dense_parameters(graph) / 1e6:.1f}" == parameters


def test_the_decoder_attends_to_the_encoder() -> None:
    graph = build(**{"num-layers": 2, "hidden-size": 8, "num-heads": 2, "sequence-length": 4})
    names = [op.name for op in graph.operators]
    cross = names.index("dec1_cross")
    sources = [names[u] for u, _, v, _ in graph.edges.tolist() if v == cross]
    assert sources == ["dec1_add", "enc1_linear2"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden-size": 100, "num-heads": 16}, "num-heads: 16 does not divide hidden-size 100"),
        ({"preset": "transformer16", "num-heads": 7}, "num-heads: 7 does not divide hidden-size 768"),
        ({"num-layers": 0}, "num-layers: 0 is too small"),
        ({"sequence-length": -1}, "sequence-length: -1 is too small"),
    ],
)
def test_bad_options_are_named(given, message) -> None:
    with pytest.raises(TopoplanError, match=message):
        build(**given)

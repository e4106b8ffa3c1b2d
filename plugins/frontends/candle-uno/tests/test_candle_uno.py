"""CANDLE Uno: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_candle_uno import CandleUno
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(CandleUno)


@parametrize_with_checks(CandleUno)
def test_conformance(check) -> None:
    check()


@pytest.mark.parametrize(
    ("preset", "batch_size", "operators", "weights", "parameters"),
    [
        ("candle16", 16384, 71, 140, "1.19"),
        ("candle32", 32768, 71, 140, "4.62"),
        ("candle128", 131072, 91, 180, "23.61"),
    ],
)
def test_published_configurations(preset, batch_size, operators, weights, parameters) -> None:
    graph = build(preset=preset, dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (batch_size, operators)
    assert sum(len(op.weights) for op in graph.operators) == weights
    assert f"{dense_parameters(graph) / 1e9:.2f}" == parameters
    assert [op.tags["flexnet"] for op in graph.operators][-2:] == [
        f"Dense_{graph.operators[-3].dims[1].size}_1",
        "Dense_1_1",
    ]


def test_doses_join_the_concatenation_as_they_are() -> None:
    graph = build(**{"dense-layers": "8", "dense-feature-layers": "16-4"})
    features = [op.name for op in graph.operators].index("features")
    assert [tensor.shape[1] for tensor in graph.operators[features].inputs] == [4, 1, 1, 4, 4, 4, 4]
    assert [row[3] for row in graph.edges.tolist() if row[2] == features] == [0, 3, 4, 5, 6]
    assert graph.operators[-1].name == "growth"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dense-layers": "8-0"}, "dense-layers: 0 is too small"),
        ({"dense-feature-layers": []}, "dense-feature-layers: the list is empty"),
    ],
)
def test_bad_options_are_named(given, message) -> None:
    with pytest.raises(TopoplanError, match=message):
        build(**given)

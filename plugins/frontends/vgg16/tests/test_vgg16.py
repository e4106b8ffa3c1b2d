"""VGG-16: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_vgg16 import Vgg16
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(Vgg16)


@parametrize_with_checks(Vgg16)
def test_conformance(check) -> None:
    check()


def test_true_vgg16() -> None:
    graph = build()
    assert dense_parameters(graph) == 138_357_544  # Simonyan and Zisserman, table 2: 138 million
    flops = sum(t.coefficient * _volume(op, t) for op in graph.operators for t in op.work if op.kind != "softmax")
    assert flops / 64 == pytest.approx(2 * 15.47e9, rel=0.005)


def _volume(op, term) -> float:
    volume = 1.0
    for dim in term.dims:
        volume *= op.sizes[dim]
    return volume


def test_flexnet_vgg16() -> None:
    graph = build(preset="vgg32", dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (8192, 23)
    assert sum(len(op.weights) for op in graph.operators) == 32
    assert round(dense_parameters(graph) / 1e6, 1) == 289.4
    assert next(op.tags["flexnet"] for op in graph.operators if op.kind == "linear") == "Dense_61952_4096"


@pytest.mark.parametrize(("preset", "batch_size"), [("vgg16", 4096), ("vgg32", 8192), ("vgg128", 32768)])
def test_batch_sizes(preset, batch_size) -> None:
    assert build(preset=preset).batch_size == batch_size
    assert build(batch_size=48, preset=preset).batch_size == 48


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: -1 is too small"):
        build(classes=-1)

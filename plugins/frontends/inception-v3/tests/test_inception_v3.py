"""Inception v3: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.options import structure
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_inception_v3 import InceptionV3, topoplan_frontends

FRONTEND = topoplan_frontends()


@parametrize_with_checks(FRONTEND)
def test_conformance(check) -> None:
    check()


def build(batch_size=None, **given):
    return structure(InceptionV3, given, "frontend inception-v3").build(batch_size)


def dense_parameters(graph) -> int:
    return sum(w.elements for op in graph.operators for w in op.weights if op.kind != "embedding")


def test_flexnet_inception() -> None:
    graph = build(dialect="flexnet")
    assert len(graph.operators) == 122
    assert sum(len(op.weights) for op in graph.operators) == 190
    assert round(dense_parameters(graph) / 1e6, 1) == 21.8
    assert next(op for op in graph.operators if op.kind == "concat").outputs[0].shape == (64, 256, 36, 36)


def test_true_inception() -> None:
    graph = build(batch_size=1)
    products = 0.0
    for op in graph.operators:
        if op.kind in ("conv2d", "linear"):
            volume = 1.0
            for dim in op.work[0].dims:
                volume *= op.sizes[dim]
            products += op.work[0].coefficient / 2 * volume
    assert products == pytest.approx(5.71e9, rel=0.005)  # multiplications at 299 x 299, without the auxiliary head


def test_channels_of_the_blocks() -> None:
    graph = build(batch_size=2)
    concats = [op.outputs[0].shape for op in graph.operators if op.kind == "concat"]
    assert concats == [
        (2, 256, 35, 35),
        (2, 288, 35, 35),
        (2, 288, 35, 35),
        (2, 768, 17, 17),
        (2, 768, 17, 17),
        (2, 768, 17, 17),
        (2, 768, 17, 17),
        (2, 768, 17, 17),
        (2, 1280, 8, 8),
        (2, 2048, 8, 8),
        (2, 2048, 8, 8),
    ]


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: 0 is too small"):
        build(classes=0)

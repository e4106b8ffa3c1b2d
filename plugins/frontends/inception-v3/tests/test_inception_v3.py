"""Inception v3: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_inception_v3 import InceptionV3
from topoplan_samples.frontends import builder_of, dense_parameters, multiplications

build = builder_of(InceptionV3)


@parametrize_with_checks(InceptionV3)
def test_conformance(check) -> None:
    check()


def test_flexnet_inception() -> None:
    graph = build(dialect="flexnet")
    assert len(graph.operators) == 122
    assert sum(len(op.weights) for op in graph.operators) == 190
    assert round(dense_parameters(graph) / 1e6, 1) == 21.8
    assert next(op for op in graph.operators if op.kind == "concat").outputs[0].shape == (64, 256, 36, 36)


def test_true_inception() -> None:
    graph = build(batch_size=1)
    assert multiplications(graph) == pytest.approx(5.71e9, rel=0.005)  # at 299 x 299, without the auxiliary head


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

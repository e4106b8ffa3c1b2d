"""ResNet-50: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.options import structure
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_resnet50 import Resnet50, topoplan_frontends

FRONTEND = topoplan_frontends()


@parametrize_with_checks(FRONTEND)
def test_conformance(check) -> None:
    check()


def build(batch_size=None, **given):
    return structure(Resnet50, given, "frontend resnet50").build(batch_size)


def dense_parameters(graph) -> int:
    return sum(w.elements for op in graph.operators for w in op.weights if op.kind != "embedding")


def test_true_resnet50() -> None:
    graph = build(batch_size=1)
    # torchvision's 25,557,032 with a bias per channel instead of batch normalization's two parameters
    assert dense_parameters(graph) == 25_557_032 - 26_560
    products = 0.0
    for op in graph.operators:
        if op.kind in ("conv2d", "linear"):
            volume = 1.0
            for dim in op.work[0].dims:
                volume *= op.sizes[dim]
            products += op.work[0].coefficient / 2 * volume
    assert products == pytest.approx(4.09e9, rel=0.003)


def test_flexnet_resnet50() -> None:
    graph = build(preset="resnet128", dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (65536, 90)
    assert sum(len(op.weights) for op in graph.operators) == 108
    assert round(dense_parameters(graph) / 1e6, 1) == 23.6
    assert [op.tags["flexnet"] for op in graph.operators][-2] == "Dense_8192_10"


def test_shortcuts_join_what_blocks_read_and_make() -> None:
    graph = build()
    add = graph.index("stage2_block1_add")
    sources = [graph.operators[u].name for u, _, v, _ in graph.edges.tolist() if v == add]
    assert sources == ["stage2_block1_project", "stage2_block1_conv3"]
    add = graph.index("stage2_block2_add")
    sources = [graph.operators[u].name for u, _, v, _ in graph.edges.tolist() if v == add]
    assert sources == ["stage2_block1_relu", "stage2_block2_conv3"]


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: 0 is too small"):
        build(classes=0)

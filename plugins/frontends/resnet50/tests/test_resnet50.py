"""ResNet-50: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_resnet50 import Resnet50
from topoplan_samples.frontends import builder_of, dense_parameters, multiplications

build = builder_of(Resnet50)


@parametrize_with_checks(Resnet50)
def test_conformance(check) -> None:
    check()


def test_true_resnet50() -> None:
    graph = build(batch_size=1)
    # torchvision's 25,557,032 with a bias per channel instead of batch normalization's two parameters
    assert dense_parameters(graph) == 25_557_032 - 26_560
    assert multiplications(graph) == pytest.approx(4.09e9, rel=0.003)


def test_flexnet_resnet50() -> None:
    graph = build(preset="resnet128", dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (65536, 90)
    assert sum(len(op.weights) for op in graph.operators) == 108
    assert round(dense_parameters(graph) / 1e6, 1) == 23.6
    assert [op.tags["flexnet"] for op in graph.operators][-2] == "Dense_8192_10"


def test_shortcuts_join_what_blocks_read_and_make() -> None:
    graph = build()
    names = [op.name for op in graph.operators]
    add = names.index("stage2_block1_add")
    sources = [names[u] for u, _, v, _ in graph.edges.tolist() if v == add]
    assert sources == ["stage2_block1_project", "stage2_block1_conv3"]
    add = names.index("stage2_block2_add")
    sources = [names[u] for u, _, v, _ in graph.edges.tolist() if v == add]
    assert sources == ["stage2_block1_relu", "stage2_block2_conv3"]


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: 0 is too small"):
        build(classes=0)

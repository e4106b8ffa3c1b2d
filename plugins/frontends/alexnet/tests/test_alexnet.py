"""AlexNet: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_alexnet import Alexnet
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(Alexnet)


@parametrize_with_checks(Alexnet)
def test_conformance(check) -> None:
    check()


NAMES = "conv1 pool1 conv2 pool2 conv3 conv4 conv5 pool3 flat1 linear1 linear2 linear3 softmax1"


def test_names() -> None:
    assert [op.name for op in build().operators] == NAMES.split()


def test_parameters() -> None:
    assert dense_parameters(build()) == 61_100_840  # as torchvision.models.alexnet counts them
    assert round(dense_parameters(build(preset="alexnet", dialect="flexnet")) / 1e6, 1) == 57.0


def test_preset_has_the_measured_shapes_in_both_dialects() -> None:
    standard, flexnet = (build(preset="alexnet", dialect=dialect) for dialect in ("standard", "flexnet"))
    assert standard.batch_size == flexnet.batch_size == 1024
    assert [op.tags["flexnet"] for op in standard.operators] == [op.tags["flexnet"] for op in flexnet.operators]
    assert standard.operators[9].tags["flexnet"] == "Dense_9216_4096"
    assert build(preset="alexnet", classes=7).operators[-1].outputs[0].shape == (1024, 7)


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: 0 is too small"):
        build(classes=0)
    with pytest.raises(TopoplanError, match="batch size -4"):
        build(batch_size=-4)

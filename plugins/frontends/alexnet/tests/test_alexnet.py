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


#: Channels, height and width of conv1, pool1, conv2, pool2, conv3, conv4, conv5, pool3, by hand:
#: (side + 4 - 11) // 4 + 1, then (side - 3) // 2 + 1 for every pool, and unchanged by the other convolutions.
SHAPES = {
    (224,): [(64, 55, 55), (64, 27, 27), (192, 27, 27), (192, 13, 13), (384, 13, 13), (256, 13, 13), (256, 13, 13)],
    (229,): [(64, 56, 56), (64, 27, 27), (192, 27, 27), (192, 13, 13), (384, 13, 13), (256, 13, 13), (256, 13, 13)],
    (299,): [(64, 74, 74), (64, 36, 36), (192, 36, 36), (192, 17, 17), (384, 17, 17), (256, 17, 17), (256, 17, 17)],
    (240, 320): [(64, 59, 79), (64, 29, 39), (192, 29, 39), (192, 14, 19), (384, 14, 19), (256, 14, 19), (256, 14, 19)],
    (63, 63): [(64, 15, 15), (64, 7, 7), (192, 7, 7), (192, 3, 3), (384, 3, 3), (256, 3, 3), (256, 3, 3)],
}
POOLED = {(224,): (6, 6), (229,): (6, 6), (299,): (8, 8), (240, 320): (6, 9), (63, 63): (1, 1)}


@pytest.mark.parametrize("image", SHAPES)
def test_shapes_of_any_image(image) -> None:
    graph = build(image=image, batch_size=16)
    assert [op.outputs[0].shape[1:] for op in graph.operators[:7]] == SHAPES[image]
    height, width = POOLED[image]
    assert graph.operators[7].outputs[0].shape == (16, 256, height, width)
    assert graph.operators[8].outputs[0].shape == (16, 256 * height * width)
    assert graph.operators[9].weights[0].shape == (4096, 256 * height * width)


def test_the_network_of_flexflows_talk() -> None:
    # 3 x 299 x 299 into 256 * 8 * 8; parameters: kernels and biases of the five convolutions and three linear layers.
    convolutions = 64 * 363 + 192 * 1600 + 384 * 1728 + 256 * 3456 + 256 * 2304 + 64 + 192 + 384 + 256 + 256
    linears = 4096 * (256 * 8 * 8 + 1) + 4096 * 4097 + 10 * 4097
    assert dense_parameters(build(image=(299,), classes=10)) == convolutions + linears == 86_404_938


def test_the_default_image_is_that_of_the_dialect() -> None:
    assert build().operators == build(image=(224,)).operators
    assert build(dialect="flexnet").operators == build(dialect="flexnet", image=(229, 229)).operators


@pytest.mark.parametrize("image", [(62,), (224, 62), (3, 224, 224)])
def test_an_image_that_does_not_fit_is_named(image) -> None:
    with pytest.raises(
        TopoplanError, match=r"image: '[0-9-]*' must be one side or height-width, of at least 63 pixels"
    ):
        build(image=image)


def test_bad_options_are_named() -> None:
    with pytest.raises(TopoplanError, match="classes: 0 is too small"):
        build(classes=0)
    with pytest.raises(TopoplanError, match="batch size -4"):
        build(batch_size=-4)

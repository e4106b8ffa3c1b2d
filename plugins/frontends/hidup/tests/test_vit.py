"""The vision transformers: patches, class token, parameters and slots."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan_frontend_hidup import VitSgmoe
from topoplan_samples.frontends import builder_of

build = builder_of(VitSgmoe)
SMALL = {"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "image": 8, "classes": 4}


def small(**given):
    return build(**{**SMALL, **given})


def test_an_image_becomes_patches_and_a_class_token():
    ops = {op.name: op for op in small().operators}
    assert ops["patches"].outputs[0].shape == (64, 16, 2, 2)
    assert ops["patches_transpose"].outputs[0].shape == (64, 4, 16)
    assert ops["class_token"].outputs[0].shape == (64, 5, 16)
    assert ops["answer"].outputs[0].shape == (64, 16)
    # slots are counted among four patches: ceil(4 / 4 * 1.25 * 2)
    assert ops["layer1_gating"].outputs[0].shape == (64, 5, 4, 3)
    assert [op.kind for op in small().operators[-4:]] == ["take_token", "linear", "log_softmax", "nll_loss"]


def test_parameters_by_hand():
    d, h, experts = 16, 32, 4
    attention = 4 * d * d + 4 * d
    layers = 2 * (attention + 4 * d) + 2 * d * h + h + d + d * experts + experts * 2 * d * h
    ends = 3 * 16 * d + d + d + 5 * d + d * 4 + 4
    assert sum(t.elements for op in small().operators for t in op.weights) == layers + ends


@pytest.mark.parametrize(
    ("given", "message"), [({"patch": 3}, "patch: 3 does not divide an image of 8"), ({"heads": 5}, "5 heads")]
)
def test_bad_options_are_named(given, message):
    with pytest.raises(TopoplanError, match=message):
        small(**given)

"""What a layer keeps for its backward pass, cut over tensor-parallel devices, beside the published formulas.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022, arXiv 2205.05198), equations 2
to 6, and the percentages of its figure 7 as calculon-ai/calculon@caa4b11 (calculon/llm/validation.py) read them off.
Nothing that counts bytes knows the formulas: they are those of the tensors that operators say their backward passes
read.
"""

from __future__ import annotations

import numpy as np
import pytest

from topoplan_samples.megatron_layers import PERCENT, SIZES, of_a_layer


@pytest.mark.by_day(2)
@pytest.mark.parametrize("model", SIZES)
def test_percentages_are_those_of_the_paper(model):
    for mode, percent in PERCENT[model].items():
        assert 100 * of_a_layer(model, mode) / of_a_layer(model) == pytest.approx(percent, abs=0.15), mode


@pytest.mark.parametrize("model", SIZES)
def test_bytes_are_those_of_the_formulas(model):
    """Which leave out the mean and the deviation of each position in both normalizations, four bytes each."""
    b, s, h, a = SIZES[model]
    t, scores = 8, 5 * a * s / h
    statistics = 16 * b * s
    expected = {
        "none": s * b * h * (10 + 24 / t + scores / t) + statistics,
        "sequence": s * b * h / t * (34 + scores) + statistics / t,
        "selective": s * b * h * (10 + 24 / t) + statistics,
        "selective+sequence": s * b * h / t * 34 + statistics / t,
        "full": 2 * s * b * h,
    }
    assert {mode: of_a_layer(model, mode) for mode in expected} == pytest.approx(expected, rel=1e-12)


def test_the_first_stage_of_gpt_3():
    """Eight stages of twelve layers keep eight micro-batches in 1F1B: 51.75, 32.06, 9.56 and 4.5 GiB."""
    gibibytes = [96 * of_a_layer("175B", mode) / 2**30 for mode in ("none", "sequence", "selective+sequence", "full")]
    assert np.array(gibibytes) == pytest.approx([51.75, 32.06, 9.56, 4.5], abs=0.01)

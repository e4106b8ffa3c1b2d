"""Presets: parameters are the published totals to the last one, and names are found as users write them."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan_engine.model_notes import model_notes
from topoplan_engine.reporting.model import parameter_count
from topoplan_engine.throughput import active_parameters, flops_per_token
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.presets import preset, presets
from topoplan_samples.long_tail import at_night

#: Built on each save: one of a family, and of few layers.
QUICK = ("llama3-8b", "llama3.2-1b", "mixtral-8x7b", "qwen2.5-0.5b", "qwen3-0.6b", "gpt2", "deepseek-v2-lite")


@pytest.mark.parametrize("name", at_night([*presets()], *QUICK))
def test_parameters_are_those_that_are_published(name) -> None:
    graph = HuggingFace(preset=name, sequence_length=64).build(1)
    assert parameter_count(graph) == presets()[name].parameters
    assert not [subject for subject in model_notes(graph) if subject.startswith("keys")]


#: Preset, positions, active parameters, GFLOP a token with half of causal attention and with all of it, computed by
#: hand: six for each active parameter, and 6 L s a (channels of a key and a value) / 2, or twice that.
COSTS = [
    ("gpt3-175b", 2048, 174_575_321_088, 1061.95, 1076.44),
    ("llama2-7b", 4096, 6_607_077_376, 42.86, 46.08),
    ("llama3-8b", 8192, 7_504_658_432, 51.47, 57.91),
    ("llama3-70b", 8192, 69_501_714_432, 449.22, 481.43),
    ("llama3.1-405b", 8192, 403_747_897_344, 2523.96, 2625.42),
    ("mixtral-8x7b", 4096, 12_747_538_432, 79.71, 82.93),
    ("qwen3-30b-a3b", 4096, 3_029_073_920, 23.01, 27.84),
    ("qwen3-235b-a22b", 4096, 21_518_352_384, 148.03, 166.96),
    ("deepseek-v3", 4096, 36_518_166_528, 249.81, 280.51),
    ("kimi-k2", 4096, 31_520_915_456, 204.48, 219.83),
]


@pytest.mark.parametrize(
    ("name", "positions", "active", "half", "full"), at_night(COSTS, *(row for row in COSTS if row[0] in QUICK))
)
def test_flops_a_token_follow_both_conventions(name, positions, active, half, full) -> None:
    graph = HuggingFace(preset=name, sequence_length=positions).build(1)
    assert active_parameters(graph) == active
    assert flops_per_token(graph) == pytest.approx(1e9 * half, rel=3e-4)
    assert flops_per_token(graph, full_attention=True) == pytest.approx(1e9 * full, rel=3e-4)


def test_a_prediction_layer_costs_what_deepseek_says() -> None:
    """260.0 GFLOP a token with it, 249.8 without; 11.5 G parameters of its own (the weights' README)."""
    graph = HuggingFace(preset="deepseek-v3", sequence_length=4096, layers=4, prediction_layers=1).build(1)
    without = HuggingFace(preset="deepseek-v3", sequence_length=4096, layers=4).build(1)
    assert parameter_count(graph) - parameter_count(without) == 11_610_068_224
    assert flops_per_token(graph) - flops_per_token(without) == pytest.approx(10.2e9, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama3-70b", "llama3-70b"),
        ("Llama-3-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("llama3_1_405b", "llama3.1-405b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DeepSeek_V3", "deepseek-v3"),
    ],
)
def test_names_are_found_as_users_write_them(name, found) -> None:
    assert preset(name) == (presets()[found].keys, f"preset {found}")


def test_spellings_are_those_of_one_preset() -> None:
    assert all(preset(name)[1] == f"preset {name}" for name in presets())
    repositories = [each.repository for each in presets().values() if each.repository]
    assert len(set(repositories)) == len(repositories)


def test_a_wrong_name_has_the_nearest() -> None:
    for name, near in (("lama3-8b", "llama3-8b"), ("mixtral-8x70b", "mixtral-8x7b"), ("quen3-32b", "qwen3-32b")):
        with pytest.raises(TopoplanError, match=f"preset: '{name}' is not known; did you mean '{near}'"):
            HuggingFace(preset=name).build(1)
    with pytest.raises(TopoplanError, match="config and preset are both given"):
        HuggingFace(preset="gpt2", config="config.json").build(1)

"""Presets: parameters are the published totals to the last one, and names are found as users write them."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.presets import preset, presets
from topoplan_samples.long_tail import at_night

#: Built on each save: one of a family, and of few layers.
QUICK = ("llama3-8b", "llama3.2-1b", "mixtral-8x7b", "qwen2.5-0.5b", "qwen3-0.6b", "gpt2", "deepseek-v2-lite")


def parameters(graph) -> int:
    return sum(weight.elements for op in graph.operators for weight in op.weights)


@pytest.mark.parametrize("name", at_night([*presets()], *QUICK))
def test_parameters_are_those_that_are_published(name) -> None:
    """Biases that choose experts count in published totals; no gradient trains them, and they are no weights here."""
    keys = presets()[name].keys
    has_biases = keys["model_type"] in ("deepseek_v3", "kimi_k2")
    sparse = keys["num_hidden_layers"] - keys["first_k_dense_replace"] if has_biases else 0
    biases = sparse * keys.get("n_routed_experts", 0)
    graph = HuggingFace(preset=name, sequence_length=64).build(1)
    assert parameters(graph) + biases == presets()[name].parameters


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

"""Words of Megatron-LM for modules that run again, in models that call them otherwise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan_engine.recomputation import regions_of, words_of_regions
from topoplan_frontend_huggingface import HuggingFace

LAYERS = 2
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "num_hidden_layers": LAYERS,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 64,
}
MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 64, "vocab_size": 256}
BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (OPT, ("fc1", "act_fn", "fc2")),
        (MPT, ("ffn.up_proj", "ffn.act_fn", "ffn.down_proj")),
        (BERT, ("intermediate.dense", "intermediate.act", "output.dense")),
    ],
    ids=["opt", "mpt", "bert"],
)
def test_the_mlp_of_a_layer_whatever_its_model_calls_it(tmp_path, keys, parts):
    """Its two products and what is between them (Megatron-LM's ``MLP``): no norm, and no sum with what came in."""
    (tmp_path / "config.json").write_text(json.dumps(keys))
    graph = HuggingFace(config=str(tmp_path), sequence_length=16).build(2)
    regions = regions_of("modules:mlp", graph)
    for number in range(LAYERS):
        members = [graph.operators[op].name for op in np.flatnonzero(regions == number)]
        assert len(members) == len(parts)
        assert all(f".{number}.{part}" in name for name, part in zip(members, parts, strict=True)), members
    assert words_of_regions(regions.tolist(), graph) == "modules:mlp"


@pytest.mark.parametrize(
    ("preset", "name", "parts"), [("deepseek-v3", "shared_experts", 5), ("qwen2-57b-a14b", "shared_expert", 8)]
)
def test_shared_experts_run_again_by_themselves(preset, name, parts):
    """``shared_experts`` of Megatron-LM: three products, activation and gate; Qwen's with a gate of its answers."""
    graph = HuggingFace(preset=preset, sequence_length=16, layers=4).build(2)
    regions = regions_of("modules:shared_experts", graph)
    members = [graph.operators[op].name for op in np.flatnonzero(regions == 0)]
    assert len(members) == parts
    assert all(f".mlp.{name}" in each for each in members)
    assert words_of_regions(regions.tolist(), graph) == "modules:shared_experts"
    both = regions_of("modules:shared_experts+moe", graph)
    assert np.array_equal(both >= 0, regions_of("modules:moe", graph) >= 0), "they are a part of that layer"


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("qwen3-8b", {"input_layernorm", "post_attention_layernorm"}),
        ("deepseek-v3", {"input_layernorm", "post_attention_layernorm"}),
        ("gemma2-2b", {"input_layernorm", "pre_feedforward_layernorm"}),
        ("gpt2", {"ln_1", "ln_2"}),
    ],
)
def test_norms_of_the_residual_stream_run_again(preset, names):
    """``layernorm`` of Megatron-LM: "input_layernorm and pre_mlp_layernorm", and none of queries, keys or latents."""
    graph = HuggingFace(preset=preset, sequence_length=16, layers=LAYERS).build(2)
    regions = regions_of("modules:layernorm", graph)
    members = [graph.operators[op].name.split(".") for op in np.flatnonzero(regions >= 0)]
    assert sorted(parts[-1] for parts in members) == sorted([*names] * LAYERS)
    assert words_of_regions(regions.tolist(), graph) == "modules:layernorm"

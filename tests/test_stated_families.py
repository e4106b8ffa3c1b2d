"""Stated plans of decoders whose layers are arranged in other ways than Llama's: cut, staged and simulated."""

from __future__ import annotations

import json

import pytest

from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.configurations import SMALL_DECODER
from topoplan_searcher_stated import stated_plan


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2},
        {"model_type": "bloom"},
        {"model_type": "opt"},
        {"model_type": "cohere", "use_qk_norm": True},
        {"model_type": "olmo"},
        {"model_type": "glm4_moe", "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2},
    ],
    ids=lambda keys: keys["model_type"],
)
def test_tensors_and_stages_divide_all_weights(tmp_path, keys) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL_DECODER, **keys}))
    graph = HuggingFace(config=str(path), sequence_length=32).build(8)
    plan = stated_plan(graph, "tp=2,pp=2,dp=1,sp=true", servers=1, gpus_per_server=4)
    held = sum(weight.elements * weight.itemsize for op in graph.operators for weight in op.weights)
    copied = sum(  # normalizations and biases of outputs are on both devices of a pair, a tied table on both stages
        weight.elements * weight.itemsize
        for op in graph.operators
        for weight in op.weights
        if len(weight.axes) == 1 or op.kind in ("learned_positions", "token_embedding")
    )
    assert held <= plan.memory.weights.sum() <= held + 2 * copied

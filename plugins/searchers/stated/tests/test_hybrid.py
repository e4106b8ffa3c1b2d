"""Hybrid plans that are searched: no slower than those of one kind of parallelism, and estimated before."""

from __future__ import annotations

import json

import pytest

from topoplan import optimize, stated_plan
from topoplan_frontend_huggingface import HuggingFace

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    options = {"servers": 2, "gpus_per_server": 4, "batch_size": 16, "device": "h100", "precision": "bf16"}
    return HuggingFace(config=str(path)), options


def test_it_is_no_slower_than_any_plan_of_one_kind(setting):
    model, options = setting
    found = optimize(model, searchers=["hybrid:shortlist=12"], **options).plan
    for plan in ("tp=8", "pp=4", "", "tp=4,pp=2", "pp=2,zero=1"):
        stated = stated_plan(model, plan, **options)
        assert found.timeline.makespan <= stated.timeline.makespan * (1 + 1e-9), plan

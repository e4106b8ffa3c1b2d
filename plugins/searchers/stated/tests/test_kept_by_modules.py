"""Bytes that running a module again saves, for each position of a layer, beside hand calculations."""

from __future__ import annotations

import json

import pytest

from topoplan import Host
from topoplan_engine.keywords import experiment_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.setup import set_up_search
from topoplan_frontend_huggingface import HuggingFace
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

SAMPLES, POSITIONS = 2, 64
#: Channels of the models, of an MLP and of an expert; heads, heads of keys, and channels of one; experts of a token.
HIDDEN, WIDTH, EXPERT, HEADS, KEY_HEADS, HEAD, CHOSEN = 64, 160, 48, 4, 2, 16, 2
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "vocab_size": 96,
    "max_position_embeddings": POSITIONS,
}
GPT2 = {"model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "n_positions": POSITIONS, "vocab_size": 96}
EXPERTS = {"num_experts_per_tok": CHOSEN, "moe_intermediate_size": EXPERT}
QWEN = {**LLAMA, **EXPERTS, "model_type": "qwen3_moe", "num_experts": 4, "head_dim": HEAD}
LATENT = {"q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
DEEPSEEK = {**LLAMA, **EXPERTS, **LATENT, **GROUPS, "model_type": "deepseek_v3", "num_key_value_heads": HEADS}

#: In bf16: an RMS norm makes what products read, and a deviation in fp32; a layer norm a mean, too.
RMS, LAYER = 2 * HIDDEN + 4, 2 * HIDDEN + 8
#: Attention's sums in fp32, one for each head.
SUMS = 4 * HEADS
#: What is kept of a gated MLP: the gate, what it gates, and their product; of one with GELU what it reads and makes.
GATED, PLAIN = 3 * 2 * WIDTH, 2 * 2 * 4 * HIDDEN
ACTIVATED = 2 * CHOSEN * EXPERT


def experts(count: int) -> int:
    """Tokens as they are sent, gates in experts, scores, shares and a map of experts, and weights of the chosen."""
    return CHOSEN * 2 * HIDDEN + 3 * ACTIVATED + (4 + 4 + 1) * count + 4 * CHOSEN


#: Queries and keys of 24 channels a head and values of 12, and the norms of both latents.
UP = 2 * HEADS * (24 + 24 + 12) + (2 * 40 + 4) + (2 * 24 + 4)
SHARED = 3 * 2 * EXPERT
#: Inputs of a layer, of its sums, of both norms' products and of the last product of attention.
AROUND = 2 * 2 * HIDDEN + 2 * RMS + 2 * HEADS * HEAD + SUMS
DEEPSEEK_LAYER = 2 * 2 * HIDDEN + 2 * RMS + UP + SUMS + 2 * 40 + 2 * (24 + 8) + 2 * HEADS * 12 + experts(8) + SHARED


def kept(folder, keys, recompute: str, layers: int, predictions: int) -> tuple[float, float]:
    """Bytes of a device's peak for each position of the batch: if nothing runs again, and by ``recompute``."""
    name = "n_layer" if keys["model_type"] == "gpt2" else "num_hidden_layers"
    (folder / "config.json").write_text(json.dumps({**keys, name: layers}))
    model = HuggingFace(config=str(folder), sequence_length=POSITIONS, prediction_layers=predictions or None)
    options = {"servers": 1, "gpus_per_server": 1, "device": "h100", "precision": "bf16", "kernels": "megatron"}
    experiment = experiment_of(model, **options, batch_size=SAMPLES)
    problem = set_up_search(Host.discover(), experiment).problem
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    none, again = (
        float(lowering.memory(strategy_of(Settings(micro_batch=SAMPLES, recompute=way), problem.graph, 1)[0]).max())
        for way in ("none", recompute)
    )
    return none / (SAMPLES * POSITIONS), again / (SAMPLES * POSITIONS)


def saved(folder, keys, recompute: str, *, predictions: bool = False) -> float:
    """Bytes that a layer more has less if it runs again so: a numbered one, or one that predicts a further word."""
    few, many = (kept(folder, keys, recompute, 3 if predictions else n, n if predictions else 0) for n in (3, 4))
    return (many[0] - few[0]) - (many[1] - few[1])


@pytest.mark.parametrize(
    ("keys", "word", "expected"),
    [
        (LLAMA, "core_attn", SUMS),
        (LLAMA, "layernorm", 2 * RMS),
        (LLAMA, "mlp", GATED),
        (GPT2, "layernorm", 2 * LAYER),
        (GPT2, "mlp", PLAIN),
        (QWEN, "moe_act", ACTIVATED),
        (QWEN, "moe", experts(4)),
        (DEEPSEEK, "mla_up_proj", UP),
        (DEEPSEEK, "moe", experts(8) + SHARED),
        (DEEPSEEK, "shared_experts", SHARED),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_bytes_that_a_module_saves(tmp_path, keys, word, expected):
    """What comes out of a module is no input of a backward pass outside of it: a sum reads it alone."""
    assert saved(tmp_path, keys, f"modules:{word}") == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("keys", "way", "expected"),
    [
        (LLAMA, "modules:mlp", GATED),
        (DEEPSEEK, "modules:layernorm", 2 * RMS),
        (DEEPSEEK, "modules:moe", experts(8) + SHARED),
        (DEEPSEEK, "modules:moe_act", ACTIVATED),
        (LLAMA, "full", AROUND + 2 * (HEADS + 2 * KEY_HEADS) * HEAD + GATED + 2 * 2 * HIDDEN + 2 * 4),
        (DEEPSEEK, "full", DEEPSEEK_LAYER + 2 * 2 * HIDDEN + 2 * 4),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_a_layer_that_predicts_a_further_word_runs_again(tmp_path, keys, way, expected):
    """Its modules, and with ``full`` what puts its input together: pairs of channels, and deviations of two norms.

    Megatron-LM@d98e8a64, ``MultiTokenPredictionLayer``: a ``TransformerLayer`` inside, and
    ``_proj_and_transformer_layer`` as one region.
    """
    assert saved(tmp_path, keys, way, predictions=True) == pytest.approx(expected, abs=1e-3)

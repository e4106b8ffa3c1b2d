"""Families of decoders whose normalizations, positions or feed-forward parts are not Llama's."""

from __future__ import annotations

import json
import math

import pytest

from topoplan.errors import TopoplanError
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.configurations import SMALL_DECODER


@pytest.fixture
def build(tmp_path):
    """Return a function from keys to a graph."""

    def graph_of(keys, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(keys))
        return HuggingFace(config=str(path), **options).build(1)

    return graph_of


def parameters(graph):
    return sum(weight.elements for op in graph.operators for weight in op.weights)


@pytest.mark.parametrize(
    ("keys", "published"),
    [
        # by hand: words x channels x 2 + layers x (attention + 3 x channels x inside + 2 x channels) + channels
        (
            {"model_type": "internlm2", "vocab_size": 92544, "intermediate_size": 14336, "num_key_value_heads": 8},
            7737708544,
        ),
        ({"model_type": "exaone", "num_layers": 32, "intermediate_size": 14336, "num_key_value_heads": 8}, 7818448896),
        ({"model_type": "baichuan", "vocab_size": 125696, "intermediate_size": 11008}, 7505973248),
        (
            {
                "model_type": "minicpm",
                "vocab_size": 122753,
                "hidden_size": 2304,
                "intermediate_size": 5760,
                "num_hidden_layers": 40,
                "num_attention_heads": 36,
                "num_key_value_heads": 36,
            },
            2724880896,
        ),
    ],
)
def test_decoders_by_code_of_their_repositories_have_their_published_parameters(build, keys, published) -> None:
    assert parameters(build({**keys, "architectures": None}, sequence_length=8)) == published


def test_a_table_of_positions_bounds_them(build) -> None:
    keys = {**SMALL_DECODER, "model_type": "opt", "max_position_embeddings": 16}
    graph = build(keys)
    (table,) = [op for op in graph.operators if op.kind == "learned_positions"]
    assert (table.outputs[0].shape, table.weights[0].shape) == ((1, 16, 64), (18, 64))
    with pytest.raises(TopoplanError, match="sequence-length: 17 is more than the table of positions"):
        build(keys, sequence_length=17)


def test_normalizations_have_the_weights_of_their_families(build) -> None:
    def norms(**keys):
        graph = build({**SMALL_DECODER, **keys}, sequence_length=8)
        return {op.name: [w.shape for w in op.weights] for op in graph.operators if op.kind.endswith("_norm")}

    plain, scaled = norms(model_type="olmo"), norms(model_type="cohere", use_qk_norm=True)
    assert (plain["model.norm"], scaled["model.norm"]) == ([], [(64,)])
    assert scaled["model.layers.0.self_attn.q_layernorm"] == [(64,)]  # four heads of 16 channels, each its own
    assert scaled["model.layers.0.self_attn.k_layernorm"] == [(32,)]
    assert not any("post_attention" in name for name in scaled)  # both halves read the same


@pytest.mark.parametrize(
    ("keys", "windowed"),
    [
        (
            {"model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
            [1, 0, 1, 0, 1, 0, 1, 0],
        ),
        (
            {
                "model_type": "gpt_oss",
                "head_dim": 16,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "layer_types": ["full_attention"] * 8,
            },
            [0] * 8,
        ),
        ({"model_type": "gemma2", "head_dim": 16}, [1, 0, 1, 0, 1, 0, 1, 0]),
        ({"model_type": "gemma3_text", "head_dim": 16}, [1, 1, 1, 1, 1, 0, 1, 1]),
        ({"model_type": "cohere2"}, [1, 1, 1, 0, 1, 1, 1, 0]),
        ({"model_type": "phi3"}, [1] * 8),
        ({"model_type": "starcoder2"}, [1] * 8),
        ({"model_type": "mixtral", "num_local_experts": 4}, [1] * 8),
        (
            {"model_type": "qwen3", "head_dim": 16, "use_sliding_window": True, "max_window_layers": 3},
            [0, 0, 0, 1, 1, 1, 1, 1],
        ),
        ({"model_type": "olmo3"}, [1, 1, 1, 0, 1, 1, 1, 0]),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_layers_with_windows_have_fewer_flops_for_a_token(keys, windowed, build) -> None:
    """Attention has 4 FLOP for each channel of a pair: of 32 positions with a window of 8, 7.125 pairs for a token."""
    graph = build({**SMALL_DECODER, "num_hidden_layers": 8, "sliding_window": 8, **keys}, sequence_length=32)
    ops = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
    counts = [sum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work) for op in ops]
    assert [count / 32 for count in counts] == [4 * 64 * (7.125 if slides else 16.5) for slides in windowed]


@pytest.mark.parametrize(("limit", "clamps"), [(7.0, 2), (None, 0)])
def test_experts_of_gpt_oss_clamp_what_their_activation_reads(limit, clamps, build) -> None:
    """transformers, ``modeling_gpt_oss.py``: gate.clamp(max=limit), up.clamp(-limit, limit), in every layer."""
    keys = {"model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    graph = build({**SMALL_DECODER, "num_hidden_layers": 2, "swiglu_limit": limit, **keys}, sequence_length=32)
    assert [op.kind for op in graph.operators].count("clamp") == 2 * clamps


def test_a_width_that_is_null_is_four_times_the_channels(build) -> None:
    """EleutherAI's files of GPT-Neo: ``"intermediate_size": null``, 125,198,592 parameters with 768 channels."""
    keys = {"model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12, "num_heads": 12}
    graph = build({**keys, "intermediate_size": None, "attention_types": [[["global", "local"], 6]]})
    assert parameters(graph) == 125_198_592
    assert parameters(build({**keys, "intermediate_size": 3072})) == 125_198_592

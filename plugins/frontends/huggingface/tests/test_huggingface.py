"""Models of config.json: parameters and FLOPs that transformers counts, the structure of blocks, and messages.

``configurations.json`` has the counts; `transformers_counts.py` writes it.  PyTorch's counter has causal attention in
full, so FLOPs of scores and answers are compared with those of all pairs.  FLOPs a token are those that NVIDIA
publishes for its Megatron Bridge (causal attention counted by half), to 0.05 %.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.testing import parametrize_with_checks
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experts import expert_groups_of
from topoplan_engine.model_notes import model_notes
from topoplan_engine.precision import in_run_precision
from topoplan_engine.tied import tied_weights
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.classes import MODEL_TYPES, chosen
from topoplan_frontend_huggingface.relatives import DECODERS
from topoplan_operator_times.parts import gradients_of
from topoplan_operator_times.work import backward_factors
from topoplan_samples.configurations import SMALL_DECODER
from topoplan_samples.long_tail import at_night

#: Models of many layers or experts, of which smaller ones and the defaults of their families are built on each save.
LARGE = (
    "llama-2-70b",
    "llama-3-70b",
    "llama-3.1-405b",
    "mixtral-8x22b",
    "qwen2-57b-a14b",
    "qwen3-235b-a22b",
    "deepseek-v2",
    "deepseek-v3",
    "kimi-k2",
    "gpt2-xl",
    "gpt3-175b",
    "falcon-40b",
    "bloom-176b",
    "command-r-plus-104b",
    "glm-4.5-air",
    "exaone-4.0-32b",
    "granite-3.0-3b-a800m",
)
COUNTS = json.loads(Path(__file__).with_name("configurations.json").read_text())
EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "models"
#: Read by other code than that of transformers, with classes of a relative: no defaults of transformers.
REMOTE = {"kimi_k2", "Yi", "baichuan", "exaone", "internlm2", "minicpm"}
PRODUCTS = ("linear", "conv2d", "expert_linear", "scaled_dot_product_attention")
SMALL = {"model_type": "llama", **SMALL_DECODER}
LATENT = {
    "num_attention_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


@parametrize_with_checks(HuggingFace)
def test_conformance(check) -> None:
    check()


@pytest.fixture
def build(tmp_path):
    """Return a function from keys to a graph."""

    def graph_of(keys, batch=1, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(keys))
        return HuggingFace(config=str(path), **options).build(batch)

    return graph_of


def keys_of(row):
    """Return the keys of a file for a row of counts; transformers' DeepSeek-V2 has no default for one of them."""
    words = re.match("(.*?)(?:For|LMHead|Model)", row["class"]).group(1)
    given = {"num_experts_per_tok": 6} if words == "DeepseekV2" else {}
    return {
        **given,
        **row["keys"],
        "model_type": row.get("model_type") or chosen({"architectures": [row["class"]]}, "").family,
        "architectures": [row["class"]],
    }


def parameters(graph):
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def flops(op):
    """Count FLOPs of the products of an operator, without biases and activations."""
    terms = op.work[: 2 if op.kind == "scaled_dot_product_attention" else 1] if op.kind in PRODUCTS else ()
    return sum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in terms)


def flops_in_full(op):
    """Count as `flops`, with all pairs of positions in attention, as PyTorch's counter does."""
    if op.kind != "scaled_dot_product_attention":
        return flops(op)
    return sum(2 * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work)


def operators(graph, prefix):
    return {op.name.removeprefix(prefix): op for op in graph.operators if op.name.startswith(prefix)}


def readers(graph):
    """Return the names of the operators that each operator is read by."""
    names = [op.name for op in graph.operators]
    edges = {(names[u], names[v]) for u, _, v, _ in graph.edges.tolist()}
    return {name: sorted(v for u, v in edges if u == name) for name in names}


def test_the_table_has_every_family_with_its_defaults() -> None:
    defaults = [row for row in COUNTS["parameters"] if row["name"].startswith("defaults of")]
    assert {keys_of(row)["model_type"] for row in defaults} == {*MODEL_TYPES} - REMOTE
    assert {row["name"] for row in COUNTS["flops"] if "," not in row["name"]} == {*MODEL_TYPES} - REMOTE


@pytest.mark.by_day(14)
@pytest.mark.parametrize(
    "row",
    at_night(
        COUNTS["parameters"], *(row for row in COUNTS["parameters"] if row["name"].partition(",")[0] not in LARGE)
    ),
    ids=lambda row: row["name"],
)
def test_parameters_are_those_of_transformers(build, row) -> None:
    assert parameters(build(keys_of(row))) == row["parameters"]


@pytest.mark.parametrize("row", COUNTS["flops"], ids=lambda row: row["name"])
def test_flops_are_those_that_the_counter_of_pytorch_sees(build, row) -> None:
    graph = build(keys_of(row), 3, sequence_length=None if row["name"] == "vit" else 32)
    assert parameters(graph) == row["parameters"]
    assert sum(map(flops_in_full, graph.operators)) == row["flops"]


#: Model, positions, GFLOP a token that NVIDIA publishes (Megatron Bridge, performance summary, 25.11), and parameters
#: that were published beyond those of gradients: the biases that choose experts, which transformers keeps as buffers.
PUBLISHED = [
    ("llama-3-8b", 8192, 51.49, 0),
    ("llama-3-70b", 8192, 449.2, 0),
    ("llama-3.1-405b", 8192, 2524.3, 0),
    ("qwen3-30b-a3b", 4096, 23.01, 0),
    ("qwen3-235b-a22b", 4096, 147.98, 0),
    ("deepseek-v3", 4096, 249.7, 58 * 256),
    ("kimi-k2", 4096, 204.445, 60 * 384),
]


@pytest.mark.parametrize(
    ("name", "positions", "gflop", "biases"), at_night(PUBLISHED, *(row for row in PUBLISHED if row[0] not in LARGE))
)
def test_flops_a_token_are_those_that_nvidia_publishes(build, name, positions, gflop, biases) -> None:
    row = next(row for row in COUNTS["parameters"] if row["name"] == name)
    graph = build(keys_of(row), sequence_length=positions)
    total = sum(flops(op) for op in graph.operators if not op.name.endswith(".mlp.gate"))
    assert 3e-9 * total / positions == pytest.approx(gflop, rel=5e-4)
    if name == "deepseek-v3":
        assert parameters(graph) + biases == 671_026_419_200  # of the published checkpoint


def test_a_block_has_the_names_of_its_modules(build) -> None:
    graph = build(SMALL, 2, sequence_length=8)
    block = operators(graph, "model.layers.1.")
    assert list(block) == [
        *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_rotary"),
        *("self_attn.k_rotary", "self_attn.attention", "self_attn.o_proj", "add1", "post_attention_layernorm"),
        *("mlp.gate_proj", "mlp.act_fn", "mlp.up_proj", "mlp.multiply", "mlp.down_proj", "add2"),
    ]
    shapes = {name: op.outputs[0].shape for name, op in block.items()}
    assert shapes["self_attn.q_proj"] == shapes["self_attn.attention"] == (2, 8, 64)
    assert shapes["self_attn.k_rotary"] == (2, 8, 32)
    assert {dim.name: dim.size for dim in block["self_attn.attention"].dims} == dict(
        zip("nqhgtde", (2, 8, 2, 2, 8, 16, 16), strict=True)
    )
    edges = readers(graph)
    assert edges["model.layers.0.add2"] == ["model.layers.1.add1", "model.layers.1.input_layernorm"]
    assert edges["model.norm"] == ["lm_head"]
    assert edges["lm_head"] == ["loss"]


def test_heads_can_be_cut_from_the_projection_to_the_answer(build) -> None:
    block = operators(
        build({**SMALL, "model_type": "qwen3", "head_dim": 16}, 2, sequence_length=8), "model.layers.0.self_attn."
    )
    for name, heads in (("q_norm", 4), ("q_rotary", 4), ("k_norm", 2), ("k_rotary", 2), ("attention", 2)):
        dim, axis = block[name].dims[2], block[name].outputs[0].axes[2]
        assert (dim.size, str(dim.role), axis.dim) == (heads, "attribute", 2)
        assert axis.scale * heads == axis.extent * heads == axis.size
    assert block["q_norm"].weights[0].shape == (16,)


def test_latent_attention_makes_keys_and_values_of_every_head(build) -> None:
    graph = build({**SMALL, **LATENT, "model_type": "deepseek_v3"}, 2, sequence_length=8)
    block = operators(graph, "model.layers.0.self_attn.")
    assert [tensor.shape for tensor in block["kv_split"].outputs] == [(2, 8, 24), (2, 8, 8)]
    assert [tensor.shape for tensor in block["keys_and_values"].outputs] == [(2, 8, 4 * 24), (2, 8, 4 * 12)]
    assert block["attention"].outputs[0].shape == (2, 8, 4 * 12)
    assert readers(graph)["model.layers.0.self_attn.kv_split"] == [
        *("model.layers.0.self_attn.keys_and_values", "model.layers.0.self_attn.kv_a_layernorm"),
    ]


def test_experts_get_their_share_of_the_tokens(build) -> None:
    graph = build({**SMALL, **LATENT, "model_type": "deepseek_v3"}, 2, sequence_length=30)
    dense, sparse = operators(graph, "model.layers.0.mlp."), operators(graph, "model.layers.1.mlp.")
    assert list(dense) == ["gate_proj", "act_fn", "up_proj", "multiply", "down_proj"]
    assert list(sparse) == [
        *("gate", "router", "dispatch", "experts.gate_proj", "experts.up_proj", "experts.act_fn", "experts.multiply"),
        *("experts.down_proj", "combine", "shared_experts.gate_proj", "shared_experts.act_fn"),
        *("shared_experts.up_proj", "shared_experts.multiply", "shared_experts.down_proj", "add"),
    ]
    assert sparse["dispatch"].outputs[0].shape == (2, 8, 8, 64)  # 8 slots for 7.5 tokens
    assert flops(sparse["experts.down_proj"]) == 2 * 2 * 30 * 2 * 48 * 64  # samples, positions, chosen
    experts = sparse["experts.up_proj"]
    assert {dim.name: str(dim.role) for dim in experts.dims}["e"] == "parameter"


def test_a_tied_head_reads_the_table_of_words(build) -> None:
    free, tied = (build({**SMALL, "tie_word_embeddings": tie}, sequence_length=8) for tie in (False, True))
    assert parameters(free) - parameters(tied) == 96 * 64
    assert sum(map(flops, free.operators)) == sum(map(flops, tied.operators))


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_tied_head_computes_as_much_backwards_as_one_of_its_own(build, family) -> None:
    document = {"model_type": family, "vocab_size": 96, "num_hidden_layers": 1, "n_layer": 1}
    free, tied = (build({**document, "tie_word_embeddings": tie}, sequence_length=8) for tie in (False, True))

    def work(graph) -> list[tuple[str, int, int]]:
        factors = [
            backward_factors(op, sum(needed)) for op, needed in zip(graph.operators, gradients_of(graph), strict=True)
        ]
        return [(op.name, each.flops, each.kernels) for op, each in zip(graph.operators, factors, strict=True)]

    assert work(free) == work(tied)


@pytest.mark.parametrize("names", [("num_local_experts",), ("num_experts",), ("num_local_experts", "num_experts")])
def test_experts_are_counted_under_either_name(build, names) -> None:
    for family in ("mixtral", "qwen3_moe"):
        graph = build(
            {**SMALL, "model_type": family, **dict.fromkeys(names, 16), "num_experts_per_tok": 2}, sequence_length=8
        )
        assert operators(graph, "model.layers.0.mlp.")["gate"].outputs[0].shape == (1, 8, 16)


def test_a_class_decides_over_the_model_type(build) -> None:
    """As in Qwen3-235B-A22B-FP8 quantized by others: the class is Qwen3's, the type Qwen2's."""
    row = next(row for row in COUNTS["parameters"] if row["name"] == "qwen3-235b-a22b")
    keys = {**keys_of(row), "model_type": "qwen2_moe", "shared_expert_intermediate_size": 0, "qkv_bias": False}
    with pytest.warns(TopoplanWarning, match="model_type: 'qwen2_moe' contradicts architectures 'Qwen3MoeForCausalLM'"):
        graph = build(keys)
    assert parameters(graph) == 235_093_634_560  # of the published model


def test_own_code_of_a_known_class_decides_where_the_type_is_unknown(build) -> None:
    """As in Kimi K2's file, and in Qwen2.5-Math-RM-72B's, whose class is in ``auto_map`` alone."""
    row = next(row for row in COUNTS["parameters"] if row["name"] == "kimi-k2")
    assert parameters(build({**keys_of(row), "model_type": "kimi_k2"})) == row["parameters"] == 1_026_408_209_408
    automatic = {"AutoConfig": "c.DeepseekV3Config", "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
    keys = {**keys_of(row), "model_type": "new_k3", "auto_map": automatic}
    assert parameters(build(keys)) == row["parameters"]
    small = {**SMALL, "model_type": "qwen2"}
    bare = parameters(build({**small, "architectures": ["Qwen2Model"]}))
    automatic = {"AutoModel": "modeling_qwen2_rm.Qwen2ForRewardModel"}
    assert parameters(build({**small, "auto_map": automatic})) - bare == 64 * 64 + 64 + 64 + 1
    process = {**small, "architectures": ["Qwen2ForProcessRewardModel"]}
    assert parameters(build(process)) - bare == 64 * 64 + 64 + 2 * (64 + 1)


def test_windows_bound_the_pairs_of_positions_that_attend(build) -> None:
    def pairs(keys) -> list[float]:
        graph = build({**SMALL, **keys}, sequence_length=32)
        ops = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
        return [flops(op) / (2 * 2 * 64) for op in ops]  # two products, of all heads' channels

    causal, window = 32 * 33 // 2, 8 * 9 // 2 + 24 * 8
    assert pairs({}) == [causal, causal]
    assert pairs({"is_causal": False}) == [32 * 32, 32 * 32]
    assert pairs({"model_type": "mistral", "sliding_window": 8}) == [window, window]
    assert pairs({"model_type": "mistral", "sliding_window": None}) == [causal, causal]
    qwen = {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}
    assert pairs({**qwen, "use_sliding_window": True}) == [causal, window]
    assert pairs(qwen) == [causal, causal]
    assert pairs({"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 8, "head_dim": 16}) == [
        window,
        window,
    ]
    types = ["sliding_attention", "full_attention"]
    assert pairs({"model_type": "ministral", "sliding_window": 8, "layer_types": types}) == [window, causal]


def test_options_shorten_a_model(build) -> None:
    graph = build({**SMALL, "num_hidden_layers": 7}, 3, sequence_length=5, layers=1)
    assert not operators(graph, "model.layers.1.")
    assert graph.operators[0].outputs[0].shape == (3, 5, 64)
    assert build(SMALL).operators[0].outputs[0].shape[1] == 2048  # all that Llama's default has
    assert build({**SMALL, "max_position_embeddings": 131072}).operators[0].outputs[0].shape[1] == 4096


def test_a_folder_stands_for_its_file(build, tmp_path) -> None:
    graph = build(SMALL)
    assert HuggingFace(config=str(tmp_path)).build(1) == graph


def test_files_of_transformers_4_and_5_are_one_model(build) -> None:
    rope = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "bfloat16"}
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "dtype": "bfloat16", "head_dim": 16}
    graphs = [build({**SMALL, **keys}) for keys in (rope, new, {"head_dim": None})]
    assert graphs[0].operators == graphs[1].operators == graphs[2].operators


def test_the_type_of_a_file_is_the_precision_of_training(build) -> None:
    stated = build({**SMALL, "torch_dtype": "bfloat16"})
    assert stated.precision == "fp32"  # the precision of a run is what halves tensors
    assert in_run_precision(stated, None).precision == "bf16"
    assert model_notes(in_run_precision(stated, None))["precision"].startswith("bf16 (torch_dtype of /")
    assert in_run_precision(stated, "fp32").precision == "fp32"
    assert model_notes(in_run_precision(stated, "fp32"))["precision"].startswith("fp32 (--precision; not bf16 (torch_d")
    assert model_notes(in_run_precision(stated, "bf16")) == model_notes(in_run_precision(stated, None)), "they agree"
    assert in_run_precision(stated, "fp8").precision == "bf16"
    assert in_run_precision(build(SMALL), None).precision == "fp32"
    assert model_notes(in_run_precision(build(SMALL), None))["precision"].startswith("fp32 (no torch_dtype in /")
    assert in_run_precision(build({**SMALL, "dtype": "float16"}), None).precision == "fp16"


def test_files_of_weights_in_fp8_are_of_models_that_are_trained(build) -> None:
    quantized = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}  # as in DeepSeek-V3's file
    assert model_notes(build({**SMALL, "quantization_config": quantized}))["quantization"].startswith("weights of the")


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_more_positions_than_a_model_was_made_for_are_said(family, build) -> None:
    keys = {**SMALL_DECODER, "model_type": family, "head_dim": 16, "max_position_embeddings": 64}
    said = model_notes(build(keys, sequence_length=128))["positions"]
    assert said == "128 (-o sequence-length), more than max_position_embeddings 64"
    assert "positions" not in model_notes(build(keys, sequence_length=64))


def test_keys_that_a_file_lacks_are_said_with_what_was_taken(build) -> None:
    assert model_notes(build(SMALL))["keys not in the file"] == (
        "max_position_embeddings 2048, hidden_act silu (defaults of llama)"
    )
    keys = {name: value for name, value in SMALL.items() if name not in ("vocab_size", "num_key_value_heads")}
    text = model_notes(build({**keys, "hidden_act": "silu", "max_position_embeddings": 64}))["keys not in the file"]
    assert text == "vocab_size 32000, num_key_value_heads as num_attention_heads (defaults of llama)"
    text = model_notes(build({**SMALL, "model_type": "gemma2"}))["keys not in the file"]
    assert "final_logit_softcapping 30.0" in text
    assert "tie_word_embeddings True" in text


def test_a_layer_that_predicts_the_word_after_the_next_shares_words_and_head(build) -> None:
    """DeepSeek-V3, section 2.2: two normalizations, a projection of both, a layer; words and head are the model's."""
    keys = {**SMALL, **LATENT, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}
    without, graph = build(keys, sequence_length=8), build(keys, sequence_length=8, prediction_layers=1)
    assert model_notes(without)["left out"].startswith("num_nextn_predict_layers 1 (-o prediction-layers=1 ")
    assert "left out" not in model_notes(graph)
    layer = sum(weight.elements for op in operators(graph, "model.layers.1.").values() for weight in op.weights)
    assert parameters(graph) - parameters(without) == layer + 2 * 64 * 64 + 3 * 64
    assert [(graph.operators[tied.owner].name, len(tied.users)) for tied in tied_weights(graph)] == [
        ("model.embed_tokens", 1),
        ("lm_head", 1),
    ]
    assert readers(graph)["model.layers.1.add2"] == ["model.norm", "mtp.hnorm"]
    with pytest.raises(TopoplanError, match=r"prediction-layers: LlamaModel of .* has no head over words"):
        build({**SMALL, "architectures": ["LlamaModel"]}, prediction_layers=1)
    with pytest.raises(TopoplanError, match=r"prediction-layers: gpt2 of .* has none"):
        build({"model_type": "gpt2"}, prediction_layers=1)


def test_experts_of_a_token_are_in_some_groups(build) -> None:
    keys = {**SMALL, **LATENT, "model_type": "deepseek_v3"}
    assert expert_groups_of(build(keys)) == (8, 4), "defaults of transformers"
    graph = build({**keys, "n_group": 4, "topk_group": 2})
    assert expert_groups_of(graph) == (4, 2)
    assert model_notes(graph)["expert groups"].startswith("experts of a token are in 2 of 4 groups")
    for same in ({"n_group": 1, "topk_group": 1}, {"n_group": 4, "topk_group": 4}):
        assert expert_groups_of(build({**keys, **same})) == (1, 1)
    assert expert_groups_of(build({**keys, "model_type": "deepseek_v2"})) == (1, 1)
    with pytest.raises(TopoplanError, match=r"n_group: 3 does not divide the 8 experts"):
        build({**keys, "n_group": 3})
    with pytest.raises(TopoplanError, match=r"topk_group: 1 of 8 groups \(must be 2 to 8\)"):
        build({**keys, "topk_group": 1})


#: Changes of the small file -> what the message says after the name of the file.
WRONG = [
    ({"model_type": "lama"}, r"model_type: 'lama' is not read; did you mean 'llama'\?"),
    ({"model_type": "whisper"}, r"model_type: 'whisper' is not read \(have: Yi, arcee, .*vit\)"),
    ({"model_type": "gemma4"}, r"model_type: 'gemma4' is not read \(have: Yi, arcee, .*vit\)"),
    ({"model_type": "mllama"}, r"model_type: 'mllama' is not read \(have: Yi, arcee, .*vit\)"),
    (
        {"model_type": "opt", "word_embed_proj_dim": 32},
        r"word_embed_proj_dim: 32 is not read \(expected hidden_size 64, as in all but 350M\)",
    ),
    ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before: false is not read"),
    ({"model_type": "dots1"}, "n_routed_experts is missing"),
    ({"model_type": "olmo", "attention_bias": False, "num_experts": 8}, "num_experts: 8 contradicts OlmoForCausalLM"),
    ({"hidden_act": "relu6"}, r"hidden_act: 'relu6' is not known \(have: gelu, "),
    ({"model_type": 3}, r"model_type: 3 is of a wrong type \(expected a text\)"),
    ({"hidden_size": "64"}, r"hidden_size: '64' is of a wrong type \(expected a whole number\)"),
    ({"hidden_size": None}, r"hidden_size: is null \(expected a whole number\)"),
    ({"hidden_size": True}, r"hidden_size: True is of a wrong type"),
    ({"hidden_size": 0}, r"hidden_size: 0 is too small \(at least 1\)"),
    ({"hidden_size": 10**30}, r"hidden_size: 10+ is too large \(at most 1000000000\)"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads 4"),
    ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads: 5 does not divide hidden_size 64"),
    ({"head_dim": 15}, "head_dim: 15 channels of a head are odd"),
    ({"hidden_act": "sillu"}, r"hidden_act: 'sillu' is not known; did you mean 'silu'\?"),
    ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings: 'yes' is of a wrong type \(expected true or false\)"),
    ({"model_type": "deepseek_v2"}, r"num_experts_per_tok is missing \(experts of a token, such as 6\)"),
    ({"model_type": "mixtral", "num_experts_per_tok": 9}, r"num_experts_per_tok: 9 of 8 experts \(at most all\)"),
    ({"model_type": "qwen2_moe", "mlp_only_layers": [0.5]}, r"mlp_only_layers: \[0.5\] is of a wrong type"),
    ({"model_type": "gpt2", "n_head": 5}, "num_attention_heads"),
    ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention: true is not read"),
    ({"model_type": "bert", "is_decoder": True}, "is_decoder: true is not read"),
    ({"model_type": "bert", "architectures": ["BertForNothing"]}, "architectures: 'BertForNothing' is not read"),
    (
        {"architectures": ["LlamaForCausalLMEagle3"]},
        r"architectures: 'LlamaForCausalLMEagle3' is not read \(one of LlamaForCausalLM, LlamaModel, LlamaForSeq",
    ),
    ({"auto_map": {"AutoModelForCausalLM": "modeling.FooForCausalLM"}}, "auto_map: AutoModelForCausalLM: 'FooFor"),
    (
        {"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "modeling_mine.MyModel"}},
        "auto_map: AutoModel is 'MyModel', but architectures says 'LlamaForCausalLM'",
    ),
    ({"auto_map": ["x"]}, r"auto_map: \['x'\] is of a wrong type \(expected an object of classes\)"),
    ({"auto_map": {"AutoModel": 3}}, r"auto_map: AutoModel: 3 is of a wrong type \(expected a text\)"),
    (
        {"model_type": "lama", "architectures": ["LlamaForCausalLM"]},
        "model_type: 'lama' is not read, though architectures says LlamaForCausalLM",
    ),
    ({"num_local_experts": 8}, "num_local_experts: 8 contradicts LlamaForCausalLM, which has no experts"),
    ({"vision_config": {"depth": 2}}, r"vision_config: .* contradicts LlamaForCausalLM, which has words alone"),
    ({"mm_vision_tower": "clip"}, "mm_vision_tower: 'clip' contradicts LlamaForCausalLM, which has words alone"),
    (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}},
        r"architectures: 'Gemma3ForConditionalGeneration' is not read \(give its text_config as a file of its own\)",
    ),
    ({"kv_lora_rank": 512}, "kv_lora_rank: 512 contradicts LlamaForCausalLM, which has no latent attention"),
    ({"use_qk_norm": True}, "use_qk_norm: True contradicts LlamaForCausalLM, which has no normalized queries"),
    ({"model_type": "mistral", "mlp_bias": True}, "mlp_bias: True contradicts MistralForCausalLM, which has no such"),
    (
        {"model_type": "qwen3_moe", "shared_expert_intermediate_size": 9},
        "shared_expert_intermediate_size: 9 contradicts Qwen3MoeForCausalLM, which has no shared expert",
    ),
    ({"model_type": "ministral", "layer_types": ["full"]}, "layer_types: 'full' is not read"),
    (
        {"model_type": "ministral", "layer_types": ["full_attention"]},
        "layer_types: 1 for num_hidden_layers 2",
    ),
    (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        "quantization_config: weights quantized by 'awq' are",
    ),
    ({"quantization_config": {"bits": 4}}, "quantization_config: weights quantized by 'unknown' are not trained"),
    ({"quantization_config": 4}, "quantization_config: 4 is of a wrong type"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder: true is not read"),
    (
        {"is_encoder_decoder": True, "architectures": ["LlamaForCausalLM"]},
        "is_encoder_decoder: true contradicts model_type 'llama'",
    ),
    ({"torch_dtype": "float8_e4m3fn"}, r"torch_dtype: 'float8_e4m3fn' is not a type to train in \(one of float32, bf"),
    ({"num_nextn_predict_layers": "one"}, "num_nextn_predict_layers: 'one' is of a wrong type"),
    ({"model_type": "vit", "patch_size": 300}, "patch_size: 300 is larger than image_size 224"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_is_wrong_is_named(build, tmp_path, change, message) -> None:
    if "n_head" in change:
        change, message = {**change, "n_embd": 64}, "n_head: 5 does not divide n_embd 64"
    with pytest.raises(TopoplanError, match=f"^{re.escape(str(tmp_path / 'config.json'))}: {message}"):
        build({**SMALL, **change})


def test_files_that_are_none_are_named(tmp_path, build) -> None:
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "expected an object of keys"),
        ("{}", "model_type is missing"),
        ("[" * 9999, "is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(TopoplanError, match=f"^{re.escape(str(path))}: {message}"):
            HuggingFace(config=str(path)).build(1)
    for options, message in (
        ({}, "config is missing"),
        ({"config": str(tmp_path / "none")}, "none: cannot be read"),
    ):
        with pytest.raises(TopoplanError, match=message):
            HuggingFace(**options).build(1)
    for options, message in (
        ({"layers": 3}, "layers: 3 of the 2 of"),
        ({"sequence_length": 2000}, "sequence-length: 2000 is more than n_positions of .* \\(1024\\)"),
    ):
        with pytest.raises(TopoplanError, match=message):
            build({"model_type": "gpt2", "n_layer": 2}, **options)
    with pytest.raises(TopoplanError, match="sequence-length: a vit has as many positions as patches"):
        build({"model_type": "vit"}, sequence_length=4)


@pytest.mark.parametrize("searcher", ["mcmc", "spmd", "pipeline"])
@pytest.mark.parametrize("family", at_night(["llama", "deepseek_v3"], "llama"))
def test_every_planner_plans_a_small_model(tmp_path, family, searcher) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, **(LATENT if family in ("deepseek_v3",) else {}), "model_type": family}))
    model = HuggingFace(config=str(path), sequence_length=16)
    run = RunOptions(batch_size=8, budget=5)
    plan = optimize(Experiment(model=model, cluster=ClusterOptions(servers=4), searchers=searcher, run=run)).plan
    assert 0 < plan.timeline.makespan < math.inf
    assert np.isfinite(plan.timeline.finish).all()


@pytest.mark.parametrize(
    "family",
    at_night([family for family in MODEL_TYPES if family != "vit"], "gpt_oss", "gemma2", "deepseek_v3"),
)
def test_kernels_price_every_family(tmp_path, family) -> None:
    path = tmp_path / "config.json"
    chosen = {
        "deepseek_v2": {"num_experts_per_tok": 2},
        "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
        "glm4_moe": {"n_routed_experts": 8, "num_experts_per_tok": 2},
        "deepseek_v3": LATENT,
    }
    small = {**SMALL_DECODER, "n_embd": 64, "n_head": 4, "d_model": 64, "n_heads": 4, "n_layer": 2}
    keys = {**small, **chosen.get(family, {})}
    path.write_text(json.dumps({**keys, "model_type": family, "torch_dtype": "bfloat16"}))
    model = HuggingFace(config=str(path), sequence_length=16, layers=1)
    if family == "deepseek_v3":
        model = attrs.evolve(model, layers=2, prediction_layers=1)
    cluster = ClusterOptions(servers=1, machine="dgx-h100")
    plan = optimize(Experiment(model=model, cluster=cluster, run=RunOptions(batch_size=8, budget=0))).plan
    assert plan.provenance["assumptions"]["kernels"]
    assert 0 < plan.timeline.makespan < math.inf


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "mixtral-8x7b"])
def test_the_examples_are_published_models(name) -> None:
    (published,) = (model["parameters"] for model in COUNTS["parameters"] if model["name"] == name)
    assert parameters(HuggingFace(config=str(EXAMPLES / f"{name}.json")).build(1)) == published


VALUES = st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text(max_size=3) | st.just([1])
KEYS = st.dictionaries(
    st.sampled_from(sorted({*SMALL, *LATENT, "n_embd", "n_head", "image_size"} - {"model_type"})), VALUES
)


@given(family=st.sampled_from(MODEL_TYPES), keys=KEYS)
@settings(deadline=None, max_examples=30)
def test_any_keys_are_a_model_or_one_line(tmp_path_factory, family, keys) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({**keys, "model_type": family}))
    told = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopoplanWarning)
            assert HuggingFace(config=str(path), layers=1).build(1).operators
    except TopoplanError as error:
        told = str(error)
    assert not told or re.fullmatch(r"(frontend huggingface|.*any.json): .+", told), told


def test_every_decoder_has_a_test_of_its_defaults() -> None:
    assert {*DECODERS} | {"gpt2", "bert", "vit"} == {*MODEL_TYPES}

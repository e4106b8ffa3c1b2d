"""LoRA and frozen modules: trained parameters by hand, states of devices, and messages."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Placement, TaskKind, TopoplanError
from topoplan.model.strategy import PlacedStrategy
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.reporting.model import parameter_count, trained_parameter_count
from topoplan_engine.throughput import flops_per_token
from topoplan_engine.training import gradient_flow
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

#: Llama 3 8B: layers, channels, channels of keys and values, of the feed-forward part, words.
LAYERS, HIDDEN, KEYS, INNER, WORDS = 32, 4096, 1024, 14336, 128256


def adapters(rank: int, *shapes: tuple[int, int]) -> int:
    """Return parameters of a layer's adapters: rank x (in + out) for each matrix."""
    return sum(rank * (inputs + outputs) for inputs, outputs in shapes)


def llama(**options) -> HuggingFace:
    return HuggingFace(preset="llama3-8b", sequence_length=256, **options)


def test_adapters_of_attention_have_rank_times_in_and_out():
    """q, k, v and o of Llama 3 8B at rank 16: 13,631,488, as peft counts them too."""
    graph = llama(lora_rank=16, lora_modules="q_proj,k_proj,v_proj,o_proj").build(1)
    a_layer = adapters(16, (HIDDEN, HIDDEN), (HIDDEN, KEYS), (HIDDEN, KEYS), (HIDDEN, HIDDEN))
    assert trained_parameter_count(graph) == LAYERS * a_layer == 13_631_488
    assert parameter_count(graph) == 8_030_261_248 + LAYERS * a_layer


@pytest.mark.parametrize(
    ("options", "a_layer"),
    [
        ({"lora_rank": 8}, adapters(8, (HIDDEN, HIDDEN), (HIDDEN, KEYS))),
        ({"lora_rank": 4, "lora_modules": "mlp.*"}, adapters(4, *[(HIDDEN, INNER)] * 3)),
        ({"lora_rank": 64, "lora_modules": "layers.*.self_attn.o_proj"}, adapters(64, (HIDDEN, HIDDEN))),
    ],
)
def test_patterns_choose_matrices(options, a_layer):
    assert trained_parameter_count(llama(layers=3, **options).build(1)) == 3 * a_layer


def test_an_adapter_of_a_joint_matrix_has_one_first_matrix(tmp_path):
    """gpt2's ``c_attn`` has width x 3 width: three parts share A."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2}')
    graph = HuggingFace(config=str(file), lora_rank=8, lora_modules="c_attn").build(1)
    assert trained_parameter_count(graph) == 2 * 8 * (64 + 3 * 64)


def test_frozen_modules_train_nothing():
    table = WORDS * HIDDEN
    norms_and_matrices = 2 * HIDDEN + 2 * HIDDEN * (HIDDEN + KEYS) + 3 * HIDDEN * INNER
    whole, frozen = llama(layers=3).build(1), llama(layers=3, frozen="embed_tokens,layers.0").build(1)
    assert trained_parameter_count(whole) == 3 * norms_and_matrices + 2 * table + HIDDEN
    assert trained_parameter_count(frozen) == 2 * norms_and_matrices + table + HIDDEN
    assert parameter_count(frozen) == parameter_count(whole)


def test_what_is_frozen_costs_no_product_of_gradients():
    """A head that is frozen multiplies twice, not three times; below the first trained module nothing goes back."""
    whole = flops_per_token(llama(layers=3).build(1))
    head = flops_per_token(llama(layers=3, frozen="lm_head").build(1))
    assert whole - head == 2 * WORDS * HIDDEN
    graph = llama(layers=3, frozen="embed_tokens,layers.0,layers.1").build(1)
    backward = dict(zip((op.name for op in graph.operators), gradient_flow(graph).backward, strict=True))
    assert not any(has for name, has in backward.items() if ".layers.0." in name or ".layers.1." in name)
    assert backward["model.layers.2.self_attn.q_proj"]


def test_a_tied_head_is_frozen_with_its_table(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 1000}')
    graph = HuggingFace(config=str(file), frozen="wte").build(1)
    (head,) = (op for op in graph.operators if op.tags.get("shared"))
    assert [tensor.requires_grad for tensor in head.inputs] == [True, False]


def test_memory_falls_by_gradients_and_states():
    """What is not trained has its weights in memory, and neither gradients nor Adam's two moments."""
    plain, tuned = (llama(layers=2, **options).build(2) for options in ({}, {"lora_rank": 16}))
    uses = []
    for graph in (plain, tuned):
        cluster = build_cluster(ClusterOptions(devices=(2,)))
        costs = Roofline().build(graph, cluster)
        whole = tuple(Placement((1,) * len(op.dims), np.array([0])) for op in graph.operators)
        uses.append(Lowering(graph, cluster, costs).memory_use(PlacedStrategy(whole)))
    for graph, use in zip((plain, tuned), uses, strict=True):
        assert use.gradients[0] == 4 * trained_parameter_count(graph)
        assert use.weights[0] == 4 * parameter_count(graph)
        assert use.optimizer[0] == 8 * trained_parameter_count(graph)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_rank": 16},
        {"lora_rank": 8, "lora_modules": "mlp.*"},
        {"frozen": "mlp.gate_proj"},
        {"frozen": "embed_tokens,layers.0"},
        {"frozen": "input_layernorm,lm_head"},
    ],
)
@pytest.mark.parametrize(("degrees", "least"), [({}, 1.0), ({"zero": 1}, 0.5), ({"tp": 2}, 0.5)])
def test_what_is_frozen_is_not_updated(options, degrees, least):
    """A step reads and writes weights and Adam's two moments, and reads gradients: 28 bytes a trained parameter."""
    graph, cluster = llama(layers=2, **options).build(2), build_cluster(ClusterOptions(servers=1, gpus_per_server=2))
    strategy, _ = strategy_of(Settings(**degrees), graph, 2)
    prices = Roofline(optimizer_step=True, memory_gb_per_s=1000.0, memory_efficiency=1.0, kernel_overhead_us=0.0)
    tasks = StagedLowering(graph, cluster, prices.build(graph, cluster)).lower(strategy)
    updated = 1e12 * tasks.seconds[(tasks.kind == TaskKind.UPDATE) & (tasks.device == 0)].sum()
    most = 1.0 if "tp" in degrees else least  # norms and first matrices of adapters are on all tensor parallel devices
    nbytes = 28 * trained_parameter_count(graph)
    assert 0.999 * least * nbytes <= updated <= 1.001 * most * nbytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_modules": "q_proj"}, "lora-modules: without lora-rank"),
        ({"lora_rank": 8, "lora_modules": "q_prj"}, "has no matrix 'q_prj'; did you mean 'q_proj'"),
        ({"lora_rank": 8, "lora_modules": "embed_tokens"}, "has no matrix 'embed_tokens'"),
        ({"lora_rank": 8, "lora_modules": "layers.99"}, "has no matrix 'layers.99'"),
        ({"frozen": "embedtokens"}, "has no module with weights 'embedtokens'; did you mean 'embed_tokens'"),
        ({"frozen": "model,lm_head"}, "leaves nothing"),
    ],
)
def test_modules_that_there_are_not_are_refused(options, message):
    with pytest.raises(TopoplanError, match=message):
        llama(layers=1, **options).build(1)

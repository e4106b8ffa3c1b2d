"""Memory of stated plans with the kernels of trainers, beside hand calculations."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Pass, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering.stage_buffers import accumulated_gradients, gather_pool, handed_on, pipeline_buffers
from topoplan_engine.lowering.stage_memory import placeholder_bytes, staged_peak
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.precision import in_precision
from topoplan_engine.recomputation import regions_of, words_of_regions
from topoplan_engine.trainer_kernels import KERNELS, check_precision, kernels_of, with_kernels
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_operator_times.saved import saved_tensors
from topoplan_samples.stated import GPT2, LLAMA, MIXTRAL
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of

LAYERS, HIDDEN, WIDTH, WORDS, TOKENS, HEADS, KV = 4, 64, 128, 256, 32, 8, 4
KEY_WIDTH = KV * HIDDEN // HEADS


def built(tmp_path, keys, kernels, batch=8, precision="bf16"):
    """A model with the kernels of a trainer."""
    (tmp_path / "config.json").write_text(json.dumps(keys))
    return with_kernels(in_precision(HuggingFace(config=str(tmp_path)).build(batch), precision), kernels)


def lowered(graph, devices, **plan):
    """The lowering of a stated plan, and its strategy."""
    cluster = build_cluster(ClusterOptions(servers=1, gpus_per_server=devices, device="h100"))
    strategy, _ = strategy_of(Stated(**plan), graph, devices)
    return StagedLowering(graph, cluster, Roofline().build(graph, cluster)), strategy


def kept_by_layer(graph):
    """Bytes that the operators of a layer keep, on one device with the whole batch, by the part of the layer's name."""
    kept = {}
    for op, tensors in zip(graph.operators, saved_tensors(graph), strict=True):
        name = op.name.removeprefix("model.layers.1.").removeprefix("transformer.h.1.")
        if tensors and name != op.name:
            kept[name] = sum(tensor.nbytes for tensor in tensors)
    return kept


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_llama_as_megatron_runs_it(tmp_path, tp):
    """Weights, gradients in fp32 and a share of Adam's state; what layers keep in one micro-batch; where the head's
    backward pass runs, gradients of scores in place of these, the input gathered again, and a matrix's placeholder."""
    graph = built(tmp_path, LLAMA | {"vocab_size": WORDS}, "megatron")
    lowering, strategy = lowered(graph, 4, tp=tp, zero=1, grads="fp32")
    matrices = HIDDEN * (HIDDEN + 2 * KEY_WIDTH) + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH
    parameters = LAYERS * (matrices / tp + 2 * HIDDEN) + HIDDEN + 2 * WORDS * HIDDEN / tp
    states = parameters * (2 + 4 + 12 / (4 // tp))
    per_layer = TOKENS / tp * (2 * (6 * HIDDEN + 2 * KEY_WIDTH + 3 * WIDTH) + 4 * HEADS + 2 * 4)
    ends = TOKENS / tp * (2 * HIDDEN + 4 + 2 * HIDDEN)
    scores = 2 * TOKENS * WORDS / tp
    in_backward = 2 * WORDS * HIDDEN / tp + 2 * TOKENS * HIDDEN * (1 if tp == 1 else 2)
    expected = states + 2 * matrices / tp + LAYERS * per_layer + ends + scores + in_backward
    assert lowering.memory(strategy).tolist() == pytest.approx([expected] * 4, rel=1e-12)
    use = lowering.memory_use(strategy)
    assert use.gradients[0] == pytest.approx(parameters * 4 + 2 * matrices / tp, abs=1)


def test_activations_of_gates_are_not_kept(tmp_path):
    plain, fused = (kept_by_layer(built(tmp_path, LLAMA, name)) for name in ("", "megatron"))
    activation = 2 * 8 * TOKENS * WIDTH
    assert plain.pop("mlp.act_fn") == activation
    assert fused == plain
    assert fused["mlp.gate_proj"] == fused["mlp.up_proj"] == fused["mlp.multiply"] == activation


def test_experts_keep_their_inputs_and_no_answers(tmp_path):
    """Two of four experts for each token; the router keeps nine bytes for each, and the numbers of the chosen."""
    graph = built(tmp_path, MIXTRAL, "megatron")
    kept, tokens = kept_by_layer(graph), 8 * TOKENS
    mixture = {name.removeprefix("mlp."): nbytes for name, nbytes in kept.items() if name.startswith("mlp.")}
    assert mixture == {
        "router": tokens * (4 * (4 + 4 + 1) + 2 * (2 + 2)),
        "dispatch": 2 * tokens * 2 * HIDDEN,
        "experts.gate_proj": 2 * tokens * 2 * WIDTH,
        "experts.up_proj": 2 * tokens * 2 * WIDTH,
        "experts.multiply": 2 * tokens * 2 * WIDTH,
    }
    answers = set(kept_by_layer(built(tmp_path, MIXTRAL, ""))) - set(kept)
    assert answers == {"mlp.experts.down_proj", "mlp.experts.act_fn"}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:2"])
def test_a_shape_of_a_matrix_has_one_placeholder_on_a_device(tmp_path, schedule):
    """However many layers, chunks and experts have it; experts that are divided have whole matrices."""
    graph = built(tmp_path, MIXTRAL, "megatron", batch=16)
    lowering, strategy = lowered(graph, 4, pp=2, ep=2, schedule=schedule, grads="fp32")
    shapes = HIDDEN * (HIDDEN + 2 * KEY_WIDTH) + HIDDEN * HIDDEN + 2 * HIDDEN * WIDTH + WIDTH * HIDDEN
    stages = lowering.parts(strategy)[2]
    assert placeholder_bytes(stages, 4).tolist() == [2 * shapes] * 4


def test_losses_of_trainers(tmp_path):
    """In place: the scores' size in bf16; compiled: the scores; eager: logarithms in fp32, and two gradients in fp32.

    What held the scores in bf16 is too small for any of these, and stays reserved.
    """
    scores = 8 * TOKENS * LLAMA["vocab_size"]
    expected = {"megatron": (2, 0), "torchtitan": (2, 0), "torchtitan-2024": (4, 2 * 4 + 2), "": (4, 2 * 4)}
    for name, (kept, scratch) in expected.items():
        graph = built(tmp_path, LLAMA, name)
        head, loss = (sum(tensor.nbytes for tensor in tensors) for tensors in saved_tensors(graph)[-2:])
        assert (head + loss, sum(tensor.nbytes for tensor in graph.operators[-1].scratch)) == (
            kept * scores,
            scratch * scores,
        ), name


def test_a_gpt_whose_attention_is_not_fused(tmp_path):
    """Korthikanti et al. (2022), equation 2: sbh (34 + 5as/h); and means and deviations of two normalizations."""
    graph = built(tmp_path, GPT2 | {"resid_pdrop": 0.1}, "megatron-local", precision="fp16")
    kept, tokens = sum(kept_by_layer(graph).values()), 8 * TOKENS
    assert kept == tokens * (34 * HIDDEN + 5 * HEADS * TOKENS) + 2 * 8 * tokens
    without = sum(kept_by_layer(built(tmp_path, GPT2, "megatron-local", precision="fp16")).values())
    assert kept - without == tokens * (2 * HIDDEN + 3 * HEADS * TOKENS)


@pytest.mark.parametrize("cp", [1, 2])
def test_a_llama_as_torchtitan_shards_it(tmp_path, cp):
    """FSDP2 in four slices, also of context-parallel devices: 16 bytes a weight; and where the loss has most,
    embedding, norm, head and the last layer gathered, as much where they arrive, inputs of layers and head, and 14
    bytes a score."""
    graph = built(tmp_path, LLAMA | {"vocab_size": 16 * WORDS}, "torchtitan-2024")
    lowering, strategy = lowered(graph, 4, cp=cp, zero=3, recompute="full", micro_batch=2 * cp)
    tokens, matrices = 2 * TOKENS, HIDDEN * (HIDDEN + 2 * KEY_WIDTH) + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH
    outside, layer = 2 * 16 * WORDS * HIDDEN + HIDDEN, matrices + 2 * HIDDEN
    inputs = LAYERS * 2 * tokens * HIDDEN + tokens * (2 * HIDDEN + 4) + 2 * tokens * HIDDEN
    expected = (outside + LAYERS * layer) * 16 / 4 + 2 * 2 * (outside + layer) + inputs + 14 * tokens * 16 * WORDS
    assert lowering.memory(strategy).tolist() == pytest.approx([expected] * 4, rel=1e-12)


def test_a_pipeline_of_torchtitan_has_whole_gradients_and_a_tensor_for_each_message(tmp_path):
    """Four bytes a weight until the last of four micro-batches; what arrives, and gradients of what is sent, of all."""
    graph = built(tmp_path, LLAMA, "torchtitan-2024")
    lowering, strategy = lowered(graph, 4, pp=2, zero=3, reshard=False)
    first, last = lowering.parts(strategy)[0]
    layers = 2 * (HIDDEN * (HIDDEN + 2 * KEY_WIDTH) + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH + 2 * HIDDEN)
    words, message = LLAMA["vocab_size"] * HIDDEN, 2 * 4 * TOKENS * HIDDEN
    assert accumulated_gradients(first, strategy.micro_batches, at_once=False) == 4 * (layers + words)
    assert accumulated_gradients(last, strategy.micro_batches, at_once=True) == 4 * (layers + words + HIDDEN)
    assert accumulated_gradients(first, 1, at_once=False) == 0
    ranks = strategy.order.rank_of
    assert gather_pool(first) == gather_pool(last) == 2 * layers, "two layers, of two bytes a weight"
    assert pipeline_buffers(first, ranks) == message
    assert pipeline_buffers(first, 0 * ranks) == 0
    assert pipeline_buffers(last, ranks) == message + 2 * 4 * TOKENS * LLAMA["vocab_size"]


def test_what_is_sent_is_kept_and_what_is_received_is_in_its_tensor(tmp_path):
    """Of layers that run again; the first stage sends a message, and the last one has received it."""
    graph = built(tmp_path, LLAMA, "torchtitan-2024")
    message = 2 * 8 * TOKENS * HIDDEN
    for recompute, expected in {"full": (message, -message), "none": (0, 0)}.items():
        lowering, strategy = lowered(graph, 2, pp=2, recompute=recompute)
        assert tuple(handed_on(strategy, stage) for stage in lowering.parts(strategy)[0]) == expected


def test_chunks_that_end_one_after_the_other_have_gradients_of_one_at_a_time(tmp_path):
    """With as many micro-batches as ranks the later chunk's last backward pass is before the earlier one's first."""
    graph = built(tmp_path, LLAMA, "torchtitan-2024")
    summed = {}
    for batch in (2, 1):
        lowering, strategy = lowered(
            graph, 4, pp=2, zero=3, reshard=False, schedule="interleaved:2", micro_batch=batch, recompute="full"
        )
        stages = lowering.parts(strategy)[2]
        each = np.array([stage.accumulated for stage in stages])
        summed[strategy.micro_batches] = staged_peak(strategy.order, stages, 4).summed[[0, -1]].tolist()
        assert (each > 0).all()
    assert set(summed) == {2, 4}
    assert all(most in (0, *each.tolist()) for most in summed[2])
    assert any(most in (each[0] + each[2], each[1] + each[3]) for most in summed[4])


@pytest.mark.parametrize("kernels", ["torchtitan", "torchtitan-eager"])
def test_every_second_product_and_attention_are_kept(tmp_path, kernels):
    """torchtitan's selective ``op``: queries, values, the gate, attention, and what the layer adds last.

    No backward pass needs the last one, and layers that are compiled do not keep it.
    """
    graph = built(tmp_path, LLAMA, kernels)
    regions = regions_of("op", graph)
    kept = [op.name for op, region in zip(graph.operators, regions, strict=True) if region == -2 - 1]
    names = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.attention", "mlp.gate_proj", "mlp.down_proj")
    assert kept == [f"model.layers.1.{name}" for name in names]
    assert words_of_regions(regions.tolist(), graph) == "op"
    change = {}
    for mode in ("op", "full"):
        lowering, strategy = lowered(graph, 2, recompute=mode, micro_batch=4)
        change[mode] = lowering.parts(strategy)[2][0].change[0, Pass.FORWARD, 0]
    added = HIDDEN if kernels == "torchtitan-eager" else 0
    a_layer = 4 * TOKENS * (2 * (HIDDEN + KEY_WIDTH + HIDDEN + WIDTH + added) + 4 * HEADS)
    assert change["op"] - change["full"] == LAYERS * a_layer


@pytest.mark.parametrize(
    ("mode", "less"),
    [
        ("modules:layernorm", 2 * (2 * HIDDEN + 4) * TOKENS),
        ("modules:moe_act", 2 * TOKENS * 2 * WIDTH),
        ("selective", 4 * HEADS * TOKENS),
    ],
)
def test_megatron_keeps_nothing_of_what_runs_again_for_its_reader(tmp_path, mode, less):
    """A normalization's answers and statistics, the products of two experts a token; attention's answers stay."""
    graph = built(tmp_path, MIXTRAL, "megatron")
    change = {}
    for recompute in ("none", mode):
        lowering, strategy = lowered(graph, 2, recompute=recompute, micro_batch=4)
        change[recompute] = lowering.parts(strategy)[2][0].change[0, Pass.FORWARD, 0]
    assert change["none"] - change[mode] == LAYERS * 4 * less


def test_kernels_are_known_by_name(tmp_path):
    graph = built(tmp_path, LLAMA, "")
    assert kernels_of(graph) is None
    assert with_kernels(graph, "") is graph
    for name, kernels in KERNELS.items():
        assert kernels_of(with_kernels(graph, name)) is kernels
        assert [attrs.evolve(op, saved=None, extras=(), scratch=(), tags={}) for op in graph.operators] == [
            attrs.evolve(op, saved=None, extras=(), scratch=(), tags={}) for op in with_kernels(graph, name).operators
        ], "operators compute what they did"
    with pytest.raises(TopoplanError, match=r"kernels: 'megatrom' is not known.*megatron"):
        with_kernels(graph, "megatrom")


def test_dualpipe_keeps_one_micro_batch_more_than_there_are_ranks(tmp_path):
    """Four ranks, eight micro-batches: two copies of the weights, what five micro-batches keep, and a backward pass.

    Between the gradients of inputs and of weights the inputs of products wait, and gradients of their outputs.
    """
    graph = built(tmp_path, LLAMA, "megatron")
    lowering, strategy = lowered(graph, 4, pp=4, schedule="dualpipe", micro_batch=1)
    stages = lowering.parts(strategy)[2]
    second = [stage for number, stage in enumerate(stages) if strategy.order.rank_of[number] == 1]
    states = sum(stage.states.sum() for stage in second)
    kept = [float(stage.change[0, Pass.FORWARD, 0]) for stage in second]
    memory = lowering.memory(strategy)[int(second[0].devices[0])]
    assert kept[0] == kept[1], "a layer each"
    assert 0 <= memory - states - 5 * kept[0] - placeholder_bytes(stages, 4)[1] <= second[0].rise.total
    after_inputs = second[0].change[:, Pass.BACKWARD, 0]
    # Of four products, and of a normalization; that of the first one is kept where it was made.
    inputs = HIDDEN + HIDDEN + HIDDEN + WIDTH + HIDDEN
    gradients = (HIDDEN + 2 * KEY_WIDTH) + HIDDEN + 2 * WIDTH + HIDDEN + 2 * HIDDEN
    assert kept[0] + after_inputs[0] == pytest.approx(2 * TOKENS * inputs)
    assert after_inputs[1] == pytest.approx(2 * TOKENS * gradients)


@pytest.mark.parametrize("kernels", ["", "megatron"])
def test_normalizations_that_run_again_keep_no_more(tmp_path, kernels):
    """What the stage before has sent is kept there already."""
    graph, memory = built(tmp_path, LLAMA, kernels), []
    for recompute in ("none", "modules:layernorm"):
        lowering, strategy = lowered(graph, 4, pp=4, schedule="dualpipe", micro_batch=1, recompute=recompute)
        memory.append(lowering.memory(strategy).max())
    assert memory[1] <= memory[0]


def test_inputs_of_products_in_fp8_are_kept_in_fp8(tmp_path):
    """Tokens at their experts, what gates read and make; normalizations, attention and routers as before."""
    kept = {name: kept_by_layer(built(tmp_path, MIXTRAL, name)) for name in ("megatron", "deepseek")}
    halves = {name for name, nbytes in kept["deepseek"].items() if 2 * nbytes == kept["megatron"][name]}
    assert {"mlp.dispatch", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.multiply"} <= halves
    assert kept["deepseek"]["self_attn.attention"] == kept["megatron"]["self_attn.attention"]
    assert kept["deepseek"]["post_attention_layernorm"] == kept["megatron"]["post_attention_layernorm"]
    assert {*kept["deepseek"]} == {*kept["megatron"]}


def test_kernels_for_fp8_want_it():
    check_precision("deepseek", "fp8")
    check_precision("megatron", "bf16")
    with pytest.raises(TopoplanError, match=r"kernels: deepseek: products run in fp8 \(--precision fp8, not bf16\)"):
        check_precision("deepseek", "bf16")


def test_up_projections_of_latent_attention_run_again_for_attention():
    """Queries, and keys and values, of DeepSeek-V3's layers are not kept; what they are made of is."""
    graph = with_kernels(
        in_precision(HuggingFace(preset="deepseek-v3", sequence_length=64, layers=4).build(2), "bf16"), "megatron"
    )
    regions = regions_of("modules:mla_up_proj", graph)
    first = [op.name.split(".")[-1] for op, region in zip(graph.operators, regions, strict=True) if region == 0]
    norms, products = ["q_a_layernorm", "kv_a_layernorm"], ["q_b_proj", "kv_b_proj"]
    assert sorted(first) == sorted([*norms, *products, "q_rotary", "keys_and_values"])
    assert words_of_regions(regions.tolist(), graph) == "modules:mla_up_proj"
    change = []
    for recompute in ("none", "modules:mla_up_proj"):
        lowering, strategy = lowered(graph, 1, recompute=recompute, micro_batch=1)
        change.append(lowering.parts(strategy)[2][0].change[0, Pass.FORWARD, 0])
    heads, latent, statistics = 128 * (192 + 192 + 128), 1536 + 512, 2 * 4
    assert change[0] - change[1] == 4 * 64 * (2 * (heads + latent) + statistics)


def test_megatrons_mlp_runs_layers_without_experts_again():
    """Megatron-LM's ``mlp`` is "the dense MLP submodule", ``moe`` the layer of experts (transformer_config.py)."""
    graph = HuggingFace(preset="deepseek-v3", sequence_length=64, layers=5).build(2)
    again = {word: set(np.flatnonzero(regions_of(f"modules:{word}", graph) >= 0).tolist()) for word in ("mlp", "moe")}
    numbers = {word: {graph.operators[op].name.split(".")[2] for op in members} for word, members in again.items()}
    assert numbers == {"mlp": {"0", "1", "2"}, "moe": {"3", "4"}}  # its first three layers have no experts
    assert not any("expert" in graph.operators[op].name for op in again["mlp"])
    assert words_of_regions(regions_of("modules:mlp", graph).tolist(), graph) == "modules:mlp"
    mixture = HuggingFace(preset="qwen3-30b-a3b", sequence_length=64, layers=2).build(2)
    with pytest.raises(TopoplanError, match=r"layers of model .* have no module 'mlp' \(nearest: moe\)"):
        regions_of("modules:mlp", mixture)


@pytest.mark.parametrize("kernels", ["torchtitan", "torchtitan-2024", "torchtitan-eager"])
def test_torchtitan_repeats_keys_and_values_for_all_heads(tmp_path, kernels):
    """Copies of both, and gradients of these, of two bytes, as wide as the query (``repeat_kv`` of its models)."""
    graph = built(tmp_path, LLAMA, kernels)
    attention = next(op for op in graph.operators if op.kind == "scaled_dot_product_attention")
    assert sum(tensor.nbytes for tensor in attention.scratch) == 4 * 2 * 8 * TOKENS * HIDDEN
    alone = built(tmp_path, LLAMA | {"num_key_value_heads": HEADS}, kernels)
    assert not any(op.scratch for op in alone.operators if op.kind == "scaled_dot_product_attention")

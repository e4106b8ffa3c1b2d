"""Models of transformers, made from their configurations without memory: parameters, FLOPs, nothing opaque.

The same models by the frontend `huggingface` have the same parameters and FLOPs, and take the same time, by data
parallelism and with weights that are cut.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
import warnings

import numpy as np
import pytest

from topoplan import Candidate, Host, PlacedStrategy, Placement, State
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.search.evaluator import Evaluator
from topoplan_frontend_torch import from_torch

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from topoplan_samples.torch_counts import counted, parameters, products  # noqa: E402

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=32),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=8),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 8, "num_hidden_layers": 4},
        moe_intermediate_size=128,
        n_routed_experts=16,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=4,
        q_lora_rank=64,
        kv_lora_rank=32,
    ),
    "gpt2": lambda: transformers.GPT2Config(n_layer=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "bert": lambda: transformers.BertConfig(num_hidden_layers=2),
    "vit": lambda: transformers.ViTConfig(num_hidden_layers=2),
    "resnet": lambda: transformers.ResNetConfig(),
}
CAUSAL = ("llama", "qwen3", "mixtral", "deepseek_v3", "gpt2")
EXPERTS = ("mixtral", "deepseek_v3")


def module_of(config, kind):
    """Return a module without memory."""
    auto = transformers.AutoModelForCausalLM if kind in CAUSAL else transformers.AutoModel
    config.use_cache = False
    with torch.device("meta"):
        return auto.from_config(config)


def inputs_of(kind, samples=2, positions=64):
    """Return inputs without memory."""
    if kind in ("vit", "resnet"):
        return {"pixel_values": torch.empty(samples, 3, 224, 224, device="meta")}
    return {"input_ids": torch.zeros(samples, positions, dtype=torch.int64, device="meta")}


def planned(module, inputs, **options):
    """Return the graph of a module; transformers warns of what does not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return from_torch(module, (), inputs, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_exact_flops_are_those_of_pytorch_and_nothing_is_opaque(kind):
    module, inputs = module_of(CONFIGS[kind](), kind), inputs_of(kind)
    graph = planned(module, inputs, strict=True)
    assert parameters(graph) == sum(parameter.numel() for parameter in module.parameters())
    expected = counted(module, (), inputs)
    if kind in EXPERTS:  # which PyTorch's counter does not see
        expected += experts_of(module.config, 2 * 64)
    assert products(graph) == pytest.approx(expected, rel=1e-12)
    assert all(op.dims[op.sample_dim].size % 2 == 0 for op in graph.operators if op.sample_dim >= 0)


def experts_of(config, tokens):
    """Return the FLOPs of experts: three products for each expert of each token."""
    width = getattr(config, "moe_intermediate_size", config.intermediate_size)
    layers = config.num_hidden_layers - getattr(config, "first_k_dense_replace", 0)
    return layers * tokens * config.num_experts_per_tok * 3 * 2 * config.hidden_size * width


@pytest.mark.slow
def test_llama_3_8b_has_its_parameters_and_is_made_of_nine_kinds():
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    graph = planned(module_of(config, "llama"), inputs_of("llama", 2, 128), strict=True)
    assert parameters(graph) == 8_030_261_248
    assert len({op.kind for op in graph.operators}) == 8
    assert len(graph.operators) == 3 + 32 * 16


#: The dimension of each operator that tensor parallelism cuts in two, by the last parts of the names that the two
#: frontends give it.  Experts are cut by whole experts; all other operators only by samples.
CUTS = {
    r"self_attn\.[qkv]_proj|mlp\.(gate|up)_proj": "o",
    r"self_attn\.(rotary[12]|[qk]_rotary)": "a2",
    r"self_attn\.(attention|scaled_dot_product_attention)": "h",
    r"self_attn\.o_proj|mlp\.down_proj": "i",
    r"mlp\.act_fn|mlp(\.multiply)?": "a2",
    r"mlp\.dispatch|mlp\.experts\.(dispatch|expert_linear[123]|(gate|up|down)_proj)|mlp(\.experts)?\.combine": "e",
    r"mlp\.experts\.(act_fn|multiply)": "a1",
}


def in_samples(op):
    """Return data parallelism on four devices."""
    degrees = op.sample_cut(4)
    return Placement(degrees, range(math.prod(degrees)))


def in_tensors(op):
    """Return the cut of tensor parallelism of two and data parallelism of two; in samples what it does not name."""
    parts = re.fullmatch(r"model\.layers\.\d+\.(.+)", op.name)
    name = next((cut for pattern, cut in CUTS.items() if parts and re.fullmatch(pattern, parts[1])), None)
    if name is None:
        return in_samples(op)
    degrees = list(op.sample_cut(2))
    degrees[[dim.name for dim in op.dims].index(name)] = 2
    return Placement(degrees, range(4))


def seconds(graph, place, **options):
    """Return the time of an iteration on four hosts of one GPU, each operator placed by ``place``."""
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(servers=4, **options))
    costs = host.make("estimator", "roofline").build(graph, cluster)
    problem = problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))
    strategy = PlacedStrategy(tuple(map(place, graph.operators)))
    strategy.check(graph, 4)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    evaluator = Evaluator(problem, host.make("simulator", "fluid").build(), "ignore")
    return evaluator.price(Candidate(base=State(strategy, fabric))).cost


@functools.cache
def both(kind):
    """Return the graphs of one model by the frontends `torch` and `huggingface`."""
    return both_of(CONFIGS[kind](), kind, 8, 256)


def both_of(config, kind, samples, positions):
    """Return the graphs of a configuration by both frontends."""
    frontend = pytest.importorskip("topoplan_frontend_huggingface").HuggingFace
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        other = frontend(config=folder, sequence_length=positions).build(samples)
    module = module_of(config, kind)
    inputs = inputs_of(kind, samples, positions)
    return planned(module, {**inputs, "labels": inputs["input_ids"]}, strict=True), other


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral", "deepseek_v3", "gpt2"])
def test_both_frontends_give_the_same_parameters_flops_and_times(kind):
    graph, other = both(kind)
    assert parameters(graph) == parameters(other)
    assert products(graph) == pytest.approx(products(other), rel=1e-12)
    assert seconds(graph, in_samples) == pytest.approx(seconds(other, in_samples), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("llama", 12), ("mixtral", 14)])
def test_both_frontends_give_the_same_times_where_weights_are_cut(kind, count):
    graph, other = both(kind)
    same_times_where_weights_are_cut(graph, other, 2 * count)


@pytest.mark.slow
def test_both_frontends_give_the_same_times_for_two_layers_of_mixtral_8x7b():
    config = transformers.MixtralConfig(num_hidden_layers=2)
    assert (config.hidden_size, config.intermediate_size, config.num_local_experts) == (4096, 14336, 8)
    graph, other = both_of(config, "mixtral", 8, 4096)
    assert parameters(graph) == parameters(other) == 3_164_688_384
    same_times_where_weights_are_cut(graph, other, 2 * 14)


def same_times_where_weights_are_cut(graph, other, count):
    """Check that two graphs whose weights and experts are cut take the same time, and not that of data parallelism."""
    assert [cut(graph), cut(other)] == [count] * 2
    assert products(graph) == pytest.approx(products(other), rel=1e-12)
    assert seconds(graph, in_tensors) == pytest.approx(seconds(other, in_tensors), rel=0.01)
    assert seconds(graph, in_tensors) != pytest.approx(seconds(graph, in_samples), rel=0.005)


def cut(graph):
    """Return how many operators are cut otherwise than by samples."""
    return sum(in_tensors(op) != in_samples(op) for op in graph.operators)


def test_flops_of_an_operator_are_counted_without_biases():
    linear = torch.nn.Linear(4, 8, device="meta")
    graph = from_torch(linear, (torch.empty(2, 4, device="meta"),))
    assert math.isclose(products(graph), 2 * 2 * 4 * 8)

"""What a model says of how it runs: its kernel of attention, and how uneven its tokens choose experts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan import Host, Topology, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.precision import in_precision
from topoplan_engine.search.problems import problem_on
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_operator_times.saved import saved_tensors
from topoplan_samples.stated import LLAMA, MIXTRAL
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.settings import Settings

CLUSTER = build_cluster(ClusterOptions(servers=1, gpus_per_server=8, device="h100"))


def built(folder, keys, kernels="", **options):
    (folder / "config.json").write_text(json.dumps(keys))
    return with_kernels(in_precision(HuggingFace(config=str(folder), **options).build(8), "bf16"), kernels)


def attention_seconds(graph, **options):
    """Seconds of the first layer's attention, by measured kernels of an H100."""
    number = next(k for k, op in enumerate(graph.operators) if op.kind == "scaled_dot_product_attention")
    costs = KernelTimes(device="h100", **options).build(graph, CLUSTER)
    part = costs.price(number, (1,) * len(graph.operators[number].dims), np.array([0], dtype=np.int32))
    return float(part.forward[0] + part.backward[0])


def test_attention_of_the_model_is_priced_and_kept(tmp_path):
    """FlashAttention 2 takes longer; written scores are kept: samples x heads x positions x positions."""
    models = {kernel: built(tmp_path, LLAMA, attention=kernel) for kernel in (None, "fused", "flash2", "written")}
    seconds = {kernel: attention_seconds(graph) for kernel, graph in models.items()}
    assert seconds[None] == seconds["fused"] < seconds["flash2"] < 2 * seconds["fused"]
    assert attention_seconds(models["flash2"], attention="fused") == seconds["fused"], "the estimator's option counts"
    kept = {}
    for kernel, graph in models.items():
        rows = zip(graph.operators, saved_tensors(graph), strict=True)
        kept[kernel] = {
            t.name: t.nbytes for op, each in rows if op.name.endswith("1.self_attn.attention") for t in each
        }
    assert kept[None] == kept["fused"] == kept["flash2"]
    assert kept["written"]["shares"] == 8 * 8 * 32 * 32 * 2


@pytest.mark.parametrize(
    ("kernels", "model", "like"),
    [("torchtitan", None, "flash2"), ("megatron", None, "fused"), ("torchtitan", "fused", "fused")],
)
def test_attention_is_the_trainers_unless_the_model_says_it(tmp_path, kernels, model, like):
    graph = built(tmp_path, LLAMA, kernels, attention=model)
    assert attention_seconds(graph) == attention_seconds(graph, attention=like)
    assert KernelTimes(device="h100").build(graph, CLUSTER).assumptions["fused"] is True


def tokens_of_first(graph, **plan):
    """The share of tokens of the first device among which experts are divided, over the mean."""
    (stage,) = strategy_of(Stated(**plan), graph, 4)[0].stages
    return max((float(row[0]) for row in stage.shares), default=1.0)


def test_skew_of_the_model_is_that_of_plans_that_say_none(tmp_path):
    graph = built(tmp_path, MIXTRAL, skew=1.3)
    assert tokens_of_first(graph, ep=4) == 1.3
    assert tokens_of_first(graph, ep=4, skew=1.1) == 1.1
    assert tokens_of_first(graph, ep=4, skew=1.0) == tokens_of_first(graph, ep=1) == 1.0
    assert tokens_of_first(built(tmp_path, MIXTRAL, skew=9.0), ep=2) == 2.0, "it has all tokens"
    searched = strategy_of(Settings(ep=4), graph, 4)[0]
    assert searched.stages[0].shares[0][0] == 1.3, "plans of a search, too"


def test_models_without_experts_or_attention_have_neither(tmp_path):
    with pytest.raises(TopoplanError, match=r"skew: .* has no experts"):
        built(tmp_path, LLAMA, skew=1.3)


def test_biases_that_tensor_parallelism_cuts_are_stored_in_slices_of_slices(tmp_path):
    """ZeRO 3 beside tensor parallelism: a bias has one axis, which both cut; it is gathered as half a bias."""
    keys = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    graph = built(tmp_path, keys)
    plans = [strategy_of(Stated(tp=2, dp=2, zero=level), graph, 4)[0] for level in (0, 3)]
    number = next(k for k, op in enumerate(graph.operators) if len(op.weights) == 2)
    stored = plans[1].stages[0].program.stored[number][2]
    assert [form.axis for form in stored if form.sliced] == [0, 0]
    lowering = StagedLowering(graph, CLUSTER, Roofline().build(graph, CLUSTER))
    whole, sliced = (lowering.memory(plan).max() for plan in plans)
    assert sliced < whole


@pytest.mark.parametrize("plan", [Settings(zero=3), Settings(zero=3, tp=2), Settings(zero=3, recompute="full")])
def test_estimates_hold_what_fsdp_gathers_ahead_and_sums_behind(tmp_path, plan):
    """Layers are estimated one by one; FSDP2 holds weights of the next and gradients of the last one, too."""
    keys = {**LLAMA, "hidden_size": 256, "intermediate_size": 1024}
    graph = built(tmp_path, keys, "torchtitan")
    problem = problem_on(graph, CLUSTER, Roofline().build(graph, CLUSTER), Host.discover().make(Topology, "bigswitch"))
    estimates = Estimates(problem, problem.build_fabric(None, np.random.default_rng(0)), Rules(graph))
    lowering = StagedLowering(graph, CLUSTER, problem.costs)
    exact = lowering.memory(strategy_of(plan, graph, 8)[0]).max()
    assert exact * 0.99 < estimates.of(plan).memory < exact * 1.1

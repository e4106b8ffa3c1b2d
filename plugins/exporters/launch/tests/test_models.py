"""Models that trainers lack are refused for what is in them, and those that they have are not."""

from __future__ import annotations

import json

import pytest

from topoplan import TopoplanError
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_exporter_launch.models import has_no_pipelines, why_not_in_megatron, why_not_in_torchtitan
from topoplan_frontend_huggingface import HuggingFace
from topoplan_operators import GraphBuilder
from topoplan_samples.configurations import CONFIGURATIONS, HAVE, SMALL_DECODER, written


def model(folder, family, **keys):
    """A model of two layers of a family."""
    path = folder / f"{family}.json"
    path.write_text(json.dumps(SMALL_DECODER | {"model_type": family} | keys))
    return HuggingFace(config=str(path)).build(8)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_trainers_have_the_models_that_people_train_with_them(tmp_path, name):
    graph = HuggingFace(config=str(written(tmp_path, name)), layers=1).build(8)
    assert (name in HAVE["megatron"]) == (not why_not_in_megatron(graph))
    assert (name in HAVE["torchtitan"]) == (not why_not_in_torchtitan(graph))


@pytest.mark.parametrize(
    ("family", "keys", "runs"),
    [
        ("gpt_neox", {}, False),
        ("gpt_neox", {"use_parallel_residual": False}, True),
        ("stablelm", {"use_parallel_residual": True}, False),
        ("stablelm", {}, True),
        ("phi", {}, False),
        ("phi3", {}, True),
        ("qwen3", {}, True),
    ],
)
def test_megatron_runs_attention_and_matrices_one_after_the_other(tmp_path, family, keys, runs):
    """GPT-NeoX (Black et al., 2022, 2.1) and Phi compute both from one input; Megatron-LM's TransformerLayer not."""
    why = why_not_in_megatron(model(tmp_path, family, **keys))
    assert bool(why) != runs
    assert runs or why.endswith("its layers run attention and matrices side by side, not one after the other")


def test_models_of_users_pass():
    b = GraphBuilder("gpt", 16)
    b.linear(b.input((8, 16)), 16, name="blocks.0.up")
    graph = b.build()
    assert why_not_in_megatron(graph) == why_not_in_torchtitan(graph) == ""
    assert not has_no_pipelines(graph)


@pytest.mark.parametrize(
    ("family", "trainer", "why"),
    [
        ("mpt", "megatron", r"Megatron-LM has no model 'mpt': it adds ALiBi to its attention"),
        ("gemma", "megatron", r"Megatron-LM has no model 'gemma': it multiplies by gates of GELU"),
        ("gpt_neox", "torchtitan", r"torchtitan has no model 'gpt_neox', whose layers are in 'gpt_neox.layers'"),
    ],
)
def test_a_model_that_a_trainer_lacks_is_refused_before_anything_is_planned(tmp_path, family, trainer, why):
    keys = {"d_model": 64, "n_heads": 4, "n_layers": 2} if family == "mpt" else SMALL_DECODER
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | keys))
    experiment = Experiment(
        model=f"huggingface:config={tmp_path}/config.json",
        cluster=ClusterOptions(servers=1, gpus_per_server=8, device="h100"),
        run=RunOptions(trainers=(trainer,)),
    )
    with pytest.raises(TopoplanError, match=f"^--for {trainer}: {why}"):
        optimize(experiment)


def test_megatron_has_no_convolution_networks():
    """Its scripts pretrain transformers over tokens; a plan of ResNet-50 is not offered to it."""
    builder = GraphBuilder("resnet50", 8)
    builder.conv2d(builder.input((3, 8, 8)), 4, 3)
    assert why_not_in_megatron(builder.build()).endswith("pretrain scripts are of transformers over tokens")

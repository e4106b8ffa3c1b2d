"""Staged plans go where other plans go: into files and back, through reports and commands; or are refused by name."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Exporter, Host, StagedStrategy, TopoplanError, stated_plan
from topoplan_exporter_json.document import read, write

MODEL = "transformer:num-layers=4"


@pytest.fixture(scope="module")
def host():
    return Host.discover()


@pytest.fixture(scope="module")
def plan():
    """Two stages of two replicas of two slices, with sharded state, recomputation and everything that is recorded."""
    return stated_plan(MODEL, "tp=2,pp=2,zero=1,recompute=full,bucket-mb=1", servers=8, batch_size=16, record=True)


def test_a_staged_plan_comes_back_as_it_was(plan):
    again = read(write(plan), "plan.json")
    assert again == plan
    assert again.strategy.key == plan.strategy.key
    assert isinstance(again.strategy, StagedStrategy)
    assert (again.taskgraph.collective == plan.taskgraph.collective).all()
    assert write(read(write(again), "plan.json")) == write(again)


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "words",
    [
        "tp=2,dp=4,zero=3,shard=2,clip=yes,grads=fp32,recompute=modules:mlp",
        "cp=2,dp=2,pp=2,layers=1+3,cp-comm=ring,zigzag=no,zero=3,reshard=no",
        "tp=8,micro-batch=4",
        "tp=4,dp=2,async-tp=yes,slowdown=0.05",
        "pp=2,dp=4,overlap=megatron",
        "ep=4,dp=4,pp=2,dispatch=2,overlap=experts",
    ],
)
def test_what_a_plan_says_comes_back(words, tmp_path):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 128}
    path = tmp_path / "config.json"
    if "ep=" in words:
        config |= {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        }
    path.write_text(json.dumps(config | {"max_position_embeddings": 32, "hidden_act": "silu"}))
    plan = stated_plan(f"huggingface:config={path}", words, servers=8, batch_size=16)
    document = write(plan)
    again = read(document, "plan.json")
    assert again == plan
    assert again.strategy.key == plan.strategy.key
    assert write(again) == document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda strategy: strategy.pop("order"), "stages, order and micro_batches come together"),
        (lambda strategy: strategy["stages"].pop(), r"is in 0 stages \(must be in one\)"),
        (lambda strategy: strategy["stages"][0]["mesh"]["sizes"].append(2), r"3 sizes for 2 axes"),
        (lambda strategy: strategy["order"]["kind"].__setitem__(0, 9), "kind has 9"),
        (lambda strategy: strategy["stages"][1]["mesh"]["devices"].__setitem__(0, 0), "device 0 is on ranks 0 and 1"),
        (lambda strategy: strategy.__setitem__("micro_batches", 3), "micro-batches"),
    ],
)
def test_a_damaged_staged_plan_is_named(plan, change, message):
    document = json.loads(write(plan))
    change(document["strategy"])
    with pytest.raises(TopoplanError, match=message) as caught:
        read(json.dumps(document).encode(), "plan.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strategy", "^strategy: the plan has stages with programs"),
        ("strategy-pb", "^strategy: the plan has stages with programs"),
        (
            "torchtitan",
            "^torchtitan: operator '.*' keeps its weights and gradients whole and a slice of its optimizer state",
        ),
        (
            "torchtitan-toml",
            "^torchtitan: operator '.*' keeps its weights and gradients whole and a slice of its optimizer",
        ),
        ("megatron", "^megatron: operator 'dec0_cross' wants input 'kv' as a whole tensor"),
        ("deepspeed", "^deepspeed: operator '.*' begins stage 1 of a pipeline"),
    ],
)
def test_formats_that_cannot_say_stages_refuse_them(host, plan, name, message):
    with pytest.raises(TopoplanError, match=message):
        host.make(Exporter, name).write(plan)


@pytest.mark.parametrize(
    "name", ["json", "html", "perfetto", "dot", "flatbuffer", "dtensor", "torch-schedule", "torchrun"]
)
def test_formats_write_them(host, plan, name):
    assert host.make(Exporter, name).write(plan)


def test_memory_over_time_reaches_the_peak(plan):
    """What is recorded over time is at no moment more than the peak, and passes near it."""
    levels, use = plan.recording.memory, plan.memory
    for device in (0, 7):
        rows = levels.device == device
        current = np.zeros(5)
        most = 0.0
        for kind, nbytes in zip(levels.kind[rows].tolist(), levels.nbytes[rows].tolist(), strict=True):
            current[kind] = nbytes
            most = max(most, current.sum())
        assert 0.9 * use.total[device] <= most <= 1.1 * use.total[device]


COMMAND = ["optimize", MODEL, "--servers", 8, "--batch-size", 16]


def test_commands_take_the_file(plan, run, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(write(plan))
    status, out, _ = run("simulate", path, "--json")
    assert status == 0
    assert json.loads(out)["iteration_time_s"] == pytest.approx(plan.timeline.makespan, rel=1e-12)
    status, out, _ = run("show", path)
    assert "2 stages on meshes of dp=2 x tp=2" in " ".join(out.split())


@pytest.mark.slow
def test_a_search_that_starts_from_a_staged_plan_keeps_what_is_faster(plan, run, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(write(plan))
    status, out, _ = run(*COMMAND, "--strategy", path, "--json", "--budget", 0)
    assert status == 0
    kept = json.loads(out)
    assert kept["iteration_time_s"] == pytest.approx(plan.timeline.makespan, rel=1e-12)
    assert kept["strategy"]["stages"][0]["axes"] == {"dp": 2, "tp": 2}
    status, out, _ = run(*COMMAND, "--strategy", path, "--json", "--budget", 3, "-s", "random")
    assert json.loads(out)["iteration_time_s"] <= kept["iteration_time_s"]
    status, out, _ = run(*COMMAND, "--strategy", path, "--json", "--budget", 3, "-s", "mcmc")
    assert status == 0
    moved = json.loads(out)
    assert moved["iteration_time_s"] < kept["iteration_time_s"]
    assert moved["strategy"]["stages"]
    status, out, err = run(*COMMAND, "--strategy", path, "--budget", 3, "-s", "cem")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "places operators one by one, which those of stages with programs cannot be" in err


def test_another_model_does_not_take_its_stages(plan, run, tmp_path):
    path = tmp_path / "plan.json"
    first = attrs.evolve(plan.graph.operators[0], name="renamed")
    graph = attrs.evolve(plan.graph, operators=(first, *plan.graph.operators[1:]))
    path.write_bytes(write(attrs.evolve(plan, graph=graph)))
    status, _, err = run(*COMMAND, "--strategy", path)
    assert status == 2
    assert "no placement for operator" in err


def test_plan_is_an_option_of_the_command(run):
    status, out, _ = run(*COMMAND, "--plan", "tp=2,pp=2,zero=1", "--json")
    assert status == 0
    report = json.loads(out)
    assert report["planners"]["stated"]["plan"].startswith("tp=2,cp=1,")
    assert report["schedule"]["kind"] == "1f1b"
    for words, message in (
        (["--plan", "pp=5"], "does not divide 8 devices (nearest: pp=4 or 8)"),
        (["--plan", "tp=2", "-s", "mcmc"], "--plan beside -s"),
        (["--plan", "tq=2"], "tq"),
    ):
        status, _, err = run(*COMMAND, *words)
        assert status == 2, words
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("plan", "words", "message"),
    [
        ("dp=4,pp=2", ["--for", "deepspeed"], "begins stage 1 of a pipeline"),
        ("tp=2,pp=2,zero=1", ["-x", "torchtitan={}/r.py"], "a slice of its optimizer state"),
        ("pp=2,schedule=zb-h1", ["-x", "megatron={}/m.sh"], "with schedule zb-h1"),
    ],
)
def test_a_stated_plan_that_a_trainer_does_not_run_is_refused_before_it_is_priced(run, tmp_path, plan, words, message):
    status, out, err = run(*COMMAND, "--plan", plan, *(word.format(tmp_path) for word in words))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not [*tmp_path.iterdir()]

"""Plans that are searched for a trainer have a file for it: models that people train, on 8, 16 and 64 devices."""

from __future__ import annotations

import ast
import json

import pytest

from topoplan import Restriction, TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.search.common_restriction import AllOf
from topoplan_exporter_dtensor import DTensor
from topoplan_exporter_dtensor.reader import parse
from topoplan_exporter_launch import DeepSpeed, Megatron, Torchtitan
from topoplan_samples.configurations import CONFIGURATIONS, HAVE
from topoplan_samples.long_tail import at_night
from topoplan_samples.trainers import searched

WRITERS = {"megatron": Megatron, "torchtitan": Torchtitan, "deepspeed": DeepSpeed, "torch": DTensor}


def check_file(plan, trainer):
    """Write the trainer's file, and read it as far as no trainer is needed."""
    data = WRITERS[trainer]().write(plan)
    if trainer == "deepspeed":
        assert json.loads(data)["train_batch_size"] == plan.graph.batch_size
    elif trainer == "torchtitan":
        ast.parse(data.decode())
    elif trainer == "torch":
        assert parse(data, "plan").model == plan.graph.name
    else:
        assert b"--tensor-model-parallel-size" in data


@pytest.mark.slow
@pytest.mark.parametrize("trainer", at_night(WRITERS, "megatron"))
@pytest.mark.parametrize("model", ["llama-3-8b", pytest.param("mixtral-8x7b", marks=pytest.mark.slow)])
def test_models_of_two_layers_have_files(tmp_path, model, trainer):
    outcome = searched(tmp_path, model, 8, trainer, layers=2)
    check_file(outcome.plan, trainer)
    first = layers_of(outcome.plan.graph).first
    program = outcome.plan.strategy.program
    assert all(program.rules[op] == program.rules[other] for op, other in enumerate(first))
    assert outcome.free is not None
    assert outcome.free.trainers == trainer


@pytest.mark.slow
@pytest.mark.parametrize("trainer", WRITERS)
@pytest.mark.parametrize("devices", [8, 16, 64])
@pytest.mark.parametrize("model", CONFIGURATIONS)
def test_models_have_files_or_do_not_fit(tmp_path, model, devices, trainer):
    if model not in HAVE.get(trainer, CONFIGURATIONS):
        with pytest.raises(TopoplanError, match=f"^--for {trainer}: .* has no model"):
            searched(tmp_path, model, devices, trainer)
        return
    try:
        outcome = searched(tmp_path, model, devices, trainer)
    except NoPlanFitsError:
        assert model in ("llama-3-70b", "mixtral-8x7b", "llama-3-8b", "qwen2.5-7b", "mpt-7b")
        return
    check_file(outcome.plan, trainer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "layers", "batch"), at_night([("deepspeed", 2, 32), ("torchtitan", 1, 64)], ("deepspeed", 2, 32))
)
def test_plans_have_the_memory_that_the_whole_batch_needs_at_once(tmp_path, trainer, layers, batch):
    """Two micro-batches would fit, but trainers have one."""
    sizes = {"batch": batch, "layers": layers, "sequence-length": 2048}
    roomy = searched(tmp_path, "llama-3-8b", 8, trainer, **sizes)
    assert roomy.fits
    needs = max(roomy.memory) / (1 - roomy.experiment.cluster.memory_reserve_percent / 100) / 1e9
    for share in (0.98, 0.9):
        try:
            tight = searched(tmp_path, "llama-3-8b", 8, trainer, memory_gb=needs * share, **sizes)
        except NoPlanFitsError:
            continue
        assert tight.fits


@pytest.mark.slow
def test_pipelines_of_megatron_are_written(tmp_path):
    outcome = searched(tmp_path, "llama-3-8b", 8, "megatron", searchers="pipeline:shortlist=1", batch=32, layers=4)
    check_file(outcome.plan, "megatron")
    recompute = outcome.plan.strategy.recomputes
    assert not any(recompute) or all(recompute)


def test_searchers_that_cannot_keep_to_a_trainer_are_refused(tmp_path):
    with pytest.raises(TopoplanError, match=r"^searcher mcmc: cannot keep to what megatron runs \(these can: .*spmd"):
        searched(tmp_path, "gpt2", 8, "megatron", searchers="mcmc", layers=1)
    with pytest.raises(TopoplanError, match=r"^--for 'megatrn': no exporter .*did you mean 'megatron'"):
        searched(tmp_path, "gpt2", 8, "megatrn", layers=1)


def test_a_batch_that_no_mesh_of_a_trainer_divides_is_named(tmp_path):
    """GPT-2 has an odd number of words, so its table and its head are not cut by them."""
    why = r"on mesh data 8, and none of the other meshes of megatron has a plan for a batch of 12; a multiple of 8"
    with pytest.raises(TopoplanError, match=why):
        searched(tmp_path, "gpt2", 8, "megatron", batch=12, layers=1)


def test_what_several_trainers_run_is_what_each_of_them_runs():
    each = [writer().restriction() for writer in (Megatron, DeepSpeed, DTensor)]
    both: Restriction = AllOf(each)
    assert set(both.meshes) <= set(each[0].meshes) & set(each[1].meshes)
    assert both.name == "megatron and deepspeed and torch"
    assert both.pipelines is None
    assert both.shards_state

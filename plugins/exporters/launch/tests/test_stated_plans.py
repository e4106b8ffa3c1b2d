"""Stated plans become files of trainers, and files of trainers the same plans."""

from __future__ import annotations

import csv
import io
import json

import pytest

from topoplan import Host, TopoplanError, optimize
from topoplan_engine import Experiment, RunOptions
from topoplan_engine.experiment import outputs_from
from topoplan_engine.search.trainers import restriction_of
from topoplan_exporter_launch import DeepSpeed, Megatron, TorchSchedule, TorchtitanToml
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated_plans import (
    DEVICES,
    NOT_MEGATRON,
    NOT_TORCHTITAN,
    OF_EXPERTS,
    OF_TORCHTITAN,
    SETTINGS,
    of_text,
)
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def read_back(folder, name, data, plan):
    """The strategy that a file of a trainer says."""
    path = folder / name
    path.write_bytes(data)
    return strategy_of(Stated(file=str(path)), plan.graph, DEVICES)[0]


@pytest.mark.by_day(11)
@pytest.mark.filterwarnings("ignore:.*--fp8-format is not planned")
@pytest.mark.parametrize("text", [*SETTINGS, *OF_EXPERTS])
def test_flags_of_megatron_are_read_as_the_plan_that_they_are_written_for(folder, text):
    plan = of_text(folder, text)
    why = next((why for words, why in NOT_MEGATRON.items() if words in text), None)
    if why is not None:
        with pytest.raises(TopoplanError, match=rf"^megatron: .*{why}"):
            Megatron().write(plan)
        return
    assert read_back(folder, "run.sh", Megatron().write(plan), plan).key == plan.strategy.key


@pytest.mark.by_day(7)
@pytest.mark.parametrize("text", OF_TORCHTITAN)
def test_configurations_of_torchtitan_are_read_as_the_plan_that_they_are_written_for(folder, text):
    plan = of_text(folder, text)
    assert read_back(folder, "run.toml", TorchtitanToml().write(plan), plan).key == plan.strategy.key


@pytest.mark.parametrize(("text", "why"), NOT_TORCHTITAN.items())
def test_what_torchtitan_has_not_is_refused_by_name(folder, text, why):
    with pytest.raises(TopoplanError, match=rf"^torchtitan: .*{why}"):
        TorchtitanToml().write(of_text(folder, text if "grads" in text else f"{text},grads=fp32"))


@pytest.mark.parametrize(
    ("text", "stage", "tensor", "samples"),
    [
        ("zero=1,micro_batch=2", 1, 1, 2),
        ("zero=2", 2, 1, 1),
        ("zero=3", 3, 1, 1),
        ("ep=4,zero=1", 1, 1, 1),
    ],
)
def test_deepspeed_has_the_level_of_zero_and_micro_batches(folder, text, stage, tensor, samples):
    document = json.loads(DeepSpeed().write(of_text(folder, text)))
    assert document["zero_optimization"]["stage"] == stage
    assert document.get("expert_parallel", {"autoep_size": 1})["autoep_size"] == (4 if "ep" in text else 1)
    sizes = [document[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    assert sizes == [samples, 32 // (16 * samples)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pp=2", "begins stage 1 of a pipeline"),
        ("tp=2,sp=no", "cuts the table of an embedding"),
        ("cp=2", "context parallelism"),
        ("recompute=full", "recomputes its forward pass"),
        ("schedule=gpipe", "micro-batches in the order gpipe"),
        ("ep=2,tp=2", "tensor and expert parallelism"),
    ],
)
def test_what_deepspeed_has_not_is_refused_by_name(folder, text, why):
    with pytest.raises(TopoplanError, match=rf"^deepspeed: .*{why}"):
        DeepSpeed().write(of_text(folder, text))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved:2", "zb-h1", "zb-h2", "zbv", "v-half"])
def test_the_order_of_passes_is_torchs_table(folder, schedule):
    """Rows are ranks, in the plan's order; a pass is right of those that it waits for."""
    plan = of_text(folder, f"pp=4,schedule={schedule}")
    order = plan.strategy.order
    rows = list(csv.reader(io.StringIO(TorchSchedule().write(plan).decode())))
    assert len(rows) == 4
    words = {"F": "F", "B": "B", "I": "B", "W": "W"}
    expected = [line.partition(": ")[2].split() for line in str(order).splitlines()]
    for cells, passes in zip(rows, expected, strict=True):
        found = []
        for cell in filter(None, cells):
            letter = next(each for each in "FBIW" if each in cell)
            chunk, _, micro_batch = cell.partition(letter)
            found.append(f"{words[letter]}{micro_batch}" + (f"/{chunk}" if order.n_chunks > 4 else ""))
        assert found == passes
    column = {cell: k for cells in rows for k, cell in enumerate(cells) if cell}
    back = "I" if "0I0" in column else "B"
    for chunk in range(order.n_chunks - 1):
        for micro_batch in range(order.n_micro_batches):
            assert column[f"{chunk}F{micro_batch}"] < column[f"{chunk + 1}F{micro_batch}"]
            assert column[f"{chunk + 1}{back}{micro_batch}"] < column[f"{chunk}{back}{micro_batch}"]


@pytest.mark.parametrize("exporter", [DeepSpeed, Megatron, TorchSchedule, TorchtitanToml])
def test_two_copies_of_the_model_are_refused_by_name(folder, exporter):
    plan = of_text(folder, "pp=2,schedule=dualpipe,grads=fp32")
    with pytest.raises(
        TopoplanError, match=r"the plan has two copies of the model in one pipeline \(schedule dualpipe"
    ):
        exporter().write(plan)


@pytest.mark.parametrize("exporter", [DeepSpeed, Megatron, TorchSchedule, TorchtitanToml])
def test_two_micro_batches_at_the_same_time_are_refused_by_name(folder, exporter):
    plan = of_text(folder, "pp=2,tp=2,overlap=hidup,grads=fp32")
    with pytest.raises(TopoplanError, match=r"two micro-batches at the same time \(overlap=all plans without\)"):
        exporter().write(plan)


def test_norms_without_weights_have_slices_of_positions(folder):
    """Those of OLMo: sequence parallelism is found by them."""
    olmo = of_text(folder, "tp=4,grads=fp32", "olmo")
    assert b"--sequence-parallel" in Megatron().write(olmo)
    assert b"--sequence-parallel" not in Megatron().write(of_text(folder, "tp=4,sp=no,grads=fp32", "olmo"))


def test_deepspeed_slices_biases_that_a_tensor_axis_cuts():
    """Of Qwen2.5, whose q, k and v have biases; by hand: the table, which is whole, and half of the layer behind it."""
    model = HuggingFace(preset="qwen2.5-7b", layers=1, sequence_length=64)
    options = {"servers": 1, "gpus_per_server": 8, "device": "h100", "precision": "bf16", "batch_size": 8}
    searcher = Stated(tp=2, zero=3, sp=False)
    plan = optimize(model, searchers=[searcher], trainers=("deepspeed",), **options).plan
    zero = json.loads(DeepSpeed().write(plan))["zero_optimization"]
    table, width, keys, mlp = 152064 * 3584, 3584, 512, 18944
    matrices = 2 * width * width + 2 * width * keys + 3 * width * mlp
    assert zero["stage"] == 3
    assert zero["stage3_max_live_parameters"] == table + (matrices + width + 2 * keys) // 2 + 2 * width


@pytest.mark.parametrize(
    ("outputs", "named", "says_orders", "rotates"),
    [
        (["torchtitan-toml=a.toml"], (), False, True),
        (["torchtitan-toml=a.toml"], ("torchtitan",), False, True),
        (["torchtitan=a.py"], (), True, False),
        ([], ("torchtitan",), True, False),
        (["torchtitan=a.py", "torchtitan-toml=a.toml"], (), False, False),
    ],
)
def test_a_search_keeps_to_what_its_files_say(folder, outputs, named, says_orders, rotates):
    """TOML has orders of passes by name alone, and a recipe no ring of keys and values."""
    experiment = Experiment(
        model="llama", searchers=["hybrid"], outputs=outputs_from(outputs), run=RunOptions(trainers=named)
    )
    restriction = restriction_of(Host.discover(), experiment)
    assert restriction is not None
    for text, allowed in (("pp=4,schedule=zb-h1", says_orders), ("cp=2,cp_comm=ring,zero=3", rotates)):
        plan = of_text(folder, f"{text},grads=fp32")
        refusal = restriction.refusal(plan.graph, plan.cluster, plan.strategy)
        assert bool(refusal) != allowed, refusal

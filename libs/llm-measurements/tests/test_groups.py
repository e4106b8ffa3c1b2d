"""Rows of published tables mean the runs that their sources describe."""

from __future__ import annotations

import attrs
import pytest

from topoplan import TopoplanError
from topoplan_llm_measurements.groups.machines import check_precision, cluster_of, hardware_of
from topoplan_llm_measurements.groups.plans import megatron_plan, precision_of
from topoplan_llm_measurements.groups.published import published_model
from topoplan_llm_measurements.groups.vtrain import VTRAIN
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.rows import Predicted
from topoplan_llm_measurements.stacks import Constants, stack_of, stacks
from topoplan_llm_measurements.tables import group_of, own_table


@pytest.mark.parametrize(
    ("name", "rows", "refused"),
    [
        ("mlperf", 21, 8),  # TPUs, and one submission, have no published degrees
        ("bridge", 123, 30),  # state-space layers, sparse attention
        ("nemo", 12, 0),
        ("nemo-long", 9, 0),
        ("megatron-core", 9, 0),
        ("torchtitan", 36, 0),
        ("zero-bubble", 48, 0),
        ("llama3", 3, 0),
        ("deepseek-v3", 3, 8),  # eight rows say what ran
    ],
)
def test_every_row_is_a_run_or_says_why_not(name, rows, refused):
    table = own_table(group_of(name))
    assert (len(table.rows), len(table.refused)) == (rows, refused)
    assert {row.stack for row in table.rows} <= set(stacks())
    for row in table.rows:
        plan = row.run.plan
        degrees = [plan.get(word, 1) for word in ("tp", "pp", "cp", "dp")]
        assert degrees[0] * degrees[1] * degrees[2] * degrees[3] == row.run.devices, row
        assert row.run.batch % (plan["dp"] * plan["micro_batch"]) == 0, row


@pytest.mark.parametrize(
    ("name", "giga_flop_per_token"),
    # what NVIDIA's pages imply: TFLOP/s over tokens/s, without attention
    [("LLAMA3_8B", 45.0), ("LLAMA3.1_405B", 2422.5), ("GPT3-20B", 121.3), ("Nemotron-340B", 2018.3)],
)
def test_published_models_have_the_matrices_of_their_names(name, giga_flop_per_token):
    keys = published_model(name)
    if "n_embd" in keys:
        matrices = 12 * keys["n_layer"] * keys["n_embd"] ** 2 + keys["vocab_size"] * keys["n_embd"]
    else:
        hidden, heads = keys["hidden_size"], keys["num_attention_heads"]
        size = keys.get("head_dim", hidden // heads)
        projections = hidden * size * (2 * heads + 2 * keys["num_key_value_heads"])
        layer = projections + 3 * hidden * keys["intermediate_size"]
        matrices = keys["num_hidden_layers"] * layer + keys["vocab_size"] * hidden
    assert 6 * matrices / 1e9 == pytest.approx(giga_flop_per_token, rel=0.005)


def test_models_that_cannot_be_built_are_named():
    with pytest.raises(TopoplanError, match="Nemotron_3_Nano' has state-space"):
        published_model("Nemotron_3_Nano")
    with pytest.raises(TopoplanError, match="model: 'Atlantis-7B' is none whose dimensions are known here"):
        published_model("Atlantis-7B")
    with pytest.raises(TopoplanError, match="did you mean 'gemma2-27b'"):
        published_model("Gemma3_27B")
    assert published_model("Qwen3 32B")["num_hidden_layers"] == 64
    assert published_model("DeepSeekV3 (w/o MTP)")["num_nextn_predict_layers"] == 0


def test_jobs_of_racks_take_as_many_gpus_of_each_as_divide_them():
    assert cluster_of("GB200", 72) == {"machine": "gb200-nvl72"}
    assert cluster_of("GB300", 8) == {"machine": "gb300-nvl72:gpus=8"}
    assert cluster_of("B200", 256) == {"machine": "dgx-b200"}


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("NVIDIA Blackwell GPU (GB200)", "GB200"),
        ("DGX-GB300", "GB300"),
        ("NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)", "B300"),
        ("dgx-h100", "H100"),
        ("NVIDIA H200-SXM5-141GB", "H200"),
        ("HGX-H800", "H800"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
    ],
)
def test_hardware_is_found_in_names_and_all_software_has_constants_for_it(name, hardware):
    assert hardware_of(name, "system") == hardware
    for software in ("NeMo in MLPerf", "Megatron-Bridge", "torchtitan", "torchtitan eager"):
        assert stack_of(stacks(), f"{hardware}, {software}").device.startswith(hardware.lower())


@pytest.mark.parametrize("name", ["TPU-v5p", "DGX-GH200", "AMD Instinct MI300X", "NVIDIA H1000", ""])
def test_other_hardware_is_refused(name):
    with pytest.raises(TopoplanError, match=r"system: '.*': its kernels were not measured"):
        hardware_of(name, "system")


def test_precisions_that_a_device_has_not_are_refused():
    with pytest.raises(TopoplanError, match="precision: H100 has no products in fp4"):
        check_precision("H100", "fp4")
    with pytest.raises(TopoplanError, match="precision: A100 has no products in fp8"):
        check_precision("A100", "fp8")


def test_layers_are_dealt_where_chunks_do_not_divide_them():
    cells = {"tp": "8", "pp": "8", "vp": "8", "micro_batch": "1"}
    assert megatron_plan(cells, 512, 126)["layers"] == "embedding+head"
    assert megatron_plan({"pp": "8"}, 64, 61)["layers"] == "7*3+8*5"
    assert "layers" not in megatron_plan({"pp": "8"}, 64, 64)
    assert megatron_plan({"tp": "2", "ep": "32"}, 64, 61, experts=256)["ep"] == 32
    with pytest.raises(TopoplanError, match="tp 3 x pp 1 x cp 1 does not divide 64"):
        megatron_plan({"tp": "3"}, 64, 60)


def test_precisions_are_found_in_names():
    names = {
        "bf16": ("BF16", "bfloat16", "bf16_mixed"),
        "fp8": ("FP8-CS", "FP8-SC", "MXFP8", "float8"),
        "fp4": ("NVFP4",),
    }
    for precision, words in names.items():
        assert {precision_of(word) for word in words} == {precision}
    for word in ("int3", "", "BF16/FP8"):
        with pytest.raises(TopoplanError, match="precision: "):
            precision_of(word)


def test_rates_follow_from_seconds():
    row = own_table(group_of("deepseek-v3")).rows[0]
    assert row.quantity.name == "GPU hours/10^12 tokens"
    # 180,000 hours are 1,543 tokens/s of each GPU, and a batch takes 19.9 s
    seconds = row.run.batch * row.run.sequence_length / row.run.devices / 1543.2
    assert row.quantity.of(row.run, Predicted(seconds=seconds, memory=0)) == pytest.approx(180000, rel=1e-4)


def test_pipelines_of_torchtitan_have_as_many_micro_batches_as_ranks():
    """405B: 32 sequences in eight micro-batches; weights are sliced along context parallel devices, too."""
    rows = {row.name: row for row in own_table(group_of("torchtitan")).rows}
    memory = {row.name: row for row in own_table(group_of("torchtitan-memory")).rows}
    for line in ("line 14", "line 15"):
        assert rows[line].run.plan["micro_batch"] == memory[line].run.plan["micro_batch"] == 4
    plan = rows["line 19"].run.plan
    assert (plan["dp"], plan["cp"], plan["zero"], plan["reshard"], plan["micro_batch"]) == (1, 8, 3, False, 1)


def test_nothing_is_fitted_to_the_one_run_of_deepseek_v3():
    """Products as published for H800 take 1.307 times what ours take, and have 112 of 132 multiprocessors."""
    stack = stacks()["H800, DeepSeek"]
    assert stack.fitted == ()
    assert stack.constants == Constants(products=pytest.approx(1.307 * 132 / 112, rel=1e-3))


def test_sums_of_vtrains_gradients_hide_behind_nothing():
    """``use_gradient_bucket: false`` of its configurations: two bytes more of each gradient take what they travel."""
    hidden, layers, positions, tp, hosts = 1024, 4, 1024, 8, 2
    sizes = {"gpus": tp * hosts, "tp": tp, "global_batch": hosts, "hidden": hidden, "heads": 16, "layers": layers}
    cells = {"seq_len": positions, "micro_batch": 1, "pp": 1, "iteration_ms": 1, **sizes}
    row = VTRAIN.row({name: str(value) for name, value in cells.items()})
    wider = attrs.evolve(row.run, plan={**row.run.plan, "grads": "fp32"})
    predictor, stack = Predictor(), stacks()[row.stack]
    longer = predictor.predicted(wider, stack).seconds - predictor.predicted(row.run, stack).seconds
    of_device = (12 * layers * hidden + row.run.model["vocab_size"]) * hidden / tp + positions * hidden
    nic = 800e9 / 8 / 8  # bytes/s a GPU of a host that has 800 Gb/s
    assert longer == pytest.approx(2 * of_device * 2 * (hosts - 1) / hosts / nic, rel=0.05)

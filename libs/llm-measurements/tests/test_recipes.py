"""Recipes of Megatron-Bridge: what they add to the plans of its performance pages."""

from __future__ import annotations

import pytest

from topoplan_llm_measurements.groups.recipes import bridge_recipe, bridge_software
from topoplan_llm_measurements.stacks import stack_of, stacks
from topoplan_llm_measurements.tables import group_of, own_table

PLAN = {"tp": 1, "pp": 1, "ep": 8, "schedule": "1f1b"}


@pytest.mark.parametrize(
    ("cells", "plan", "hardware", "expected"),
    [
        ({"model": "Qwen3_30B_a3B", "precision": "MXFP8", "release": "26.06"}, {}, "GB300", {"overlap": "experts"}),
        ({"model": "Qwen3_30B_a3B", "precision": "MXFP8", "release": "26.04.01"}, {}, "GB300", {}),
        ({"model": "Qwen3_30B_a3B", "precision": "BF16", "release": "26.06"}, {}, "GB300", {}),
        ({"model": "Qwen3_30B_a3B", "precision": "MXFP8"}, {"ep": 16}, "H100", {"dispatch": 8}),
        ({"model": "Qwen3_30B_a3B", "precision": "MXFP8"}, {"ep": 1}, "H100", {"dispatch": None}),
        ({"model": "Qwen3_235B_a22B", "precision": "FP8"}, {}, "B200", {"dispatch": None}),
        ({"model": "DeepSeekV3", "precision": "FP8-MX"}, {"ep": 64}, "GB200", {"recompute": "modules:mla_up_proj"}),
        ({"model": "DeepSeekV3", "precision": "BF16"}, {"ep": 64}, "GB300", {"recompute": "modules:moe_act"}),
        ({"model": "DeepSeekV3", "precision": "MXFP8", "release": "26.06"}, {}, "GB300", {"overlap": "experts"}),
        (
            {"model": "DeepSeekV3", "precision": "FP8-MX", "release": "25.11"},
            {},
            "GB300",
            {"recompute": "modules:moe_act"},
        ),
        (
            {"model": "DeepSeekV3", "precision": "MXFP8", "vp": "2"},
            {"pp": 8, "ep": 32, "schedule": "interleaved:2"},
            "B200",
            {"dispatch": 8, "overlap": "experts", "recompute": "modules:mla_up_proj+mlp"},
        ),
        ({"model": "GPT OSS 120B", "precision": "BF16"}, {}, "B200", {"recompute": "modules:layernorm+moe_act"}),
        ({"model": "GPT OSS 120B", "precision": "BF16"}, {}, "B300", {}),
        ({"model": "GPT OSS 120B", "precision": "BF16"}, {"ep": 64}, "B300", {"dispatch": None}),
        ({"model": "GPT OSS 120B", "precision": "BF16"}, {"ep": 64}, "GB300", {"dispatch": None}),
    ],
)
def test_mixtures(cells, plan, hardware, expected):
    found = bridge_recipe(cells, {**PLAN, **plan}, hardware, 48, 128)
    found = {key: value for key, value in found.items() if key != "layers"}
    assert found == {key: value for key, value in {"dispatch": 1, **expected}.items() if value is not None}


def test_messages_hide_behind_another_micro_batch_in_pipelines_of_several_chunks_alone():
    cells = {"model": "Qwen3_235B_a22B", "precision": "FP8"}
    pipeline = {**PLAN, "tp": 2, "pp": 8, "schedule": "1f1b"}
    assert bridge_recipe(cells, pipeline, "H100", 94, 128) == {}
    chunks = {**pipeline, "schedule": "interleaved:4"}
    assert bridge_recipe(cells, chunks, "H100", 94, 128) == {"overlap": "experts"}


@pytest.mark.parametrize(("pp", "vp", "layers"), [("2", "8", "4*15+1"), ("16", "", "4*15+1"), ("8", "", "8*7+5")])
def test_the_last_chunk_of_deepseek_has_the_rest(pp, vp, layers):
    cells = {"model": "DeepSeekV3 (w/o MTP)", "precision": "BF16", "vp": vp}
    assert bridge_recipe(cells, {**PLAN, "pp": int(pp)}, "B200", 61, 256)["layers"] == layers


def test_products_of_dense_models_send_in_pieces_but_in_nvfp4():
    assert bridge_recipe({"model": "LLAMA3.1_405B", "precision": "NVFP4"}, {"tp": 4, "pp": 8}, "GB200", 126, 0) == {}


def test_one_graph_is_a_software_of_its_own():
    cells = {"release": "26.06.01", "precision": "MXFP8"}
    assert bridge_software(cells, "GB200", 128) == "Megatron-Bridge one graph"
    assert bridge_software(cells, "GB200", 0) == bridge_software(cells, "H100", 128) == "Megatron-Bridge"
    assert bridge_software({**cells, "release": "25.11"}, "GB200", 128) == "Megatron-Bridge"
    for samples in ("1", "2"):
        assert bridge_software({**cells, "model": "Kimi_K2", "micro_batch": samples}, "GB300", 384) == "Megatron-Bridge"
    for row in own_table(group_of("bridge")).rows:
        stack_of(stacks(), row.stack)

"""Megatron core on one host of eight B200, as SimuMax's authors measured it: bytes allocated of models cut short.

Names of cases say more than columns: ``cef`` fuses the loss, ``full_recompute`` and ``selective_recompute`` run layers
or attention again.  Of context-parallel devices keys and values go around a ring.  The models are those of SimuMax's
files: its Llama 3 405B has 16 heads of keys and values, its DeepSeeks one dense layer before those with experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.llama import llama_model
from topoplan_llm_measurements.rows import MEMORY, Cells, Group, MeasuredRow, Run

__all__ = ["SIMUMAX_MEMORY"]


def _deepseek(hidden: int, width: int, expert: int, experts: tuple[int, int, int], layers: int, words: int) -> Any:
    routed, shared, chosen = experts
    return {
        "model_type": "deepseek_v2" if routed < 256 else "deepseek_v3",
        "hidden_size": hidden,
        "intermediate_size": width,
        "moe_intermediate_size": expert,
        "n_routed_experts": routed,
        "n_shared_experts": shared,
        "num_experts_per_tok": chosen,
        "first_k_dense_replace": 1,
        "num_hidden_layers": layers,
        "vocab_size": words,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 1 << 20,
    }


_MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama3_8b": llama_model(4096, 14336, 32, 8, 32),
    "llama3_70b": llama_model(8192, 28672, 64, 8, 80),
    "llama3_405b": llama_model(16384, 53248, 128, 16, 126),
    "deepseekv2": _deepseek(5120, 12288, 1536, (160, 2, 6), 60, 102400),
    "deepseekv3": _deepseek(7168, 18432, 2048, (256, 1, 8), 61, 129280),
}
_STACK = "B200, Megatron core"


def _run(cells: Cells) -> Run:
    """Return what ran."""
    name, case = cells.get("model", ""), cells.get("case", "")
    if name not in _MODELS:
        raise TopoplanError(f"model: {shown(name)} is not known{nearest(name, _MODELS)}")
    if "cef" not in case.split("_"):
        raise TopoplanError(f"case: {shown(case)}: the loss is not fused (names of cases that are predicted have cef)")
    tp, pp, cp, ep = (count(cells, word, 1) for word in ("tp", "pp", "cp", "ep"))
    dp, gpus = count(cells, "dp_by_product"), count(cells, "gpus")
    if tp * pp * cp * dp != gpus:
        raise TopoplanError(f"tp {tp} x pp {pp} x cp {cp} x dp_by_product {dp} = {tp * pp * cp * dp}, not {gpus} gpus")
    micro_batch = count(cells, "micro_batch", 1)
    recompute = "full" if "full_recompute" in case else "selective" if "selective_recompute" in case else "none"
    return Run(
        model={**_MODELS[name], "num_hidden_layers": count(cells, "layers")},
        sequence_length=count(cells, "seq_len"),
        batch=dp * micro_batch * count(cells, "micro_batches"),
        devices=gpus,
        cluster={"machine": "dgx-b200"},
        plan={
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "dp": dp,
            "zero": 1,
            "grads": "fp32",
            "micro_batch": micro_batch,
            **({"ep": ep} if ep > 1 else {}),
            **({"cp_comm": "ring"} if cp > 1 else {}),
            "recompute": recompute,
            "overlap": "megatron",
        },
        kernels="megatron",
    )


def _row(cells: Cells) -> MeasuredRow:
    name = cells.get("model", "")
    return MeasuredRow(
        name="",
        workload=f"{name}, {cells.get('gpus')} GPUs, {cells.get('seq_len')} positions",
        left_out=name,
        stack=_STACK,
        run=_run(cells),
        measured=number(cells, "measured_alloc_gib"),
        quantity=MEMORY,
    )


SIMUMAX_MEMORY = Group(
    name="simumax-memory",
    title="Bytes allocated by Megatron core on eight B200: Llama 3, DeepSeek, cut to 4 or 12 layers (SimuMax)",
    table="simumax_b200",
    columns=("case", "model", "layers", "gpus", "tp", "pp", "cp", "dp_by_product", "seq_len", "measured_alloc_gib"),
    row=_row,
    of_memory=True,
)

"""Runs that papers report: Llama 3 405B, DeepSeek-V3."""

from __future__ import annotations

from typing import Any

from topoplan.errors import TopoplanError
from topoplan_llm_measurements.cells import count, number, word
from topoplan_llm_measurements.groups.published import published_model
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow, Predicted, Quantity, Run

__all__ = ["DEEPSEEK", "LLAMA3"]

# ── Llama 3 ────────────────────────────────────────────────────────────────────────────────────────────────

#: Parameters of the matrices that a token of Llama 3 405B is multiplied with, layers, and channels of its heads.
_MATRICES, _LAYERS, _CHANNELS = 403.75e9, 126, 16384
#: Billions of parameters of the model of table 4.
_BILLIONS = 405


def _model_tflops(run: Run, predicted: Predicted) -> float:
    """Return model TFLOP/s with causal attention, which table 4 reports as shares of the peak in bf16."""
    flops = 6 * _MATRICES + 6 * _LAYERS * run.sequence_length * _CHANNELS
    return run.batch * run.sequence_length * flops / run.devices / predicted.seconds / 1e12


def _llama3(cells: Cells) -> MeasuredRow:
    if (size := number(cells, "params_b")) != _BILLIONS:
        raise TopoplanError(f"params_b: {size:g} is no model of table 4 (expected {_BILLIONS})")
    tp, cp, pp, dp = (count(cells, name) for name in ("tp", "cp", "pp", "dp_fsdp"))
    positions, each = count(cells, "seq_len"), count(cells, "batch_per_dp")
    model = dict(published_model("llama3.1-405b"))
    run = Run(
        model={**model, "max_position_embeddings": max(positions, model["max_position_embeddings"])},
        sequence_length=positions,
        batch=each * dp,
        devices=count(cells, "gpus"),
        cluster={"machine": "dgx-h100"},
        plan={
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "dp": dp,
            "sp": True,
            "zero": 1,
            # FSDP gathers weights in forward passes, and keeps them until the last backward pass (section 3.3.2).
            "overlap_gather": True,
            "micro_batch": 1,
            # Chunks are not published; a stage of eight layers in two chunks.
            "schedule": "interleaved:2" if each % pp == 0 else "1f1b",
            "layers": "embedding+head",
            "overlap": "all",
            "layout": "tp-cp-pp-dp-ep",
        },
        precision="bf16",
    )
    return MeasuredRow(
        name="",
        workload=f"{positions} positions",
        left_out=f"{positions} positions, {run.devices} GPUs",
        stack="H100, Llama 3",
        run=run,
        measured=number(cells, "tflops_per_gpu"),
        quantity=Quantity(name="model TFLOP/s/GPU", of=_model_tflops, larger_is_better=True),
    )


LLAMA3 = Group(
    name="llama3",
    title="Llama 3 405B on 8,192 and 16,384 H100 (table 4)",
    table="llama3_table4",
    columns=("params_b", "gpus", "tp", "cp", "pp", "dp_fsdp", "seq_len", "batch_per_dp", "tflops_per_gpu"),
    row=_llama3,
)

# ── DeepSeek-V3 ────────────────────────────────────────────────────────────────────────────────────────────

_TRILLION = 1e12
_TOKENS_OF_TRAINING = 14.8e12
_HOUR = 3600.0


def _tokens(run: Run, predicted: Predicted) -> float:
    return run.batch * run.sequence_length / run.devices / predicted.seconds


#: What is measured, by the name of its row.
_QUANTITIES = {
    "tokens_per_s_per_gpu_derived": Quantity(name="tokens/s/GPU", of=_tokens, larger_is_better=True),
    "gpu_hours_per_trillion_tokens": Quantity(
        name="GPU hours/10^12 tokens", of=lambda run, predicted: _TRILLION / _tokens(run, predicted) / _HOUR
    ),
    "pretraining_gpu_hours": Quantity(
        name="GPU hours", of=lambda run, predicted: _TOKENS_OF_TRAINING / _tokens(run, predicted) / _HOUR
    ),
}


#: Units in which it is measured.
_UNITS = {
    "tokens_per_s_per_gpu_derived": ("tokens/s",),
    "gpu_hours_per_trillion_tokens": ("H800 h", "h"),
    "pretraining_gpu_hours": ("H800 h", "h"),
}


def _deepseek(cells: Cells) -> MeasuredRow:
    name = cells.get("quantity", "")
    if name not in _QUANTITIES:
        raise TopoplanError(f"quantity: {name} says what runs, and is no measurement")
    word(cells, "unit", _UNITS[name])
    plan: dict[str, Any] = {
        "pp": 16,
        "dp": 128,
        "ep": 64,
        "zero": 1,
        "micro_batch": 1,
        # Micro-batches enter at both ends, and what experts are sent hides behind another one (report, sections 3.2.1
        # and 3.2.2).
        "schedule": "dualpipe",
        # The last stage has the head and the extra prediction layer.  How many layers it has beside is not published:
        # as many as in Megatron-Bridge's recipes for sixteen stages (``recipes/deepseek``, pipeline layout 16, 1).
        "layers": "4*15+1",
        "overlap": "experts",
        "dispatch": 8,
        # Sections 3.2.3 and 3.3.3.
        "recompute": "modules:layernorm+moe_act+mla_up_proj",
        "grads": "fp32",
    }
    run = Run(
        model=published_model("DeepSeekV3"),
        sequence_length=4096,
        batch=15360,
        devices=2048,
        cluster={"machine": "hgx-h800"},
        plan=plan,
        precision="fp8",
        kernels="deepseek",
    )
    return MeasuredRow(
        name="",
        workload="DeepSeek-V3, 2,048 H800",
        left_out="DeepSeek-V3",
        stack="H800, DeepSeek",
        run=run,
        measured=number(cells, "value"),
        quantity=_QUANTITIES[name],
    )


DEEPSEEK = Group(
    name="deepseek-v3",
    title="DeepSeek-V3 on 2,048 H800: what its report says",
    table="deepseek_v3",
    columns=("quantity", "value", "unit"),
    row=_deepseek,
)

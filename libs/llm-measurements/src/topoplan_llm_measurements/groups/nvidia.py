"""What NVIDIA publishes of its trainers: MLPerf's logs, performance pages of NeMo and Megatron-Bridge, Megatron-Core.

Precisions and degrees are those of the tables.  Recomputation is not said there, and none is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import gpt_model
from topoplan_llm_measurements.groups.machines import check_precision, cluster_of, hardware_of
from topoplan_llm_measurements.groups.plans import megatron_plan, precision_of
from topoplan_llm_measurements.groups.published import published_model
from topoplan_llm_measurements.groups.recipes import bridge_recipe, bridge_software
from topoplan_llm_measurements.rows import SECONDS, TOKENS, Cells, Group, MeasuredRow, Quantity, Run

__all__ = ["BRIDGE", "LONG_SEQUENCES", "MEGATRON_CORE", "MLPERF", "NEMO"]


def _layers(model: Mapping[str, Any]) -> int:
    return int(model.get("num_hidden_layers", model.get("n_layer", 0)))


def _experts(model: Mapping[str, Any]) -> int:
    words = ("num_local_experts", "num_experts", "n_routed_experts")
    return int(next((model[word] for word in words if word in model), 0))


def _run(cells: Cells, model: Mapping[str, Any], hardware: str, devices: int, precision: str) -> Run:
    check_precision(hardware, precision)
    positions = count(cells, "seq_len")
    word = "n_positions" if "n_positions" in model else "max_position_embeddings"
    return Run(
        model={**model, word: max(positions, int(model.get(word, 0)))},
        sequence_length=positions,
        batch=count(cells, "global_batch"),
        devices=devices,
        cluster=cluster_of(hardware, devices),
        plan=megatron_plan(cells, devices, _layers(model), experts=_experts(model)),
        precision=precision,
    )


# ── MLPerf ─────────────────────────────────────────────────────────────────────────────────────────────────

_BENCHMARKS = {"gpt3": "GPT3-175B", "llama31_405b": "LLAMA3.1-405B", "llama31_8b": "LLAMA3.1-8B"}


def _mlperf(cells: Cells) -> MeasuredRow:
    benchmark, devices = cells.get("benchmark", ""), count(cells, "accelerators")
    if not cells.get("tp") or not cells.get("micro_batch"):
        raise TopoplanError("tp, micro_batch: are empty (the plan is not published)")
    if benchmark not in _BENCHMARKS:
        raise TopoplanError(f"benchmark: {shown(benchmark)} is not known (have: {', '.join(_BENCHMARKS)})")
    hardware = hardware_of(cells.get("accelerator", ""), "accelerator")
    # Submissions of these benchmarks run in fp8 unless they say fp4, where the device has it.
    precision = precision_of(cells.get("precision") or ("bf16" if hardware == "A100" else "fp8"))
    run = _run(cells, published_model(_BENCHMARKS[benchmark]), hardware, devices, precision)
    return MeasuredRow(
        name="",
        workload=f"{benchmark}, {hardware}",
        left_out=f"{benchmark}, {hardware}",
        stack=f"{hardware}, NeMo in MLPerf",
        run=run,
        measured=number(cells, "step_s_median" if cells.get("step_s_median") else "block_step_s_median"),
    )


MLPERF = Group(
    name="mlperf",
    title="steps of GPT-3 175B, Llama-3.1 405B and 8B in MLPerf Training 4.0 to 5.1",
    table="mlperf_training",
    columns=("benchmark", "accelerator", "accelerators", "global_batch", "micro_batch", "seq_len", "step_s_median"),
    row=_mlperf,
)


# ── Performance pages ──────────────────────────────────────────────────────────────────────────────────────


def _bridge(cells: Cells) -> MeasuredRow:
    task = cells.get("task", "")
    if task and task != "pre-training":
        raise TopoplanError(f"task: {shown(task)} is not pre-training")
    system, name, devices = cells.get("system", ""), cells.get("model", ""), count(cells, "gpus")
    hardware = hardware_of(system, "system")
    model = published_model(name)
    run = _run(cells, model, hardware, devices, precision_of(cells.get("precision", "")))
    words = bridge_recipe(cells, run.plan, hardware, _layers(model), _experts(model))
    return MeasuredRow(
        name="",
        workload=f"{name}, {system}, {devices} GPUs, batch {run.batch}",
        left_out=name.partition(" (")[0],
        stack=f"{hardware}, {bridge_software(cells, hardware, _experts(model))}",
        run=attrs.evolve(run, plan={**run.plan, **words}),
        measured=number(cells, "tokens_per_s_per_gpu"),
        quantity=TOKENS,
    )


BRIDGE = Group(
    name="bridge",
    title="performance pages of Megatron-Bridge: H100, B200, B300, GB200, GB300; dense models and mixtures of experts",
    table="nvidia_bridge_performance",
    columns=("model", "system", "gpus", "precision", "global_batch", "micro_batch", "seq_len", "tokens_per_s_per_gpu"),
    row=_bridge,
)


def _nemo(cells: Cells) -> MeasuredRow:
    name, devices = cells.get("model", ""), count(cells, "gpus")
    return MeasuredRow(
        name="",
        workload=f"{name}, {devices} GPUs",
        left_out=name,
        stack="H100, NeMo 24",
        run=_run(cells, published_model(name), "H100", devices, "fp8"),
        measured=number(cells, "iteration_s"),
        quantity=SECONDS,
    )


NEMO = Group(
    name="nemo",
    title="performance page of NeMo 24.07: DGX H100, fp8",
    table="nemo_2407_h100_fp8",
    columns=("model", "gpus", "global_batch", "micro_batch", "seq_len", "iteration_s"),
    row=_nemo,
)

#: Tokens of an iteration of the runs with long sequences.  The page does not say them; its batches of four million
#: tokens are four sequences of a million, one for each of four data parallel devices.
_LONG_TOKENS = 2**22


def _full_attention_flops(run: Run, layers: int, hidden: int, matrices: float) -> float:
    """Return model FLOPs of an iteration that count all pairs of positions, as the page does."""
    return run.batch * run.sequence_length * (6 * matrices + 12 * layers * run.sequence_length * hidden)


def _tflops(matrices: float, layers: int, hidden: int) -> Quantity:
    return Quantity(
        name="model TFLOP/s/GPU",
        of=lambda run, predicted: (
            _full_attention_flops(run, layers, hidden, matrices) / run.devices / predicted.seconds / 1e12
        ),
        larger_is_better=True,
    )


def _long(cells: Cells) -> MeasuredRow:
    positions, devices = 1024 * count(cells, "seq_len_k"), count(cells, "gpus")
    model = published_model("LLAMA2-7B")
    batch = max(_LONG_TOKENS // positions, count(cells, "dp"))
    words = {**cells, "seq_len": str(positions), "micro_batch": "1", "global_batch": str(batch)}
    return MeasuredRow(
        name="",
        workload="LLAMA2-7B",
        left_out=f"{positions} positions",
        stack="H100, NeMo 24.03",
        run=_run(words, model, "H100", devices, "fp8"),
        measured=number(cells, "tflops_with_cp"),
        quantity=_tflops(6.607e9, 32, 4096),
    )


LONG_SEQUENCES = Group(
    name="nemo-long",
    title="Llama-2 7B with sequences of 4,096 to 1,048,576 positions: NeMo 24.03, DGX H100, fp8",
    table="nemo_long_sequence_cp",
    columns=("seq_len_k", "gpus", "tflops_with_cp"),
    row=_long,
)


_CHUNK_LAYERS = 4
_CORE_GRADIENTS = {"grads": "fp32", "bucket_mb": 160.0}


def _core_schedule(layers: int) -> str:
    """Return the schedule of a rank with some layers, whose chunks are not published.

    Messages of pipelines are sent beside computation, as the readme says and as interleaved schedules alone do: chunks
    have some four layers each, or fewer where none of as many divide the layers.

    Examples:
        >>> _core_schedule(12), _core_schedule(7)
        ('interleaved:3', 'interleaved:7')
    """
    several = [chunks for chunks in range(2, layers + 1) if layers % chunks == 0]
    large = [chunks for chunks in several if layers // chunks >= _CHUNK_LAYERS]
    return f"interleaved:{max(large) if large else min(several)}" if several else "1f1b"


def _core(cells: Cells) -> MeasuredRow:
    hidden, layers = count(cells, "hidden"), count(cells, "layers")
    tp, pp, devices = (count(cells, word) for word in ("tp", "pp", "gpus"))
    positions, vocabulary = count(cells, "seq_len"), count(cells, "vocab")
    model = gpt_model(hidden, count(cells, "heads"), layers, positions, vocabulary, tp)
    # Micro-batches are not published.  All samples of a device are one where there is no pipeline, which is what lets
    # sums of gradients and gathers of weights hide; pipelines have as many as there are samples.
    samples = 1 if pp > 1 else max(count(cells, "global_batch") * tp // devices, 1)
    words = {**cells, "micro_batch": cells.get("micro_batch") or str(samples)}
    run = _run(words, model, "H100", devices, "bf16")
    # Megatron-LM's readme says that tensor parallel messages are sent beside products; its arguments sum gradients of
    # bf16 in fp32, in buckets of 40 million by default (megatron/core/distributed, bucket_size).
    run = attrs.evolve(run, plan={**run.plan, **({"async_tp": True} if tp > 1 else {}), **_CORE_GRADIENTS})
    if pp > 1:
        run = attrs.evolve(run, plan={**run.plan, "schedule": _core_schedule(layers // pp)})
    matrices = 12 * layers * hidden**2 + vocabulary * hidden
    return MeasuredRow(
        name="",
        workload="weak scaling",
        left_out=f"{number(cells, 'params_b'):g}B",
        stack="H100, Megatron-Core 2024",
        run=run,
        measured=number(cells, "model_tflops_per_gpu"),
        quantity=_tflops(matrices, layers, hidden),
    )


MEGATRON_CORE = Group(
    name="megatron-core",
    title="weak scaling of GPT 1.7B to 462B: Megatron-Core 2024, H100, bf16",
    table="megatron_core_2024_weak_scaling",
    columns=("params_b", "heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "model_tflops_per_gpu"),
    row=_core,
)

"""Bytes that torchtitan's allocator had reserved of Llama 3: FSDP, tensor, context and pipeline parallelism.

torchtitan logs what is reserved (``max_reserved``), which is more than what is allocated: by 4.0 % in the median of
SimuMax's 43 runs of Megatron, which measured both.  Runs say whether layers were compiled.  The loss is, with them,
since 2025; benchmarks say when they ran in the names of their files.  A pipeline divides a batch into as many
micro-batches as it has ranks.
"""

from __future__ import annotations

from typing import Any

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_llm_measurements.cells import count, number, word
from topoplan_llm_measurements.groups.llama import llama_model
from topoplan_llm_measurements.groups.machines import cluster_of, hardware_of
from topoplan_llm_measurements.groups.plans import torchtitan_micro_batch, torchtitan_schedule
from topoplan_llm_measurements.groups.published import published_model
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow, Quantity, Run

__all__ = ["TORCHTITAN_MEMORY"]

#: What is reserved over what is allocated.
_RESERVED = 1.04
_QUANTITY = Quantity(name="memory reserved, GiB", of=lambda run, predicted: _RESERVED * predicted.memory / 2**30)
_MODELS = {
    "llama2-7B": llama_model(4096, 11008, 32, 32, 32, 32000),
    "llama2-13B": llama_model(5120, 13824, 40, 40, 40, 32000),
    "llama2-70B": llama_model(8192, 28672, 64, 8, 80, 32000),
    "llama3-8B": llama_model(4096, 14336, 32, 8, 32),
    "llama3-70B": llama_model(8192, 28672, 64, 8, 80),
    "llama3-405B": llama_model(16384, 53248, 128, 8, 126),
}
_RECOMPUTE = {"none": "none", "full": "full", "selective-op": "op", "selective-layer": "every:2"}


def _row(cells: Cells) -> MeasuredRow:
    name, recompute = cells.get("model", ""), cells.get("recompute") or "none"
    model = dict(_MODELS.get(name.replace("llama3.1", "llama3")) or published_model(name))
    kind = hardware_of(cells.get("hardware", ""), "hardware")
    if recompute not in _RECOMPUTE:
        raise TopoplanError(f"recompute: {shown(recompute)} is not known{nearest(recompute, _RECOMPUTE)}")
    positions, devices = count(cells, "seq_len"), count(cells, "gpus")
    run = Run(
        model={**model, "max_position_embeddings": max(positions, model["max_position_embeddings"])},
        sequence_length=positions,
        batch=count(cells, "global_batch"),
        devices=devices,
        cluster=cluster_of(kind, devices),
        plan={**_degrees(cells), "recompute": _RECOMPUTE[recompute]},
        kernels=_kernels(word(cells, "compiled", ("compile", "eager")), cells.get("source", "")),
    )
    return MeasuredRow(
        name="",
        workload=f"{name}, {kind}, {devices} GPUs, {positions} positions",
        left_out=name,
        stack=f"{kind}, torchtitan",
        run=run,
        measured=number(cells, "memory_gib"),
        quantity=_QUANTITY,
    )


def _kernels(compiled: str, source: str) -> str:
    if compiled == "eager":
        return "torchtitan-eager"
    return "torchtitan" if _compiles_loss(source) else "torchtitan-2024"


def _compiles_loss(source: str) -> bool:
    """Whether a benchmark is of 2025 or later, by the date in its file's name."""
    digits = "".join(character if character.isdigit() else " " for character in source.replace("-", "")).split()
    return any(len(word) == len("202506") and "202501" <= word < "204000" for word in digits)


def _degrees(cells: Cells) -> dict[str, Any]:
    tp, pp, cp, samples = (count(cells, name, 1) for name in ("tp", "pp", "cp", "local_batch"))
    dp = count(cells, "fsdp", max(count(cells, "gpus") // (tp * pp * cp), 1))
    plan: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "zero": 3}
    plan["micro_batch"] = torchtitan_micro_batch(samples, pp)
    if pp > 1:
        plan |= {
            "schedule": torchtitan_schedule(cells.get("schedule", "")),
            "layers": "embedding+head",
            "reshard": False,
        }
    return plan


TORCHTITAN_MEMORY = Group(
    name="torchtitan-memory",
    title="Bytes reserved by torchtitan on H100 and H200: Llama 3.1 8B, 70B, 405B",
    table="torchtitan",
    columns=("model", "hardware", "gpus", "global_batch", "local_batch", "seq_len", "memory_gib"),
    row=_row,
    of_memory=True,
)

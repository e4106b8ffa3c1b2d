"""What PyTorch publishes of torchtitan: Llama 2 and 3 with FSDP, tensor, pipeline and context parallelism.

Selective activation checkpointing by operators keeps attention and every second product of a layer; by layers it runs
every second layer again.
"""

from __future__ import annotations

from typing import Any

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count, number, word
from topoplan_llm_measurements.groups.machines import check_precision, cluster_of, hardware_of
from topoplan_llm_measurements.groups.plans import precision_of, torchtitan_micro_batch, torchtitan_schedule
from topoplan_llm_measurements.groups.published import published_model
from topoplan_llm_measurements.rows import TOKENS, Cells, Group, MeasuredRow, Run

__all__ = ["TORCHTITAN"]

_RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective-layer": "every:2",
    "selective-op": "op",
}


def _row(cells: Cells) -> MeasuredRow:
    hardware, name, devices = cells.get("hardware", ""), cells.get("model", ""), count(cells, "gpus")
    kind = hardware_of(hardware, "hardware")
    recompute = cells.get("recompute") or "none"
    if recompute not in _RECOMPUTE:
        raise TopoplanError(f"recompute: {shown(recompute)} is not known (have: {', '.join(_RECOMPUTE)})")
    positions, batch = count(cells, "seq_len"), count(cells, "global_batch")
    model = dict(published_model(name))
    model["max_position_embeddings"] = max(positions, int(model["max_position_embeddings"]))
    precision = precision_of(cells.get("linear_precision") or "bf16")
    check_precision(kind, precision)
    how = word(cells, "compiled", ("compile", "eager"))
    power = " 500 W" if "500 W" in hardware else ""
    return MeasuredRow(
        name="",
        workload=f"{name}, {kind}{power}, {devices} GPUs, {positions} positions",
        left_out=name,
        stack=f"{kind}{power}, torchtitan{' eager' if how == 'eager' else ''}",
        run=Run(
            model=model,
            sequence_length=positions,
            batch=batch,
            devices=devices,
            cluster=cluster_of(kind, devices),
            plan={**_degrees(cells), "recompute": _RECOMPUTE[recompute]},
            precision=precision,
        ),
        measured=number(cells, "tokens_per_s_per_gpu"),
        quantity=TOKENS,
    )


def _degrees(cells: Cells) -> dict[str, Any]:
    tp, pp, cp = (count(cells, name, 1) for name in ("tp", "pp", "cp"))
    dp = count(cells, "fsdp", max(count(cells, "gpus") // (tp * pp * cp), 1))
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "micro_batch": torchtitan_micro_batch(count(cells, "local_batch"), pp),
        "zero": 3 if dp * cp > 1 else 0,  # weights are sliced among context parallel devices, too
        "overlap": "fsdp",
        "schedule": torchtitan_schedule(cells.get("schedule", "") if pp > 1 else ""),
    }
    if tp > 1:
        plan |= {"sp": True, "async_tp": word(cells, "async_tp", ("no", "yes")) == "yes"}
    if pp > 1:
        plan |= {"layers": "embedding+head", **({"reshard": False} if plan["zero"] else {})}
    return plan


TORCHTITAN = Group(
    name="torchtitan",
    title="Llama 2 and 3 by torchtitan: A100, H100 of 500 W, H200; bf16 and fp8",
    table="torchtitan",
    columns=("model", "hardware", "gpus", "global_batch", "local_batch", "seq_len", "tokens_per_s_per_gpu"),
    row=_row,
)

"""Iterations of GPT on 64 to 512 A100, which VIA-Research measured for vTrain with Megatron-DeepSpeed.

vTrain's configurations of them say 1F1B without chunks, full activation checkpointing, hosts of eight GPUs with 150
GB/s inside and 800 Gb/s between hosts.  Tensor parallelism of 16 devices lies on two hosts.

They also say ``use_gradient_bucket: false``: gradients, which are of two bytes as weights are, are summed when the last
backward pass has ended, so that their sums hide behind nothing.  DeepSpeed's engine of pipelines does the same
(``ReduceGrads`` behind all passes of a step).
"""

from __future__ import annotations

from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import check_degrees, gpt_model
from topoplan_llm_measurements.groups.plans import uneven_layers
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow, Run

__all__ = ["VTRAIN"]

_COLUMNS = (
    *("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len"),
    *("tp", "pp", "iteration_ms"),
)
_STACK = "A100, Megatron-DeepSpeed"
_NIC_GBPS = 800 / 8
#: More than the gradients of any device: all of a device are one bucket.
_ONE_BUCKET_MB = 1e6


def _row(cells: Cells) -> MeasuredRow:
    hidden, heads, layers = count(cells, "hidden"), count(cells, "heads"), count(cells, "layers")
    gpus, batch, positions = count(cells, "gpus"), count(cells, "global_batch"), count(cells, "seq_len")
    tp, pp = count(cells, "tp"), count(cells, "pp")
    dp = count(cells, "dp", max(gpus // (tp * pp), 1))
    check_degrees(gpus, tp, pp, dp)
    run = Run(
        model=gpt_model(hidden, heads, layers, positions, tp=tp),
        sequence_length=positions,
        batch=batch,
        devices=gpus,
        cluster={"machine": "dgx-a100", "interface_bandwidth_gbps": _NIC_GBPS},
        plan={
            "tp": tp,
            "dp": dp,
            "pp": pp,
            "sp": False,
            "micro_batch": count(cells, "micro_batch"),
            "recompute": "full",
            "bucket_mb": _ONE_BUCKET_MB,
            "overlap": "megatron",
            **uneven_layers(layers, pp),
        },
    )
    model = f"GPT h{hidden} L{layers}"
    return MeasuredRow(
        name="",
        workload=f"{model}, {gpus} GPUs, batch {batch}",
        left_out=model,
        stack=_STACK,
        run=run,
        measured=number(cells, "iteration_ms") / 1e3,
    )


def _refusal(rows: list[Cells]) -> str:
    if any(row.get("part") == "single" for row in rows):
        return "part: 'single' is a simulator's output, not a measurement (vTrain's single-node file): it is not judged"
    return ""


VTRAIN = Group(
    name="vtrain",
    title="GPT 3.6B to 175B on 64 to 512 A100, Megatron-DeepSpeed (vTrain)",
    table="vtrain_multi_measured",
    columns=_COLUMNS,
    row=_row,
    refusal=_refusal,
)

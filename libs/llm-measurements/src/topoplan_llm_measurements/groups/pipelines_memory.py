"""Bytes of Zero Bubble's schedules (table 4): GPT by Megatron-LM without fused attention, in fp16, on A100.

Sizes of models, and samples of a micro-batch, are those of the paper's table 3; a layer less is on the first and on the
last stage.  ``zb-1p`` and ``zb-2p`` are what its search finds for the activations of 1F1B and of twice as many: the
orders ZB-H1 and ZB-H2 stand for them here, the second of which holds a micro-batch less on the fullest stage.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import gpt_model
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow, Quantity, Run

__all__ = ["ZERO_BUBBLE_MEMORY"]

#: Model -> layers, heads, channels, samples of a micro-batch.
_MODELS = {
    "1.5B": (22, 24, 2304, 6),
    "6.2B": (30, 32, 4096, 3),
    "14.6B": (46, 40, 5120, 1),
    "28.3B": (62, 48, 6144, 1),
}
_SCHEDULES = {"1f1b": "1f1b", "zb-1p": "zb-h1", "zb-2p": "zb-h2", "zbv": "zbv", "v-half": "v-half", "v-min": "v-min"}
_POSITIONS = 1024
#: Decimal, as the paper's GB.
_GIGABYTES = Quantity(name="memory, GB", of=lambda run, predicted: predicted.memory / 1e9)


def _row(cells: Cells) -> MeasuredRow:
    name, schedule = cells.get("model", ""), cells.get("schedule", "")
    if name not in _MODELS:
        raise TopoplanError(f"model: {shown(name)} is not known{nearest(name, _MODELS)}")
    layers, heads, hidden, samples = _MODELS[name]
    stages, devices, micro_batches = count(cells, "pp"), count(cells, "gpus"), count(cells, "micro_batches")
    if devices % stages:
        raise TopoplanError(f"pp {stages} does not divide {devices} gpus")
    orders = {**_SCHEDULES, "1f1b-interleaved": f"interleaved:{(layers + 2) // stages}"}
    if schedule not in orders:
        raise TopoplanError(f"schedule: {shown(schedule)} is not known{nearest(schedule, orders)}")
    run = Run(
        model={**gpt_model(hidden, heads, layers, _POSITIONS, 50257), "resid_pdrop": 0.1},
        sequence_length=_POSITIONS,
        batch=micro_batches * samples * (devices // stages),
        devices=devices,
        cluster={"machine": "dgx-a100"},
        plan={"pp": stages, "micro_batch": samples, "schedule": orders[schedule], "layers": "embedding+head"},
        precision="fp16",
        kernels="megatron-local",
    )
    return MeasuredRow(
        name="",
        workload=f"{name}, {micro_batches} micro-batches",
        left_out=name,
        stack="A100, Megatron-DeepSpeed",
        run=run,
        measured=number(cells, "memory_gb"),
        quantity=_GIGABYTES,
    )


ZERO_BUBBLE_MEMORY = Group(
    name="zero-bubble-memory",
    title="Bytes of GPT 1.5B to 28.3B on 8 to 32 A100 by four schedules (Zero Bubble, table 4)",
    table="zero_bubble_table4",
    columns=("model", "gpus", "pp", "micro_batches", "schedule", "memory_gb"),
    row=_row,
    of_memory=True,
)

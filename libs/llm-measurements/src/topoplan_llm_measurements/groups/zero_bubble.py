"""Zero Bubble's schedules (arXiv 2401.10241, table 4): seconds and bytes of GPT by Megatron-LM, in fp16, on A100.

Sizes of models, and samples of a micro-batch, are those of the paper's table 3; a layer less is on the first and on the
last stage.  A chunk of ``1f1b-interleaved`` is one layer, where the embedding and the head count as one each.
``zb-1p`` and ``zb-2p`` are what its search finds for the activations of 1F1B and of twice as many: the order ZB-H1
stands for the first, and ZB-H2 with a micro-batch more, which twice as many leave room for, for the second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import gpt_model
from topoplan_llm_measurements.rows import SAMPLES, Cells, Group, MeasuredRow, Quantity, Run

__all__ = ["ZERO_BUBBLE", "ZERO_BUBBLE_MEMORY"]


class _Model(NamedTuple):
    layers: int
    heads: int
    hidden: int
    samples: int


_MODELS = {
    "1.5B": _Model(22, 24, 2304, 6),
    "6.2B": _Model(30, 32, 4096, 3),
    "14.6B": _Model(46, 40, 5120, 1),
    "28.3B": _Model(62, 48, 6144, 1),
}
_SCHEDULES = {"1f1b": "1f1b", "zb-1p": "zb-h1", "zb-2p": "zb-2p", "zbv": "zbv", "v-half": "v-half", "v-min": "v-min"}
_POSITIONS = 1024
#: Decimal, as the paper's GB.
_GIGABYTES = Quantity(name="memory, GB", of=lambda run, predicted: predicted.memory / 1e9)


def _model(cells: Cells) -> _Model:
    name = cells.get("model", "")
    if name not in _MODELS:
        raise TopoplanError(f"model: {shown(name)} is not known{nearest(name, _MODELS)}")
    return _MODELS[name]


def _run(cells: Cells, model: dict[str, Any], plan: dict[str, Any], kernels: str = "") -> Run:
    """Return the run of a row, whose plan has ``plan`` beside its schedule."""
    sizes, written = _model(cells), cells.get("schedule", "")
    stages, devices = count(cells, "pp"), count(cells, "gpus")
    if devices % stages:
        raise TopoplanError(f"pp {stages} does not divide {devices} gpus")
    orders = {**_SCHEDULES, "1f1b-interleaved": f"interleaved:{(sizes.layers + 2) // stages}"}
    if written not in orders:
        raise TopoplanError(f"schedule: {shown(written)} is not known{nearest(written, orders)}")
    return Run(
        model=model,
        sequence_length=_POSITIONS,
        batch=count(cells, "micro_batches") * sizes.samples * (devices // stages),
        devices=devices,
        cluster={"machine": "dgx-a100"},
        plan={
            "pp": stages,
            "dp": devices // stages,
            "micro_batch": sizes.samples,
            "schedule": orders[written],
            "layers": "embedding+head",
            **plan,
        },
        precision="fp16",
        kernels=kernels,
    )


def _measured(cells: Cells, run: Run, stack: str, column: str, quantity: Quantity) -> MeasuredRow:
    return MeasuredRow(
        name="",
        workload=f"{cells['model']}, {count(cells, 'micro_batches')} micro-batches",
        left_out=cells["model"],
        stack=stack,
        run=run,
        measured=number(cells, column),
        quantity=quantity,
    )


def _speed(cells: Cells) -> MeasuredRow:
    sizes = _model(cells)
    model = gpt_model(sizes.hidden, sizes.heads, sizes.layers, _POSITIONS)
    in_order = cells.get("schedule", "").startswith("1f1b")
    run = _run(cells, model, {"overlap": "megatron" if in_order else "all"})
    return _measured(cells, run, "A100, Zero Bubble", "samples_per_s_per_gpu", SAMPLES)


def _memory(cells: Cells) -> MeasuredRow:
    """Return a row of bytes: attention without fusion, and dropout whose masks are kept."""
    sizes = _model(cells)
    model = {**gpt_model(sizes.hidden, sizes.heads, sizes.layers, _POSITIONS, 50257), "resid_pdrop": 0.1}
    run = _run(cells, model, {}, kernels="megatron-local")
    return _measured(cells, run, "A100, Megatron-DeepSpeed", "memory_gb", _GIGABYTES)


_COLUMNS = ("model", "gpus", "pp", "micro_batches", "schedule")
ZERO_BUBBLE = Group(
    name="zero-bubble",
    title="GPT 1.5B to 28.3B on 8 to 32 A100 by four schedules (Zero Bubble, table 4)",
    table="zero_bubble_table4",
    columns=(*_COLUMNS, "samples_per_s_per_gpu"),
    row=_speed,
)
ZERO_BUBBLE_MEMORY = Group(
    name="zero-bubble-memory",
    title="Bytes of GPT 1.5B to 28.3B on 8 to 32 A100 by four schedules (Zero Bubble, table 4)",
    table="zero_bubble_table4",
    columns=(*_COLUMNS, "memory_gb"),
    row=_memory,
    of_memory=True,
)

"""GPT 175B on 256 to 12,288 GPUs of NVIDIA's Ampere generation, from MegaScale (arXiv 2402.15627), table 2.

Micro-batches are not given: one sample.  Both programs use FlashAttention and recompute nothing.  MegaScale also
changes the model (attention and the feed-forward part read the same sums, and attention has a window); its rows are
predicted with the model of the others, and its stack has constants of its own.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import gpt_run
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow

__all__ = ["MEGASCALE"]

_COLUMNS = (
    *("method", "heads", "hidden", "layers", "seq_len", "vocab", "gpus", "tp", "pp", "global_batch"),
    "iteration_s",
)
_STACKS = {"megatron-lm": "A100, Megatron-LM 2023", "megascale": "A100, MegaScale"}
#: MB that no device's gradients reach.
_ONE_BUCKET = 1e6


def _row(cells: Cells) -> MeasuredRow:
    method = cells.get("method", "")
    if method not in _STACKS:
        raise TopoplanError(f"method: {shown(method)} is none of {', '.join(_STACKS)}")
    plan = {
        "micro_batch": count(cells, "micro_batch", 1),
        "zero": 1,
        "overlap": "megatron" if method == "megatron-lm" else "all",
        "async_tp": method == "megascale",
        # MegaScale gathers the weights of a chunk ahead of its forward pass, the first ones before the iteration (3.2).
        "overlap_gather": method == "megascale",
        # Megatron-LM sums gradients when all passes are done: one bucket holds all of them.
        "bucket_mb": _ONE_BUCKET if method == "megatron-lm" else 0.0,
    }
    run = gpt_run(cells, plan, words=None)
    return MeasuredRow(
        name="",
        workload=f"{method}, batch {run.batch}, {run.devices} GPUs",
        left_out=f"megascale batch {run.batch}",
        stack=_STACKS[method],
        run=run,
        measured=number(cells, "iteration_s"),
    )


MEGASCALE = Group(
    name="megascale",
    title="GPT 175B on 256 to 12,288 Ampere GPUs, Megatron-LM and MegaScale (Jiang et al. 2024)",
    table="megascale_table2",
    columns=_COLUMNS,
    row=_row,
)

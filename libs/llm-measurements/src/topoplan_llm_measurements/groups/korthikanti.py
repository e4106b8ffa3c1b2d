"""Iterations of GPT 22B to 1T on 8 to 2,240 A100, from Korthikanti et al. 2022 (arXiv 2205.05198), table 5."""

from __future__ import annotations

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import SELENE, gpt_run
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow

__all__ = ["KORTHIKANTI"]

_COLUMNS = (
    *("heads", "hidden", "layers", "seq_len", "gpus", "tp", "pp", "global_batch", "micro_batch", "iteration_s"),
)
_RECOMPUTED = ("none", "selective", "full")


def _row(cells: Cells) -> MeasuredRow:
    recompute, sequence = cells.get("recompute") or "none", cells.get("sequence_parallel") or "no"
    if recompute not in _RECOMPUTED:
        raise TopoplanError(f"recompute: {shown(recompute)} is none of {', '.join(_RECOMPUTED)}")
    if sequence not in ("yes", "no"):
        raise TopoplanError(f"sequence_parallel: {shown(sequence)} is neither yes nor no")
    plan = {
        "sp": sequence == "yes" and count(cells, "tp") > 1,
        "micro_batch": count(cells, "micro_batch", 1),
        "recompute": recompute,
        "overlap": "megatron",
    }
    run = gpt_run(cells, plan)
    model = cells.get("model") or f"h{cells['hidden']} L{cells['layers']}"
    return MeasuredRow(
        name="",
        workload=f"GPT {model}, {run.devices} GPUs, batch {run.batch}",
        left_out=f"korthikanti {model}",
        stack=SELENE,
        run=run,
        measured=number(cells, "iteration_s"),
    )


KORTHIKANTI = Group(
    name="korthikanti",
    title="GPT 22B to 1T on 8 to 2,240 A100, Megatron-LM (Korthikanti et al. 2022)",
    table="korthikanti_2022_iteration",
    columns=_COLUMNS,
    row=_row,
)

"""GPT 1.7B to 1T on 32 to 3,072 A100, from Narayanan et al., SC'21 (arXiv 2104.04473), tables 1 and 2.

Micro-batches and chunks, which table 1 does not give, are those of Megatron-LM's ``examples/sc21/run_table_1.sh``; a
column ``micro_batch`` or ``vp`` counts before them.  Table 2 gives neither tensor nor pipeline degrees: eight tensor
parallel devices, as the text says; chunks are those of table 1 for as many stages.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count, number
from topoplan_llm_measurements.groups.gpt import SELENE, check_degrees, gpt_model, gpt_run, megatron_flops, schedule
from topoplan_llm_measurements.rows import Cells, Group, MeasuredRow, Predicted, Quantity, Run

__all__ = ["SC21_TABLE_1", "SC21_TABLE_2"]

#: (tp, pp) -> micro-batch and chunks of a rank.
_SCRIPT = {
    (1, 1): (16, 1),
    (2, 1): (16, 1),
    (4, 1): (16, 1),
    (8, 1): (8, 1),
    (8, 2): (4, 1),
    (8, 4): (2, 3),
    (8, 8): (2, 2),
    (8, 16): (1, 2),
    (8, 35): (1, 3),
    (8, 64): (1, 1),
}
#: Parameters in billions -> hidden, heads, layers of table 2.
_MODELS = {174.6: (12288, 96, 96), 529.6: (20480, 128, 105)}
_WORDS, _POSITIONS, _TENSOR = 51200, 2048, 8


def _tflops(run: Run, predicted: Predicted) -> float:
    model = run.model
    flops = megatron_flops(run.batch, run.sequence_length, model["n_layer"], model["n_embd"], model["vocab_size"])
    return flops / run.devices / predicted.seconds / 1e12


_TFLOPS = Quantity(name="TFLOP/s/GPU", of=_tflops, larger_is_better=True)


def _table_1(cells: Cells) -> MeasuredRow:
    tp, pp = count(cells, "tp"), count(cells, "pp")
    micro_batch, chunks = _SCRIPT.get((tp, pp), (1 if pp > 1 else 8, 1))
    plan = {
        "sp": False,
        "micro_batch": count(cells, "micro_batch", micro_batch),
        "recompute": cells.get("recompute") or "full",
        "overlap": "megatron",
    }
    run = gpt_run(cells, plan, words=_WORDS, chunks=chunks)
    model = f"GPT {cells['params_b']}B" if cells.get("params_b") else f"GPT h{cells['hidden']} L{cells['layers']}"
    return MeasuredRow(
        name="",
        workload=f"{model}, {run.devices} GPUs, batch {run.batch}",
        left_out=f"sc21 {model}",
        stack=SELENE,
        run=run,
        measured=number(cells, "achieved_tflops_per_gpu"),
        quantity=_TFLOPS,
    )


def _table_2(cells: Cells) -> MeasuredRow:
    scheme, size = cells.get("scheme", ""), number(cells, "params_b")
    gpus, batch, micro_batch = (count(cells, name) for name in ("gpus", "global_batch", "micro_batch"))
    if size not in _MODELS:
        raise TopoplanError(f"params_b: {size:g} is no model of the paper's table 2 ({', '.join(map(str, _MODELS))})")
    if scheme not in ("ptd", "zero3"):
        raise TopoplanError(f"scheme: {shown(scheme)} is neither ptd nor zero3")
    hidden, heads, layers = _MODELS[size]
    parallel = count(cells, "model_parallel")
    plan = {"zero": 3, "recompute": "full", "overlap": "fsdp", "micro_batch": micro_batch, "sp": False}
    tp = 1
    if scheme == "ptd":
        if parallel % _TENSOR:
            raise TopoplanError(f"model_parallel: {parallel} is no multiple of {_TENSOR}, the tensor parallel degree")
        tp, pp = _TENSOR, parallel // _TENSOR
        check_degrees(gpus, tp, pp)
        chunks = _SCRIPT.get((tp, pp), (1, 1))[1]
        plan = {"tp": tp, "pp": pp, "sp": False, "micro_batch": micro_batch, "recompute": "full", "grads": "fp32"}
        plan |= {"schedule": schedule(pp, chunks), "overlap": "megatron"}
    elif parallel > 1:
        raise TopoplanError(f"model_parallel: {parallel} with zero3 (expected 1)")
    run = Run(
        model=gpt_model(hidden, heads, layers, _POSITIONS, _WORDS, tp),
        sequence_length=_POSITIONS,
        batch=batch,
        devices=gpus,
        cluster={"machine": "dgx-a100"},
        plan=plan,
    )
    return MeasuredRow(
        name="",
        workload=f"GPT {size:g}B, {gpus} GPUs, batch {batch}",
        left_out=f"sc21 {scheme} {size:g}B",
        stack=SELENE if scheme == "ptd" else "A100, DeepSpeed ZeRO-3 2021",
        run=run,
        measured=number(cells, "achieved_tflops_per_gpu"),
        quantity=_TFLOPS,
    )


SC21_TABLE_1 = Group(
    name="sc21",
    title="GPT 1.7B to 1T on 32 to 3,072 A100, weak scaling of Megatron-LM (Narayanan et al. 2021, table 1)",
    table="megatron_sc21_table1",
    columns=(
        *("heads", "hidden", "layers", "seq_len", "gpus", "tp", "pp", "global_batch"),
        "achieved_tflops_per_gpu",
    ),
    row=_table_1,
)
SC21_TABLE_2 = Group(
    name="sc21-zero3",
    title="GPT 175B and 530B on 384 to 2,240 A100, Megatron-LM beside ZeRO-3 (Narayanan et al. 2021, table 2)",
    table="megatron_sc21_table2",
    columns=("scheme", "params_b", "model_parallel", "global_batch", "gpus", "micro_batch", "achieved_tflops_per_gpu"),
    row=_table_2,
)

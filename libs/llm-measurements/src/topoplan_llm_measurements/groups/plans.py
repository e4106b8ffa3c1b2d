"""Plans of Megatron-LM as tables state them: degrees, chunks, and what the trainer does by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError, shown
from topoplan_llm_measurements.cells import count
from topoplan_llm_measurements.rows import Cells

__all__ = ["megatron_plan", "precision_of", "torchtitan_micro_batch", "torchtitan_schedule", "uneven_layers"]

#: Part of a name -> precision.  What is beside it says how values are scaled: FP8-CS, FP8-SC, MXFP8, NVFP4.
_PRECISIONS = {
    "fp4": "fp4",
    "float4": "fp4",
    "fp8": "fp8",
    "float8": "fp8",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}


def precision_of(text: str) -> str:
    """Return bf16, fp16, fp8 or fp4, in which products with weights run.

    Examples:
        >>> precision_of("FP8-MX"), precision_of("NVFP4"), precision_of("bf16_mixed")
        ('fp8', 'fp4', 'bf16')
    """
    precisions = {precision for part, precision in _PRECISIONS.items() if part in text.lower()}
    if "bfloat16" in text.lower():
        precisions.discard("fp16")
    if not text:
        raise TopoplanError("precision: is empty (expected one such as BF16, FP8-CS, MXFP8 or NVFP4)")
    if len(precisions) != 1:
        raise TopoplanError(
            f"precision: {shown(text)} is not known (expected one such as BF16, FP8-CS, MXFP8 or NVFP4)"
        )
    return precisions.pop()


#: Schedule as torchtitan names it, without signs -> as a plan does; no name is 1F1B.
_SCHEDULES = {
    "": "1f1b",
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved:2",
    "interleaved1f1b": "interleaved:2",
    "zbvzerobubble": "zbv",
    "zbv": "zbv",
}


def torchtitan_schedule(text: str) -> str:
    """Return a schedule by torchtitan's name.

    Raises:
        TopoplanError: plans have none of the name.

    Examples:
        >>> torchtitan_schedule("Interleaved1F1B")
        'interleaved:2'
    """
    word = text.lower().replace("-", "").replace("_", "")
    if word not in _SCHEDULES:
        raise TopoplanError(f"schedule: {shown(text)} is not known (have: {', '.join(filter(None, _SCHEDULES))})")
    return _SCHEDULES[word]


def torchtitan_micro_batch(local_batch: int, ranks: int) -> int:
    """Return the samples of a micro-batch of a torchtitan run that says no number of them.

    A pipeline divides the batch into as many as it has ranks.

    Source: pytorch/torchtitan@9dec370 (``build_pipeline_schedule`` in ``parallelisms/pipelining_utils.py``).

    Raises:
        TopoplanError: that does not go.

    Examples:
        >>> torchtitan_micro_batch(32, 8), torchtitan_micro_batch(2, 1)
        (4, 2)
    """
    if local_batch % ranks:
        raise TopoplanError(f"pp {ranks} does not divide a local_batch of {local_batch}")
    return local_batch // ranks


def uneven_layers(layers: int, chunks: int) -> Mapping[str, str]:
    """Return how layers that chunks do not divide are dealt: with the embedding and the head, or fewer at first.

    Raises:
        TopoplanError: there are more chunks than layers.

    Examples:
        >>> uneven_layers(126, 16), uneven_layers(61, 8), uneven_layers(64, 8)
        ({'layers': 'embedding+head'}, {'layers': '7*3+8*5'}, {})
    """
    size, more = divmod(layers, chunks)
    if not more:
        return {}
    if (layers + 2) % chunks == 0:
        return {"layers": "embedding+head"}
    if not size:
        raise TopoplanError(f"pp x vp = {chunks} chunks are more than the {layers} layers")
    return {"layers": f"{size}*{chunks - more}+{size + 1}*{more}"}


def megatron_plan(cells: Cells, devices: int, layers: int, *, experts: int = 0) -> Mapping[str, Any]:
    """Return the plan of a row: optimizer state is shared, sequence parallelism is on beside tensor parallelism.

    Weights are gathered ahead of the next forward pass, as the configurations of NVIDIA's trainers say: Megatron-Bridge
    (``comm_overlap.py``: overlap_param_gather wherever there is data parallelism), NeMo-Framework-Launcher
    (``conf/training/gpt3``: overlap_param_sync) and Megatron-LM's weak scaling (README: ``--overlap-param-gather``).
    Layers that the chunks do not divide are dealt unevenly.

    Args:
        cells: ``tp``, ``pp``, ``cp``, ``vp``, ``ep``, ``fsdp``, ``micro_batch``; what is empty is 1.  ``dp`` follows.
        devices: of the run.
        layers: of the model.
        experts: of a layer; 0: it has none.
    """
    tp, pp, cp = (count(cells, word, 1) for word in ("tp", "pp", "cp"))
    chunks = count(cells, "vp", 1) if pp > 1 else 1
    if devices % (tp * pp * cp):
        raise TopoplanError(f"tp {tp} x pp {pp} x cp {cp} does not divide {devices} devices")
    dp = devices // (tp * pp * cp)
    if (stated := count(cells, "dp", dp)) != dp:
        raise TopoplanError(f"dp: {stated} x tp {tp} x pp {pp} x cp {cp} is not the {devices} devices (expected {dp})")
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "micro_batch": count(cells, "micro_batch", 1),
        "zero": 3 if _is_sharded(cells) else 1,
        "schedule": f"interleaved:{chunks}" if chunks > 1 else "1f1b",
        "overlap": "megatron",
    }
    if tp > 1:
        plan["sp"] = True
    if plan["zero"] == 1 and dp > 1:
        plan["overlap_gather"] = True
    plan |= uneven_layers(layers, pp * chunks)
    if experts and (ep := count(cells, "ep", 1)) > 1:
        if dp * cp * tp % ep or experts % ep:  # experts have a grid of their own
            raise TopoplanError(f"ep: {ep} does not divide {dp * cp * tp} devices of a stage and {experts} experts")
        plan["ep"] = ep
    return plan


def _is_sharded(cells: Cells) -> bool:
    """Whether weights are shared out: the column ``fsdp`` says it, or among how many devices."""
    text = cells.get("fsdp", "")
    return text == "fsdp" or (text not in ("", "0") and count(cells, "fsdp") > 1)

"""Plans of Megatron-LM as tables state them: degrees, chunks, and what the trainer does by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError
from topoplan_llm_measurements.cells import count
from topoplan_llm_measurements.rows import Cells

__all__ = ["megatron_plan", "precision_of"]

_PRECISIONS = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "fp8cs": "fp8", "fp8mx": "fp8", "float8": "fp8"}
_FP4 = ("nvfp4", "fp4")


def precision_of(text: str) -> str:
    """Return bf16, fp8 or fp4, in which products with weights run.

    Examples:
        >>> precision_of("FP8-MX")
        'fp8'
    """
    word = text.lower().replace("-", "").replace("_", "")
    if word in _FP4:
        return "fp4"
    if word not in _PRECISIONS:
        raise TopoplanError(f"precision: {text or 'is not said'}" if not text else f"precision: {text} is not known")
    return _PRECISIONS[word]


def _uneven(layers: int, chunks: int) -> str:
    """Return how layers that chunks do not divide are dealt: with the embedding and the head, or fewer at first."""
    if (layers + 2) % chunks == 0:
        return "embedding+head"
    size, more = divmod(layers, chunks)
    if not size:
        raise TopoplanError(f"pp x vp = {chunks} chunks are more than the {layers} layers")
    return f"{size}*{chunks - more}+{size + 1}*{more}"


def megatron_plan(cells: Cells, devices: int, layers: int, *, experts: int = 0) -> Mapping[str, Any]:
    """Return the plan of a row: optimizer state is shared, sequence parallelism is on beside tensor parallelism.

    Layers that the chunks do not divide are dealt unevenly.

    Args:
        cells: ``tp``, ``pp``, ``cp``, ``vp``, ``ep``, ``fsdp``, ``micro_batch``; what is empty is 1.
        devices: of the run.
        layers: of the model.
        experts: of a layer; 0: it has none.
    """
    tp, pp, cp = (count(cells, word, 1) for word in ("tp", "pp", "cp"))
    chunks = count(cells, "vp", 1) if pp > 1 else 1
    if devices % (tp * pp * cp):
        raise TopoplanError(f"tp {tp} x pp {pp} x cp {cp} does not divide {devices} devices")
    dp = devices // (tp * pp * cp)
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "micro_batch": count(cells, "micro_batch", 1),
        "zero": 3 if cells.get("fsdp", "") not in ("", "0", "1") else 1,
        "schedule": f"interleaved:{chunks}" if chunks > 1 else "1f1b",
        "overlap": "megatron",
    }
    if tp > 1:
        plan["sp"] = True
    if layers % (pp * chunks):
        plan["layers"] = _uneven(layers, pp * chunks)
    if experts and (ep := count(cells, "ep", 1)) > 1:
        # Megatron-LM lets experts span tensor and context parallel devices too; here they span data parallel ones.
        plan["ep"] = max(size for size in range(1, min(ep, dp) + 1) if dp % size == 0 and experts % size == 0)
    return plan

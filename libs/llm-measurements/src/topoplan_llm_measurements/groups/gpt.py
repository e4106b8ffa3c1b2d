"""GPT as Megatron-LM trains it, in the keys of Hugging Face's ``gpt2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError
from topoplan_llm_measurements.cells import count
from topoplan_llm_measurements.groups.plans import uneven_layers
from topoplan_llm_measurements.rows import Cells, Run

__all__ = ["SELENE", "check_degrees", "gpt_model", "gpt_run", "megatron_flops", "schedule"]

#: The stack of the papers of Megatron-LM's authors, 2021 and 2022: DGX A100 with eight NICs of 200 Gb/s.
SELENE = "A100, Megatron-LM 2021-22"
#: Words of Megatron-LM's vocabulary are padded to a multiple of this for each tensor-parallel device.
_PADDING = 128


def gpt_model(
    hidden: int, heads: int, layers: int, positions: int, vocabulary: int = 51200, tp: int = 1
) -> dict[str, Any]:
    """Return the keys of a GPT; the vocabulary is padded as Megatron-LM does it.

    Examples:
        >>> gpt_model(1024, 16, 24, 2048, 50257, tp=8)["vocab_size"]
        51200
    """
    step = _PADDING * tp
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": positions,
        "vocab_size": -(-vocabulary // step) * step,
    }


def check_degrees(gpus: int, tp: int, pp: int, dp: int | None = None) -> None:
    """Raise `TopoplanError` where degrees do not make the number of GPUs.

    Examples:
        >>> check_degrees(64, 8, 4)
    """
    if dp is not None and tp * dp * pp != gpus:
        raise TopoplanError(f"tp {tp} x dp {dp} x pp {pp} = {tp * dp * pp}, not the {gpus} of gpus")
    if gpus % (tp * pp):
        raise TopoplanError(f"tp {tp} x pp {pp} = {tp * pp} does not divide the {gpus} of gpus")


def gpt_run(cells: Cells, plan: Mapping[str, Any], *, words: int | None = 51200, chunks: int = 1) -> Run:
    """Return the run of a row with the columns of Megatron-LM's papers, on DGX A100.

    Args:
        cells: ``hidden``, ``heads``, ``layers``, ``seq_len``, ``gpus``, ``tp``, ``pp``, ``global_batch``; perhaps
            ``vocab``, and ``vp``, the chunks of a rank.
        plan: what the plan says beside degrees, schedule, and gradients in fp32.
        words: of the vocabulary, where the row has none; None where it must.
        chunks: of a rank, where the row has none.

    Raises:
        TopoplanError: a cell is empty or no such number, or degrees do not make the number of GPUs.
    """
    tp, pp, gpus = (count(cells, name) for name in ("tp", "pp", "gpus"))
    check_degrees(gpus, tp, pp, count(cells, "dp") if cells.get("dp") else None)
    hidden, heads, layers, positions = (count(cells, name) for name in ("hidden", "heads", "layers", "seq_len"))
    chunks = count(cells, "vp", chunks) if pp > 1 else 1
    return Run(
        model=gpt_model(hidden, heads, layers, positions, count(cells, "vocab", words), tp),
        sequence_length=positions,
        batch=count(cells, "global_batch"),
        devices=gpus,
        cluster={"machine": "dgx-a100"},
        plan={
            "tp": tp,
            "pp": pp,
            "schedule": schedule(pp, chunks),
            "grads": "fp32",
            **uneven_layers(layers, pp * chunks),
            **plan,
        },
    )


def schedule(pp: int, chunks: int) -> str:
    """Return the schedule of Megatron-LM with so many chunks of layers on each rank."""
    return f"interleaved:{chunks}" if chunks > 1 and pp > 1 else "1f1b"


def megatron_flops(batch: int, positions: int, layers: int, hidden: int, vocabulary: int) -> float:
    """Return the FLOPs of an iteration with full recomputation (Narayanan et al., SC'21, equation 3).

    Examples:
        Their 174.6B parameters at a batch of 1536:

        >>> round(megatron_flops(1536, 2048, 96, 12288, 51200) / 1e18, 2)
        4.51
    """
    terms = 1 + positions / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return 96.0 * batch * positions * layers * hidden**2 * terms

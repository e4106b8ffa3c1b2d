"""GPT as Megatron-LM trains it, in the keys of Hugging Face's ``gpt2``."""

from __future__ import annotations

from typing import Any

from topoplan.errors import TopoplanError

__all__ = ["SELENE", "check_degrees", "gpt_model", "megatron_flops", "schedule"]

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

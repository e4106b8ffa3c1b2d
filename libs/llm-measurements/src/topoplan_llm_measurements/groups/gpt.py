"""GPT as Megatron-LM trains it, in the keys of Hugging Face's ``gpt2``."""

from __future__ import annotations

from typing import Any

__all__ = ["gpt_model"]

#: Words of Megatron-LM's vocabulary are padded to a multiple of this for each tensor-parallel device.
_PADDING = 128


def gpt_model(hidden: int, heads: int, layers: int, positions: int, vocabulary: int = 51200, tp: int = 1) -> Any:
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

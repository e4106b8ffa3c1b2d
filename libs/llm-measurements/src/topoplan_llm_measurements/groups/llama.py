"""Llama in the keys of Hugging Face's ``llama``, at any number of positions."""

from __future__ import annotations

from typing import Any

__all__ = ["llama_model"]

#: Positions that a model may have.
_MOST = 1 << 20


def llama_model(hidden: int, width: int, heads: int, kv_heads: int, layers: int, words: int = 128256) -> dict[str, Any]:
    """Return the keys.

    Examples:
        >>> llama_model(4096, 14336, 32, 8, 32)["vocab_size"]
        128256
    """
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "vocab_size": words,
        "max_position_embeddings": _MOST,
    }

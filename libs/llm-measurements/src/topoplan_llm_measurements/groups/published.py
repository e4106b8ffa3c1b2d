"""Published models by the names that tables of measurements give them.

Most are in ``models.json``, in the keys of their ``config.json``; a few are written here in the keys of a family that
has the same products.  A name that is neither is refused with what it is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_llm_measurements.groups.gpt import gpt_model

__all__ = ["published_model"]


def _squared_relu(hidden: int, layers: int, heads: int, groups: int, ffn: int) -> dict[str, Any]:
    """Return Nemotron-4 in the keys of Llama: two matrices of ``ffn`` are as much work as three of two thirds of it."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn * 2 // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": 256000,
        "max_position_embeddings": 4096,
    }


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    """Return gpt-oss: every second layer, from the first on, attends to a window of 128 positions."""
    return {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
    }


#: Models without a preset.  GPT-3's sizes beside 175B are NeMo's (24 layers of 4,096, 44 of 6,144), as is Nemotron-3.
_WRITTEN: Mapping[str, Mapping[str, Any]] = {
    "gptoss120b": _gpt_oss(36, 128),
    "gptoss20b": _gpt_oss(24, 32),
    "gpt35b": gpt_model(4096, 32, 24, 2048),
    "gpt320b": gpt_model(6144, 48, 44, 2048),
    "gpt3175b": gpt_model(12288, 96, 96, 2048, tp=8),
    "nemotron8b": gpt_model(4096, 32, 32, 4096, 256000, tp=8),
    "nemotron415b": _squared_relu(6144, 32, 48, 8, 24576),
    "nemotron22b": gpt_model(6144, 48, 40, 4096, 256000, tp=8),
    "nemotron340b": _squared_relu(18432, 96, 96, 8, 73728),
    "nemotron4340b": _squared_relu(18432, 96, 96, 8, 73728),
}
#: What is refused, by the beginning of its name, and why.
_REFUSED = {
    "nemotron3": "has state-space (Mamba) layers, which the frontend does not build",
    "nemotronh": "has state-space (Mamba) layers, which the frontend does not build",
    "deepseekv4": "has sparse attention, which the frontend does not build",
}


@functools.cache
def _models() -> dict[str, dict[str, Any]]:
    """Return the models of ``models.json`` by name."""
    text = files("topoplan_llm_measurements").joinpath("data", "models.json").read_text("utf-8")
    return dict(json.loads(text))


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def published_model(name: str) -> Mapping[str, Any]:
    """Return the keys of a model by the name that a table gives it; what is in parentheses is a note.

    Raises:
        TopoplanError: it is not known, or of a form that cannot be built.

    Examples:
        >>> published_model("LLAMA3.1_405B")["num_hidden_layers"]
        126
    """
    word = _word(re.sub(r"\([^)]*\)", "", name))
    if word in _WRITTEN:
        return _WRITTEN[word]
    if name_there := next((each for each in _models() if _word(each) == word), ""):
        keys = dict(_models()[name_there])
        if "num_nextn_predict_layers" in keys and "w/o MTP" in name:
            keys["num_nextn_predict_layers"] = 0
        return keys
    for beginning, reason in _REFUSED.items():
        if word.startswith(beginning):
            raise TopoplanError(f"model: {shown(name)} {reason}")
    names = [*_WRITTEN, *_models()]
    raise TopoplanError(f"model: {shown(name)} is none whose dimensions are known here{nearest(word, names)}")

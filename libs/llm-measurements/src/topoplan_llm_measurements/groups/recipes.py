"""What Megatron-Bridge's recipes of its performance pages say beside the pages: dispatchers, overlaps, layouts.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b, ``src/megatron/bridge/perf_recipes``, and, for earlier releases,
``scripts/performance/configs`` of its history.  A recipe is of a model on a kind of device in a precision; of what
they say, this is what plans have words for:

- Products along tensor parallel devices send and receive in pieces (user buffers) in models without experts, but in
  NVFP4.
- Tokens reach experts by HybridEP or DeepEP, once for each device, or host, that has some of their experts; where the
  recipes say so, by an all-to-all for each expert.
- From release 26.06 on mixtures in MXFP8 on GB200, GB300 and B300 run as one CUDA graph (``cuda_graph_impl`` is
  ``full_iteration``) with fused kernels of experts and attention in fp8, which are a software of their own, where their
  recipes say so: not those of Kimi-K2, nor of gpt-oss 120B on B300.  Messages of experts hide behind another
  micro-batch there; before, that is so for some models alone.  Pipelines need several chunks.
- Layers of DeepSeek-V3 and Kimi-K2 fill all chunks but the last one, which has the head.
- Parts of layers run again: projections of MLA from their inner channels, and normalizations and activations of experts
  of gpt-oss where memory is 180 GB or less.
- gpt-oss has HybridEP where its experts are inside a host (since 26.02.01), and an all-to-all where they are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topoplan_llm_measurements.cells import count
from topoplan_llm_measurements.rows import Cells

__all__ = ["bridge_recipe", "bridge_software"]

_SOFTWARE = "Megatron-Bridge"
#: Hardware, and the first release, of mixtures in MXFP8 that run as one graph.
_GRAPHS, _FIRST_RELEASE = ("GB200", "GB300", "B300"), (26, 6)
#: (part of a model's name, hardware) of recipes in MXFP8 whose graphs, if any, are of parts of layers.
_GRAPHS_OF_PARTS = {("kimik2", "GB200"), ("kimik2", "GB300"), ("kimik2", "B300"), ("gptoss", "B300")}
#: (part of a model's name, hardware) of recipes with an all-to-all for each expert.
_BY_EXPERTS = {
    ("qwen3235b", "H100"),
    ("qwen3235b", "B200"),
    ("qwen3235b", "B300"),
    ("gptoss", "H100"),
    ("gptoss", "GB300"),
    ("gptoss", "GB200"),
    ("kimik2", "H100"),
    ("kimik2", "B200"),
    ("kimik2", "B300"),
}
#: (part of a model's name, hardware) of recipes before those whose messages hide behind another micro-batch.
_OVERLAPPED = {("qwen3235b", "H100"), ("qwen3235b", "B300"), ("deepseekv3", "H100"), ("deepseekv3", "B200")}
#: Part of a model's name -> hardware whose recipes run parts of layers again (none: all), and the parts, as Megatron-LM
#: names them.  With two chunks DeepSeek-V3 on B200 runs its dense layers again, too.
_AGAIN = {
    "deepseekv3": ((), "mla_up_proj"),
    "kimik2": ((), "mla_up_proj"),
    "gptoss": (("H100", "B200", "GB200"), "layernorm+moe_act"),
}
#: Models whose last chunk has what is left of layers.
_REST_AT_LAST = ("deepseekv3", "kimik2")
#: Devices that share NVLinks, which are all of a rack or those of a host.
_RACK, _HOST = 64, 8


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _release(cells: Cells) -> tuple[int, ...]:
    """Return year and month of a release; nothing where none is said."""
    return tuple(int(part) for part in re.findall(r"\d+", cells.get("release", ""))[:2])


def _is_one_graph(cells: Cells, hardware: str, experts: int) -> bool:
    release = _release(cells)
    precision = _word(cells.get("precision", ""))
    is_one = bool(experts) and hardware in _GRAPHS and "mx" in precision and release >= _FIRST_RELEASE
    return is_one and not _is_named(_GRAPHS_OF_PARTS, _word(cells.get("model", "")), hardware)


def _is_named(recipes: set[tuple[str, str]], model: str, hardware: str) -> bool:
    """Return whether recipes have one of a model, whose name is a word, on a kind of device."""
    return any(part in model and kind == hardware for part, kind in recipes)


def _again(cells: Cells, hardware: str, *, one_graph: bool) -> str:
    """Return the parts of layers that run again; empty where none do."""
    model, precision = _word(cells.get("model", "")), _word(cells.get("precision", ""))
    for part, (kinds, modules) in _AGAIN.items():
        if part not in model or (kinds and hardware not in kinds):
            continue
        if part == "deepseekv3":
            if hardware == "GB300" and (one_graph or "bf16" in precision or () < _release(cells) < (26,)):
                return "" if one_graph else "moe_act"
            several = hardware in ("B200", "H100") and count(cells, "vp", 1) > 1
            return f"{modules}+mlp" if several else modules
        return "" if one_graph else modules
    return ""


def bridge_software(cells: Cells, hardware: str, experts: int) -> str:
    """Return the software of a row, as stacks name it.

    Args:
        cells: ``release``, such as 26.06, and ``precision``.
        hardware: kind of device.
        experts: of a layer; 0: it has none.

    Examples:
        >>> bridge_software({"release": "26.06", "precision": "MXFP8"}, "GB300", 128)
        'Megatron-Bridge one graph'
    """
    return f"{_SOFTWARE} one graph" if _is_one_graph(cells, hardware, experts) else _SOFTWARE


def bridge_recipe(cells: Cells, plan: Mapping[str, Any], hardware: str, layers: int, experts: int) -> Mapping[str, Any]:
    """Return what a recipe adds to the plan of a row.

    Args:
        cells: ``model``, ``release`` and ``precision``.
        plan: of the row.
        hardware: kind of device.
        layers: of the model.
        experts: of a layer; 0: it has none.

    Examples:
        >>> bridge_recipe({"model": "LLAMA3.1_405B", "precision": "FP8"}, {"tp": 4, "pp": 1}, "GB200", 126, 0)
        {'async_tp': True}
    """
    model, words = _word(cells.get("model", "")), dict[str, Any]()
    if not experts:
        return {"async_tp": True} if plan["tp"] > 1 and "fp4" not in _word(cells.get("precision", "")) else {}

    one_graph = _is_one_graph(cells, hardware, experts)
    ep, island = plan.get("ep", 1), _RACK if hardware.startswith("G") else _HOST
    by_experts = _is_named(_BY_EXPERTS, model, hardware) or ("gptoss" in model and ep > island)
    if ep > 1 and (one_graph or not by_experts):
        words["dispatch"] = 1 if ep <= island else island
    if (
        ep > 1
        and (one_graph or _is_named(_OVERLAPPED, model, hardware))
        and (plan["pp"] == 1 or ":" in plan["schedule"])
    ):
        words["overlap"] = "experts"
    if modules := _again(cells, hardware, one_graph=one_graph):
        words["recompute"] = f"modules:{modules}"
    chunks = plan["pp"] * count(cells, "vp", 1) if plan["pp"] > 1 else 1
    size = -(-layers // chunks)
    remainder = layers - size * (chunks - 1)
    if any(part in model for part in _REST_AT_LAST) and chunks > 1 and 0 < remainder < size:
        words["layers"] = f"{size}*{chunks - 1}+{remainder}"
    return words

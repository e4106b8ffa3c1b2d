"""Which models the trainers cannot build, whatever the plan.

Read from Megatron-LM d98e8a6 (megatron/training/arguments.py, core/transformer/transformer_layer.py) and from
torchtitan b5bcd76 (models, experiments/transformers_modeling_backend).  Families are those of transformers, by
``model_type``, which names the graphs of frontend ``huggingface``.  Models of other names are the user's, and pass.
"""

from __future__ import annotations

from types import MappingProxyType

from topoplan import OperatorGraph
from topoplan_exporter_launch.tensor import has_matrix
from topoplan_pipeline_planning.layer_names import layer_of

__all__ = ["has_no_pipelines", "why_not_in_megatron", "why_not_in_torchtitan"]

_ALIBI = "it adds ALiBi to its attention (--position-embedding-type has none)"
_GATED_GELU = "it multiplies by gates of GELU (gates are --swiglu and --quick-geglu)"
_NORMS_AFTER = "it normalizes what attention and matrices give, not what they read"
_NOT_IN_MEGATRON = MappingProxyType(
    {
        **dict.fromkeys(("bloom", "mpt"), _ALIBI),
        **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GATED_GELU),
        **dict.fromkeys(("exaone4", "glm4", "olmo2", "olmo3"), _NORMS_AFTER),
        "opt": "it computes ReLU (there are GELU, --squared-relu and --swiglu)",
        "vit": "it classifies images (pretrain_vlm.py trains a language model that reads them)",
    }
)
#: Families with experts that torchtitan has only as transformers' models, which it does not cut into stages.
_NO_PIPELINES = (
    "deepseek_v2",
    "dots1",
    "glm4_moe",
    "granitemoe",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
)
#: Where models of transformers have their layers that torchtitan does not find (`layers`, in `model`).
_OTHER_LAYERS = (
    *("transformer.h", "transformer.blocks", "gpt_neox.layers", "model.decoder.layers"),
    *("bert.encoder.layer", "vit.encoder.layer"),
)


def why_not_in_megatron(graph: OperatorGraph) -> str:
    """Return why Megatron-LM has no such model; empty if it may have.

    >>> from topoplan.testing import reference
    >>> why_not_in_megatron(reference.graph())
    ''
    """
    why = _NOT_IN_MEGATRON.get(graph.name, "")
    if not why and _runs_side_by_side(graph):
        why = "its layers run attention and matrices side by side, not one after the other"
    if not why and any(op.kind == "conv2d" for op in graph.operators):
        why = "it convolves images, and pretrain scripts are of transformers over tokens"
    return why and f"Megatron-LM has no model {graph.name!r}: {why}"


def why_not_in_torchtitan(graph: OperatorGraph) -> str:
    """Return why torchtitan has no such model; empty if it may have.

    >>> from topoplan.testing import reference
    >>> why_not_in_torchtitan(reference.graph())
    ''
    """
    first = next((op.name for op in graph.operators if op.weights and layer_of(op.name) is not None), "")
    place = first.partition(f".{layer_of(first)}.")[0] if first else ""
    if place not in _OTHER_LAYERS:
        return ""
    return (
        f"torchtitan has no model {graph.name!r}, whose layers are in {place!r}: models of transformers that it trains "
        "have them in 'model.layers'"
    )


def has_no_pipelines(graph: OperatorGraph) -> bool:
    """Whether torchtitan has the model as one of transformers with experts, which it does not cut into stages."""
    return graph.name in _NO_PIPELINES


def _runs_side_by_side(graph: OperatorGraph) -> bool:
    """Whether a layer has matrices that neither feed its attention nor read what it gives."""
    ops = graph.operators
    first = next((index for index, op in enumerate(ops) if op.kind == "scaled_dot_product_attention"), -1)
    layer = layer_of(ops[first].name) if first >= 0 else None
    if layer is None:
        return False
    inside = {index for index, op in enumerate(ops) if layer_of(op.name) == layer}
    edges = [(u, v) for u, _, v, _ in graph.edges.tolist() if u in inside and v in inside]
    sources, readers = {first}, {first}
    for u, v in edges:  # sorted by consumer
        if u in readers:
            readers.add(v)
    for u, v in reversed(edges):
        if v in sources:
            sources.add(u)
    return any(has_matrix(ops[index]) and index not in sources | readers for index in inside)

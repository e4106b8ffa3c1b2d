"""What a plan says of a file: the precision that it states, defaults of keys that it lacks, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import shown
from topoplan_engine.model_notes import with_note
from topoplan_engine.precision import stating
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.classes import Chosen
from topoplan_frontend_huggingface.encoders import Bert, Vit
from topoplan_frontend_huggingface.families import GroupedKeys
from topoplan_frontend_huggingface.gpt2 import Gpt2
from topoplan_frontend_huggingface.reading import key, lacking, values
from topoplan_frontend_huggingface.relatives import DECODERS

__all__ = ["annotated"]

#: Types of PyTorch -> precision of training.
_PRECISIONS = MappingProxyType(
    {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
)
#: Keys that say nothing of a model without windows.
_OF_WINDOWS = ("sliding_window", "max_window_layers")
#: Families whose queries all have keys and values of their own: their files have no key for that.
_ONE_EACH = ("gpt_neox", "phi")
#: Families that are no decoders -> their class of keys.
_OTHERS: Mapping[str, type[Any]] = MappingProxyType({"gpt2": Gpt2, "bert": Bert, "vit": Vit})


@attrs.frozen(kw_only=True)
class _Training:
    """Keys that say how a model is trained, not what it is."""

    dtype: str | None = key(None, names=("torch_dtype",))
    num_nextn_predict_layers: int | None = key(None, minimum=0, names=("num_mtp_layers",))


def annotated(
    graph: OperatorGraph, built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str
) -> OperatorGraph:
    """Return a model that says the precision of its file, and what was taken that the file does not say.

    Raises:
        TopoplanError: a type that nothing is trained in.
    """
    training = values(_Training, document, where)
    if training.dtype not in (None, "auto"):
        source = "dtype" if "dtype" in document else "torch_dtype"
        word = str(training.dtype).removeprefix("torch.")
        if word not in _PRECISIONS:
            raise TopoplanError(
                f"{where}: {source}: {shown(training.dtype)} is not a type to train in (one of float32, bfloat16, "
                "float16)"
            )
        graph = stating(graph, _PRECISIONS[word], f"{source} of {where}")
    else:
        graph = stating(graph, "fp32", f"no torch_dtype in {where}")
    graph = with_note(graph, "keys not in the file", _defaults(built, document))
    form = (document.get("quantization_config") or {}).get("quant_method")
    if form:
        text = f"weights of the file are {form}, those that are trained are not (--precision fp8 multiplies in fp8)"
        graph = with_note(graph, "quantization", text)
    if text := _longer(built, document, options, where):
        graph = with_note(graph, "positions", text)
    count = training.num_nextn_predict_layers or 0
    if count and options.prediction_layers is None and built.task == "ForCausalLM" and built.family in DECODERS:
        text = f"num_nextn_predict_layers {count} (-o prediction-layers={count} trains them, too)"
        graph = with_note(graph, "left out", text)
    return graph


def _longer(built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str) -> str:
    """Return that samples have more positions than the model was made for; empty where they have not."""
    cls = DECODERS.get(built.family)
    most = getattr(values(cls, document, where), "max_position_embeddings", None) if cls is not None else None
    if most is None or options.sequence_length is None or options.sequence_length <= most:
        return ""
    return f"{options.sequence_length} (-o sequence-length), more than max_position_embeddings {most}"


def _defaults(built: Chosen, document: Mapping[str, Any]) -> str:
    """Return the defaults that were taken, in one line; empty where the file has all keys."""
    cls = DECODERS.get(built.family) or _OTHERS[built.family]
    defaults = lacking(cls, document)
    if "use_sliding_window" in attrs.fields_dict(cls) and not document.get("use_sliding_window"):
        defaults = {name: value for name, value in defaults.items() if name not in _OF_WINDOWS}
    entries = [f"{name} {value}" for name, value in defaults.items()]
    shares = issubclass(cls, GroupedKeys) and attrs.fields_dict(cls)["num_key_value_heads"].default is None
    if shares and document.get("num_key_value_heads") is None and built.family not in _ONE_EACH:
        entries.append("num_key_value_heads as num_attention_heads")
    if not entries:
        return ""
    return f"{', '.join(entries)} (defaults of {built.family})"

"""From a file and options to a graph: which family it is of, how many positions and layers it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import attrs

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import nearest, shown
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.decoders import decoder
from topoplan_frontend_huggingface.encoders import Bert, BertHead, Vit, VitHead, bert, vit
from topoplan_frontend_huggingface.families import DECODERS
from topoplan_frontend_huggingface.gpt2 import Gpt2, gpt2
from topoplan_frontend_huggingface.reading import key, read_config, values
from topoplan_operators import GraphBuilder

__all__ = ["MODEL_TYPES", "build"]

#: All that are read.
MODEL_TYPES = (*DECODERS, "gpt2", "bert", "vit")
#: Samples of a batch, and positions of a sample, unless users say how many.
_BATCH, _POSITIONS = 64, 4096
#: transformers' name of an activation -> the algebra's.
_ACTIVATIONS = {
    **{name: name for name in ("silu", "relu", "tanh", "sigmoid", "gelu")},
    "swish": "silu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "gelu_python"), "gelu"),
}


@attrs.frozen(kw_only=True)
class _Head:
    """Keys that say what the file is of."""

    model_type: str = key("")
    architectures: tuple[str, ...] | None = key(None)
    num_labels: int | None = key(None)


def build(options: HuggingFace, batch_size: int | None) -> OperatorGraph:
    """Build the graph of a file.

    Raises:
        TopoplanError: the file cannot be read, is of an unknown family, or has a key of a wrong type or value.
    """
    if not options.config:
        raise TopoplanError("frontend huggingface: config is missing (-o config=config.json, or the folder with it)")
    document, where = read_config(options.config)
    head = values(_Head, document, where)
    if head.model_type not in MODEL_TYPES:
        if "model_type" not in document:
            raise TopoplanError(f"{where}: model_type is missing (one of {', '.join(MODEL_TYPES)})")
        raise TopoplanError(
            f"{where}: model_type: {shown(head.model_type)} is not read{nearest(head.model_type, MODEL_TYPES)}"
        )
    builder = GraphBuilder(head.model_type, _BATCH if batch_size is None else batch_size)
    if head.model_type in DECODERS:
        _decoder(builder, head.model_type, document, options, where)
    elif head.model_type == "gpt2":
        _gpt2(builder, document, options, where)
    elif head.model_type == "bert":
        _bert(builder, head, document, options, where)
    else:
        _vit(builder, head, document, options, where)
    return builder.build()


def _decoder(builder: GraphBuilder, family: str, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    sizes = values(DECODERS[family], document, where).decoder(where)
    count = _layers(options, len(sizes.layers), where)
    activation = _activation(sizes.activation, "hidden_act", where)
    sizes = attrs.evolve(sizes, layers=sizes.layers[:count], activation=activation)
    decoder(builder, sizes, options.sequence_length or min(_POSITIONS, sizes.positions))


def _gpt2(builder: GraphBuilder, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    sizes = values(Gpt2, document, where)
    sizes.check(where)
    positions = _positions(options, sizes.n_positions, "n_positions", where)
    activation = _activation(sizes.activation_function, "activation_function", where)
    gpt2(builder, sizes, _layers(options, sizes.n_layer, where), positions, activation)


def _bert(builder: GraphBuilder, head: _Head, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    sizes = values(Bert, document, where)
    sizes.check(where)
    positions = _positions(options, sizes.max_position_embeddings, "max_position_embeddings", where)
    layers, activation = (
        _layers(options, sizes.num_hidden_layers, where),
        _activation(sizes.hidden_act, "hidden_act", where),
    )
    bert(builder, sizes, _architecture(head, get_args(BertHead), where), layers, positions, activation)


def _vit(builder: GraphBuilder, head: _Head, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    if options.sequence_length is not None:
        raise TopoplanError(
            "frontend huggingface: sequence-length: a vit has as many positions as patches (leave it out)"
        )
    sizes = values(Vit, document, where)
    sizes.check(where)
    names = document.get("id2label")
    labels = head.num_labels or (len(names) if isinstance(names, dict) and names else 2)
    layers, activation = (
        _layers(options, sizes.num_hidden_layers, where),
        _activation(sizes.hidden_act, "hidden_act", where),
    )
    vit(builder, sizes, _architecture(head, get_args(VitHead), where), labels, layers, activation)


def _architecture(head: _Head, names: tuple[Any, ...], where: str) -> Any:
    """Return the class of transformers that is trained; the first of ``names`` unless the file says one."""
    name = (head.architectures or names)[0]
    if name not in names:
        raise TopoplanError(f"{where}: architectures: {shown(name)} is not read (one of {', '.join(names)})")
    return name


def _layers(options: HuggingFace, count: int, where: str) -> int:
    if options.layers is not None and options.layers > count:
        raise TopoplanError(f"frontend huggingface: layers: {options.layers} of the {count} of {where} (at most all)")
    return options.layers or count


def _positions(options: HuggingFace, most: int, name: str, where: str) -> int:
    """Return the positions of a sample, of which a table has no more than ``most``."""
    if options.sequence_length is not None and options.sequence_length > most:
        raise TopoplanError(
            f"frontend huggingface: sequence-length: {options.sequence_length} is more than {name} of {where} ({most})"
        )
    return options.sequence_length or min(_POSITIONS, most)


def _activation(name: str, where_key: str, where: str) -> str:
    if name not in _ACTIVATIONS:
        raise TopoplanError(f"{where}: {where_key}: {shown(name)} is not known{nearest(name, _ACTIVATIONS)}")
    return _ACTIVATIONS[name]

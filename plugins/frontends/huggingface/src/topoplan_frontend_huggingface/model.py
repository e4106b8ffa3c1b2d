"""From a file and options to a graph: which family it is of, how many positions and layers it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import nearest, shown
from topoplan_engine.experts import expert_dims, with_expert_groups, with_skew
from topoplan_engine.model_notes import with_note
from topoplan_engine.trainer_kernels import with_attention
from topoplan_frontend_huggingface import HuggingFace
from topoplan_frontend_huggingface.adapters import builder_of, trained_as
from topoplan_frontend_huggingface.classes import Chosen, check_keys, chosen
from topoplan_frontend_huggingface.decoders import decoder
from topoplan_frontend_huggingface.encoders import Bert, BertHead, Vit, VitHead, bert, vit
from topoplan_frontend_huggingface.gpt2 import Gpt2, gpt2
from topoplan_frontend_huggingface.heads import Head, NoHead, RewardHead, SequenceHead, SpanHead, TokenHead, WordHead
from topoplan_frontend_huggingface.notes import annotated
from topoplan_frontend_huggingface.presets import preset
from topoplan_frontend_huggingface.reading import key, read_config, values
from topoplan_frontend_huggingface.relatives import DECODERS
from topoplan_operators import GraphBuilder

__all__ = ["build"]

#: Samples of a batch, and positions of a sample, unless users say how many.
_BATCH, _POSITIONS = 64, 4096
#: transformers' name of an activation -> the algebra's.
_ACTIVATIONS = {
    **{name: name for name in ("silu", "relu", "tanh", "sigmoid", "gelu")},
    "swish": "silu",
    "relu2": "relu2",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "gelu_python"), "gelu"),
}
#: Those that transformers writes out as several kernels, and families whose attention has one projection for all three.
_WRITTEN_GELUS = ("gelu_new", "gelu_fast", "gelu_python")
_JOINT = ("gpt2", "gpt_neox", "phi3", "bloom", "codegen", "falcon", "gpt_bigcode", "mpt")
#: Others that transformers has: no misspellings.
_OTHER_ACTIVATIONS = ("laplace", "leaky_relu", "linear", "mish", "prelu", "relu6", "sqrtsoftplus", "xielu")


@attrs.frozen(kw_only=True)
class _Labels:
    """How many classes a classifier has; names of classes count where no number is given."""

    num_labels: int | None = key(None)


def build(options: HuggingFace, batch_size: int | None) -> OperatorGraph:
    """Build the graph of a file.

    Raises:
        TopoplanError: the file cannot be read, is of an unknown family or class, or has a key of a wrong type or
            value, or options name modules that it lacks.
    """
    document, where = _document(options)
    built = chosen(document, where)
    builder = builder_of(options, built.family, _BATCH if batch_size is None else batch_size)
    if built.family in DECODERS:
        check_keys(document, built, where)
        _decoder(builder, built, document, options, where)
    elif options.prediction_layers:
        raise TopoplanError(f"frontend huggingface: prediction-layers: {built.family} of {where} has none")
    elif built.family == "gpt2":
        _gpt2(builder, built, document, options, where)
    elif built.family == "bert":
        _bert(builder, built, document, options, where)
    else:
        _vit(builder, built, document, options, where)
    graph = trained_as(builder.build(), builder, options, where)
    if built.family in DECODERS:
        graph = _in_groups(graph, built, document, where)
    graph = annotated(_run_as(graph, options, where), built, document, options, where)
    # Operators of the graph keep no masks; kernels of trainers do (`topoplan_engine.trainer_kernels`).
    drops = built.family == "gpt2" and values(Gpt2, document, where).resid_pdrop > 0
    written = _written(built.family, document)
    tags = {**({"dropout": "yes"} if drops else {}), **({"written": written} if written else {})}
    return attrs.evolve(graph, tags={**graph.tags, **tags}) if tags else graph


def _written(family: str, document: Mapping[str, Any]) -> str:
    """Return what transformers' code of a model keeps beside the operators: words that `TrainerKernels` reads.

    ``gelu``: its GELU is several kernels (``activations.py``); ``joint``: queries, keys and values are slices of one
    tensor, which stays when keys and values are copied into a cache (``cache_utils.py``); ``scores``: the loss takes
    the scores in their own precision (``modeling_bert.py``; ``loss_utils.py`` makes others fp32).
    """
    named = next((document[name] for name in ("activation_function", "hidden_act") if name in document), "")
    is_new = (named or ("gelu_new" if family == "gpt2" else "")) in _WRITTEN_GELUS
    words = {"gelu": is_new, "joint": family in _JOINT, "scores": family == "bert"}
    return " ".join(word for word, holds in words.items() if holds)


def _in_groups(graph: OperatorGraph, built: Chosen, document: Mapping[str, Any], where: str) -> OperatorGraph:
    """Return a model that says of which groups the experts of a token are, where these are not all."""
    groups = values(DECODERS[built.family], document, where).expert_groups(where)
    if groups.chosen == groups.total:
        return graph
    text = f"experts of a token are in {groups.chosen} of {groups.total} groups (topk_group, n_group)"
    return with_note(with_expert_groups(graph, groups), "expert groups", text)


def _run_as(graph: OperatorGraph, options: HuggingFace, where: str) -> OperatorGraph:
    """Return a model that says its kernel of attention, and how uneven its tokens choose experts.

    Raises:
        TopoplanError: it has no attention that is one operator, or no experts.
    """
    if options.attention is not None:
        if not any(op.kind == "scaled_dot_product_attention" for op in graph.operators):
            raise TopoplanError(f"frontend huggingface: attention: {where} has none that is one kernel (leave it out)")
        text = f"{options.attention} (-o attention)"
        graph = with_note(with_attention(graph, options.attention), "attention", text)
    if options.skew is not None:
        if max(expert_dims(graph), default=-1) < 0:
            raise TopoplanError(f"frontend huggingface: skew: {where} has no experts (leave it out)")
        text = f"the busiest expert parallel device has {options.skew:g} times the mean of tokens, or all (-o skew)"
        graph = with_note(with_skew(graph, options.skew), "routing", text)
    return graph


def _document(options: HuggingFace) -> tuple[Mapping[str, Any], str]:
    """Return the keys of the file or preset, and how messages name it."""
    if options.config and options.preset:
        raise TopoplanError("frontend huggingface: config and preset are both given (one says the model)")
    if options.preset:
        return preset(options.preset)
    if not options.config:
        raise TopoplanError(
            "frontend huggingface: config is missing (-o config=config.json, or the folder with it; "
            "or a published model, such as -o preset=llama3-8b)"
        )
    return read_config(options.config)


def _decoder(
    builder: GraphBuilder, built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str
) -> None:
    sizes = values(DECODERS[built.family], document, where).decoder(where)
    count = _layers(options, len(sizes.layers), where)
    activation = _activation(sizes.activation, "hidden_act", where)
    positions = options.sequence_length or min(_POSITIONS, sizes.positions)
    if sizes.modules.positions:
        positions = _positions(options, sizes.positions, "the table of positions", where)
    words = WordHead(words=sizes.words, tied=sizes.tied, bias=sizes.head_bias, capped=sizes.capped)
    head = _head(built, _labels(document, where), words, "score")
    sizes = attrs.evolve(
        sizes,
        layers=sizes.layers[:count],
        windows=sizes.windows[:count],
        activation=activation,
        predictions=_predictions(options, built, where),
    )
    decoder(builder, sizes, head, positions)


def _predictions(options: HuggingFace, built: Chosen, where: str) -> int:
    """Return the layers that predict further words."""
    if options.prediction_layers and built.task != "ForCausalLM":
        raise TopoplanError(f"frontend huggingface: prediction-layers: {built.name} of {where} has no head over words")
    return options.prediction_layers or 0


def _gpt2(builder: GraphBuilder, built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    sizes = values(Gpt2, document, where)
    sizes.check(where)
    positions = _positions(options, sizes.n_positions, "n_positions", where)
    activation = _activation(sizes.activation_function, "activation_function", where)
    words = WordHead(words=sizes.vocab_size, tied=sizes.tie_word_embeddings)
    head = _head(built, _labels(document, where), words, "classifier")
    gpt2(builder, sizes, head, _layers(options, sizes.n_layer, where), positions, activation)


def _head(built: Chosen, labels: int, words: WordHead, of_tokens: str) -> Head:
    """Return what stands behind the layers of a decoder; ``of_tokens`` is the name of a classifier of tokens."""
    if built.task in ("ForCausalLM", "LMHeadModel"):
        return words
    heads: dict[str, Head] = {
        "Model": NoHead(),
        "ForSequenceClassification": SequenceHead(labels=labels),
        "ForTokenClassification": TokenHead(labels=labels, module=of_tokens),
        "ForQuestionAnswering": SpanHead(),
        "ForRewardModel": RewardHead(labels=1, every_position=False),
        "ForProcessRewardModel": RewardHead(labels=2, every_position=True),
    }
    return heads[built.task]


def _bert(builder: GraphBuilder, built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    sizes = values(Bert, document, where)
    sizes.check(where)
    bert(
        builder,
        sizes,
        cast("BertHead", built.name),
        labels=_labels(document, where),
        layers=_layers(options, sizes.num_hidden_layers, where),
        positions=_positions(options, sizes.max_position_embeddings, "max_position_embeddings", where),
        activation=_activation(sizes.hidden_act, "hidden_act", where),
    )


def _vit(builder: GraphBuilder, built: Chosen, document: Mapping[str, Any], options: HuggingFace, where: str) -> None:
    if options.sequence_length is not None:
        raise TopoplanError(
            "frontend huggingface: sequence-length: a vit has as many positions as patches (leave it out)"
        )
    sizes = values(Vit, document, where)
    sizes.check(where)
    layers, activation = (
        _layers(options, sizes.num_hidden_layers, where),
        _activation(sizes.hidden_act, "hidden_act", where),
    )
    vit(builder, sizes, cast("VitHead", built.name), _labels(document, where), layers, activation)


def _labels(document: Mapping[str, Any], where: str) -> int:
    """Return the classes of a classifier: ``num_labels``, or as many as ``id2label`` names, or two."""
    names = document.get("id2label")
    count = values(_Labels, document, where).num_labels
    return count or (len(names) if isinstance(names, dict) and names else 2)


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
        hint = (
            f" (have: {', '.join(sorted(_ACTIVATIONS))})" if name in _OTHER_ACTIVATIONS else nearest(name, _ACTIVATIONS)
        )
        raise TopoplanError(f"{where}: {where_key}: {shown(name)} is not known{hint}")
    return _ACTIVATIONS[name]

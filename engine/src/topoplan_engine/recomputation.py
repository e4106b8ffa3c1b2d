"""Which operators run again in the backward pass: a plan's ``recompute`` in words, as a region for each operator.

    none          nothing
    selective     attention: from the scores to their product with the values
    full          each layer by itself
    op            each layer but for what attention and every second matrix product make, which is kept: the first
                  product, the third one, ...
    every:2       every second layer by itself: the second one, the fourth one, ...
    modules:mlp+input_layernorm
                  modules of every layer by their names in the model, or by Megatron-LM's (``core_attn``, ``layernorm``,
                  ``mla_up_proj``, ``moe_act``, ``moe``, ``shared_experts``, and ``mlp``, which is of layers without
                  experts alone, whatever their model calls it)

Layers of a model that has no equal layers with numbers are its blocks (`topoplan_engine.blocks`).  A layer behind the
numbered ones that has no number, DeepSeek's for a further word, is one of the layers: ``full`` runs it again with what
puts its input together, ``modules`` its modules, as Megatron-LM does.  Operators of one module of one layer run again
together, right before the backward pass of the last of them, with the collectives of what they read.  A module inside
of another one that is named is a part of that.

Sources: Korthikanti et al., 2022; pytorch/torchtitan@76d5c72e (``selective_ac_option``, ``_op_sac_save_list``);
NVIDIA/Megatron-LM@d98e8a64 (``--recompute-modules``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from topoplan import OperatorGraph, TopoplanError
from topoplan.arrays import I32
from topoplan_engine.blocks import layer_numbers
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.experts import expert_dims
from topoplan_engine.of_graphs import of_last_graphs
from topoplan_engine.partition import multiplies
from topoplan_engine.training import shared_weights

__all__ = ["ATTENTION", "kept_in", "latent_projections", "regions_of", "words_of_regions"]

#: Kinds of operators that are an attention by themselves.
ATTENTION = ("scaled_dot_product_attention", "attention")
#: The kind of operator that puts keys and values of latent attention together.
_LATENT = "keys_and_values"
#: What models call the MLP of a layer: parts of Llama's; of MPT's; of OPT's; of BERT's and ViT's.
_DENSE = (("mlp",), ("ffn",), ("fc1", "act_fn", "fc2"), ("intermediate", "output.dense"))
_WAYS = "none, selective, op, full, every:2 or modules:NAME+NAME"


def regions_of(text: str, graph: OperatorGraph) -> I32:
    """(n_ops,) the region of operators that run again together; -1 for those that do not.

    An operator whose outputs are kept within a region has that region's number turned over (`kept_in`).

    Args:
        text: see the module.
        graph: the model.

    Raises:
        TopoplanError: the text is none of the ways, or the model has no such layers or modules; the message names the
            nearest that it has.
    """
    way, _, value = text.partition(":")
    if text == "none":
        return np.full(len(graph.operators), -1, dtype=np.int32)
    if text == "selective":
        return _of_modules(graph, ["core_attn"], text)
    if text == "op":
        return _but_for_products(graph, _of_layers(graph, text, 1))
    if text == "full" or way == "every":
        return _of_layers(graph, text, 1 if text == "full" else _count(value, text))
    if way == "modules" and value:
        return _of_modules(graph, value.split("+"), text)
    raise TopoplanError(f"plan: recompute={text} (must be {_WAYS})")


def words_of_regions(regions: Sequence[int], graph: OperatorGraph) -> str:
    """Return the words that mean some regions: what `regions_of` reads; empty if no words do.

    Args:
        regions: (n_ops,) the region of operators that run again together, -1 for none.
        graph: the model.
    """
    members: dict[int, list[int]] = {}
    for op, region in enumerate(regions):
        if region != -1:
            members.setdefault(max(region, kept_in(region)), []).append(op)
    if not members:
        return "none"
    if min(regions) < -1:
        return _words_with_outputs_kept(regions, sorted(members.values()), graph)
    regions_sorted = sorted(members.values())
    layers = max(_numbers(graph)) + 1
    modules = _modules(graph)
    first = {name: [each for each in places if each in regions_sorted] for name, places in modules.items()}
    # Words of Megatron-LM come first in `_modules`; a later name adds what no earlier one has.
    names: list[str] = []
    covered: list[list[int]] = []
    for name, places in first.items():
        if len(places) == len(modules[name]) and any(each not in covered for each in places):
            names.append(name)
            covered += places
    candidates = ["selective", "full", *(f"every:{k}" for k in range(2, layers + 1)), f"modules:{'+'.join(names)}"]
    for text in candidates:
        with contextlib.suppress(TopoplanError):
            if _partition(regions_of(text, graph)) == regions_sorted:
                return text
    return ""


def _words_with_outputs_kept(regions: Sequence[int], members: list[list[int]], graph: OperatorGraph) -> str:
    """Return ``op`` if that is what some regions, with these members, and operators kept within them mean."""
    with contextlib.suppress(TopoplanError):
        layers = _of_layers(graph, "op", 1)
        turned = np.flatnonzero(_but_for_products(graph, layers) < -1)
        if _partition(layers) == members and np.array_equal(turned, np.flatnonzero(np.array(regions) < -1)):
            return "op"
    return ""


def _partition(regions: I32) -> list[list[int]]:
    return sorted(np.flatnonzero(regions == region).tolist() for region in np.unique(regions[regions >= 0]))


def _count(number: str, text: str) -> int:
    if not number.isdigit() or not int(number):
        raise TopoplanError(f"plan: recompute={text}: every {number or '?'}-th layer (a positive number: every:2)")
    return int(number)


def _of_layers(graph: OperatorGraph, text: str, period: int) -> I32:
    number = _numbers(graph)
    count, what = max(number) + 1, "layers" if layer_numbers(graph).named else "blocks"
    if not count:
        raise TopoplanError(
            f"plan: recompute={text}: model {graph.name!r} has no layers or blocks to run again (recompute=none)"
        )
    if period > count:
        raise TopoplanError(f"plan: recompute={text}: model {graph.name!r} has {count} {what} (nearest: every:{count})")
    chosen = [k // period if k % period == period - 1 else -1 for k in number]
    return np.array(chosen, dtype=np.int32)


def _numbers(graph: OperatorGraph) -> Sequence[int]:
    """(n_ops,) the layer of each operator, or the block in a model that has no equal layers; -1 outside of layers."""
    layers = layer_numbers(graph)
    if not layers.named:
        return layers.of
    names = _layer_names(graph).whole
    numbers = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
    return [numbers.get(name, -1) for name in names]


class _LayerNames(NamedTuple):
    """Text that names the layer of each operator, empty outside of layers.

    Attributes:
        inner: (n_ops,) of the operators that all layers have.
        whole: (n_ops,) of what puts the input of a layer without a number together, too.
    """

    inner: Sequence[str]
    whole: Sequence[str]


@of_last_graphs
def _layer_names(graph: OperatorGraph) -> _LayerNames:
    """Return the layers of a model: those with numbers, and behind them what has the same operators under one name."""
    numbered = layers_of(graph).layer
    inner, whole = [*numbered], [*numbered]
    last = max((index for index, name in enumerate(numbered) if name), default=-1)
    if last < 0:
        return _LayerNames(inner, whole)
    parts = [op for op, layer in zip(graph.operators, numbered, strict=True) if layer == numbered[last]]
    kinds = {op.name[len(numbered[last]) :].strip("._/"): op.kind for op in parts}
    places = range(last + 1, len(graph.operators))
    for module in dict.fromkeys(graph.operators[index].name.partition(".")[0] for index in places):
        names = {index: graph.operators[index].name.removeprefix(f"{module}.") for index in places}
        members = [k for k in places if graph.operators[k].name == f"{module}.{names[k]}" and names[k] in kinds]
        if {names[k]: graph.operators[k].kind for k in members} != kinds:
            continue
        for k in members:
            inner[k] = module
        for k in range(last + 1, members[-1] + 1):
            if graph.operators[k].name.startswith(f"{module}.") and not shared_weights(graph.operators[k]):
                whole[k] = module
    return _LayerNames(inner, whole)


def kept_in(region: int) -> int:
    """Return the region around an operator whose outputs are kept within it; -1 for an operator in none.

    >>> kept_in(-2 - 5), kept_in(-1)
    (5, -1)
    """
    return max(-2 - region, -1)


def _but_for_products(graph: OperatorGraph, regions: I32) -> I32:
    """Turn the numbers of operators over whose outputs are kept."""
    regions, products = regions.copy(), dict[int, int]()
    for index, op in enumerate(graph.operators):
        region = int(regions[index])
        if region < 0:
            continue
        is_product = op.kind == "linear" and bool(op.weights)
        products[region] = products.get(region, 0) + is_product
        if op.kind in ATTENTION or (is_product and products[region] % 2):
            regions[index] = -2 - region
    return regions


def _of_modules(graph: OperatorGraph, names: Sequence[str], text: str) -> I32:
    modules = _modules(graph)
    regions = np.full(len(graph.operators), -1, dtype=np.int32)
    for name in names:
        if name not in modules:
            if text == "selective":
                raise TopoplanError(f"plan: recompute=selective: model {graph.name!r} has no attention")
            is_dense = name == "mlp" and "moe" in modules  # all of its layers have experts
            from difflib import get_close_matches

            nearest_names = ["moe"] if is_dense else get_close_matches(name, modules, cutoff=0.0)
            raise TopoplanError(
                f"plan: recompute={text}: layers of model {graph.name!r} have no module {name!r} "
                f"(nearest: {', '.join(nearest_names) or 'recompute=full, for no layers have modules with names'})"
            )
    # The largest last, so that a module inside of another one becomes a part of it.
    members = sorted((operators for name in names for operators in modules[name]), key=len)
    for number, operators in enumerate(members):
        regions[operators] = number
    return regions


def _modules(graph: OperatorGraph) -> dict[str, list[list[int]]]:
    """Return the modules of layers by name: for each layer that has one, its operators.

    What a module is follows from names: ``mlp`` and ``mlp.up_proj`` of ``layers.0.mlp.up_proj``.
    """
    in_layers: dict[str, dict[str, list[int]]] = {}
    dims = expert_dims(graph)
    layers = _layer_names(graph).inner
    of_experts = {}
    for index, (op, layer) in enumerate(zip(graph.operators, layers, strict=True)):
        if not layer:
            continue
        parts = op.name[len(layer) :].strip("._/").replace("/", ".").split(".")
        for depth in range(1, len(parts) + 1):
            in_layers.setdefault(".".join(parts[:depth]), {}).setdefault(layer, []).append(index)
        if dims[index] >= 0:
            of_experts[layer] = parts[0]
    modules = {name: [*by_layer.values()] for name, by_layer in in_layers.items()}
    modules.pop("mlp", None)
    of_activations: dict[str, list[int]] = {}
    for k, layer in enumerate(layers):
        if layer and dims[k] >= 0 and _by_element(graph, k):
            of_activations.setdefault(layer, []).append(k)
    words = {
        "core_attn": _attention_cores(graph),
        "layernorm": _norms(graph, layers),
        "mla_up_proj": latent_projections(graph),
        "moe_act": [*of_activations.values()],
        "moe": [in_layers[name][layer] for layer, name in of_experts.items()],
        "shared_experts": _shared_experts(in_layers),
        "mlp": _dense_modules(in_layers, of_experts),
    }
    return {**{word: members for word, members in words.items() if members}, **modules}


def _norms(graph: OperatorGraph, layers: Sequence[str]) -> list[list[int]]:
    """Return the norms of layers that read the residual stream, each by itself; all norms of layers where none does.

    What a layer begins with, or a sum, is that stream; queries, keys and latents are made by products.
    """
    norms = [k for k, op in enumerate(graph.operators) if layers[k] and op.kind.endswith("norm")]
    of_products = {
        v
        for u, _, v, _ in graph.edges.reshape(-1, 4).tolist()
        if layers[u] == layers[v] and graph.operators[u].kind != "add"
    }
    return [[k] for k in norms if k not in of_products] or [[k] for k in norms]


def _dense_modules(in_layers: Mapping[str, Mapping[str, list[int]]], of_experts: Mapping[str, str]) -> list[list[int]]:
    """Return the operators of the MLP of each layer that has no experts."""
    for names in _DENSE:
        if all(name in in_layers for name in names):
            return [
                sorted(op for name in names for op in in_layers[name].get(layer, ()))
                for layer in in_layers[names[0]]
                if of_experts.get(layer) not in names
            ]
    return []


def _shared_experts(in_layers: Mapping[str, Mapping[str, list[int]]]) -> list[list[int]]:
    """Return the operators of the experts that all tokens go to, in each layer; with the gate of their answers."""
    members: dict[str, list[int]] = {}
    for name, by_layer in in_layers.items():
        parts = name.split(".")
        if len(parts) > 1 and parts[-1].startswith("shared_expert") and not parts[-2].startswith("shared_expert"):
            for layer, operators in by_layer.items():
                members.setdefault(layer, []).extend(operators)
    return [sorted(each) for each in members.values()]


def latent_projections(graph: OperatorGraph) -> list[list[int]]:
    """Return the operators that make queries, keys and values of what latent attention compresses, of each attention.

    Normalizations of what is compressed are among them, as they are one kernel with the products in Megatron-LM.
    """
    source: dict[int, list[int]] = {}
    for u, _, v, _ in graph.edges.reshape(-1, 4).tolist():
        source.setdefault(v, []).append(u)
    projections: list[list[int]] = []
    for index, op in enumerate(graph.operators):
        if op.kind not in ATTENTION or not any(graph.operators[u].kind == _LATENT for u in source.get(index, ())):
            continue
        members, waiting = set[int](), [*source[index]]
        while waiting:
            u = waiting.pop()
            kind, makers = graph.operators[u].kind, source.get(u, [])
            is_norm = kind.endswith("norm") and all(
                graph.operators[each].kind in ("linear", "split") for each in makers
            )
            if is_norm or kind in ("linear", "rotary", _LATENT):
                members.add(u)
                waiting += () if is_norm else makers
        projections.append(sorted(members))
    return projections


def _by_element(graph: OperatorGraph, index: int) -> bool:
    """Whether an operator without weights works element by element: its output has the shape of an input."""
    op = graph.operators[index]
    return not op.weights and any(tensor.shape == op.outputs[0].shape for tensor in op.inputs) and not multiplies(op)


def _attention_cores(graph: OperatorGraph) -> list[list[int]]:
    """Return the operators of each attention, from the scores to their product with the values.

    That is one operator, or what lies between two products of activations with no weights in between.
    """
    cores: list[list[int]] = []
    products: list[int] = []
    for index, op in enumerate(graph.operators):
        if op.kind in ATTENTION:
            cores.append([index])
        elif op.weights or shared_weights(op):
            products = []
        elif multiplies(op) and op.linear_in:
            products.append(index)
            if len(products) == 2:
                cores.append(list(range(products[0], index + 1)))
    return cores

"""What a plan's time means: samples and tokens a second, and how much of the devices' arithmetic it uses (MFU, HFU).

Model FLOPs are three times those of the forward pass: a matrix product has two more in the backward pass, one for each
operand.  Where not everything is trained, those count that are done: none for the gradient of a frozen weight, and none
for that of an input before which nothing is trained (`topoplan_engine.training`).  Counted are matrix products, of
attention the pairs of positions that attend to each other (its causal half, as NVIDIA's Megatron Bridge counts), and
nothing twice that is recomputed.  Megatron's papers count causal attention in full (Narayanan et al., SC'21, section
5.1), and so does PaLM (arXiv 2204.02311, appendix B): their MFU is higher, by 13 % for Llama 3 8B at 8,192 positions,
and is said beside it.  HFU counts forward passes that a plan runs again, too (Korthikanti et al., 2022), but for what
flash attention repeats inside of its backward kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

import attrs
import numpy as np

from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan_engine.checkpoints import repeated_operators
from topoplan_engine.distinct import numbered_names
from topoplan_engine.partition import multiplies
from topoplan_engine.training import (
    GradientFlow,
    gradient_flow,
    operands_with_gradient,
    products_of_weights,
    shared_weights,
)

__all__ = [
    "Throughput",
    "active_parameters",
    "flops_per_token",
    "model_flops",
    "peak_flops",
    "priced_precision",
    "repeated_flops",
    "sequence_length",
    "throughput",
    "unknown_flops",
]

_ATTENTIONS = ("attention", "multihead_attention", "scaled_dot_product_attention")
#: Kinds of operators with weights or sums that are no matrix product: look-ups, normalizations, ways to experts.
_NO_PRODUCTS = frozenset(
    (
        *("batch_norm", "combine", "dispatch", "embedding", "group_norm", "layer_norm", "learned_positions"),
        *("rms_norm", "token_embedding"),
    )
)
#: Kinds of operators that a row names.
_NAMED = 3
#: Passes over a matrix product, in multiples of the forward one.
_PASSES = 3


@attrs.frozen(kw_only=True)
class Throughput:
    """Of one iteration.

    Attributes:
        samples_per_s: samples of the batch over seconds.
        sequence_length: positions of a sample; None for a model without sequences.
        tokens_per_s: positions of all samples over seconds; likewise.
        mfu: model FLOPs over what the devices could do in that time; None where the model's FLOPs or the devices' peak
            in its precision are not known.
        assumption: what ``mfu`` is of, or which operators it would miss; empty where neither is known.
        hfu: the same with forward passes that run again.
        mfu_full_attention: ``mfu`` where causal attention counts in full; None without such attention.
        devices: of the machine.
    """

    samples_per_s: float
    sequence_length: int | None
    tokens_per_s: float | None
    mfu: float | None
    assumption: str
    hfu: float | None = None
    mfu_full_attention: float | None = None
    devices: int = 1


def throughput(
    graph: OperatorGraph,
    cluster: Cluster,
    seconds: float,
    *,
    precision: str = "",
    device: str = "",
    strategy: Strategy | None = None,
) -> Throughput:
    """Return what an iteration of ``seconds`` means.

    Args:
        graph, cluster: the model and the machine.
        seconds: of one iteration.
        precision: of the arithmetic, where it is not the model's; ``"unknown"`` where nobody knows.
        device: kind that all devices are priced as, where it is not their own.
        strategy: says which forward passes run again, beside those that the model itself repeats.
    """
    samples, length = graph.batch_size / seconds if seconds else 0.0, sequence_length(graph)
    precision = precision or graph.precision
    flops, peak = model_flops(graph), peak_flops(cluster, precision, device)
    missing = unknown_flops(graph)
    has_mfu = flops > 0 and peak is not None and seconds > 0 and not missing
    share = 1 / (seconds * peak) if has_mfu and peak is not None else None
    in_full = model_flops(graph, full_attention=True)
    kinds = ", ".join(sorted({device} if device else set(cluster.device_preset)))
    return Throughput(
        samples_per_s=samples,
        sequence_length=length,
        tokens_per_s=None if length is None else samples * length,
        mfu=None if share is None else flops * share,
        assumption=f"{_counted(graph)} over the {precision} peak of all {kinds}" if has_mfu else missing,
        hfu=None if share is None else (flops + repeated_flops(graph, strategy)) * share,
        mfu_full_attention=in_full * share if share is not None and in_full > flops else None,
        devices=cluster.n_devices,
    )


def priced_precision(assumptions: Mapping[str, Any]) -> str:
    """Return the precision of products as what priced them says; ``unknown`` where it does not."""
    return "fp8" if "fp8" in assumptions else str(assumptions.get("precision", "unknown"))


def unknown_flops(graph: OperatorGraph) -> str:
    """Return which operators' FLOPs are not known, as frontends tag them (``flops``: ``unknown``); empty for none."""
    kinds = Counter(op.kind for op in graph.operators if op.tags.get("flops") == "unknown")
    named = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(_NAMED))
    more = f" and {len(kinds) - _NAMED} more kinds" if len(kinds) > _NAMED else ""
    return f"FLOPs of {named}{more} are not known" if kinds else ""


def _counted(graph: OperatorGraph) -> str:
    """Say which FLOPs are counted."""
    if gradient_flow(graph).everything:
        return f"{_PASSES} x forward FLOPs of matrix products"
    return "FLOPs of matrix products, forward and of the gradients that are computed,"


def model_flops(graph: OperatorGraph, *, full_attention: bool = False) -> float:
    """Return FLOPs of forward and backward pass of the matrix products of a batch.

    Gates that score experts count in no published figure, and not here.

    Args:
        graph: the model.
        full_attention: count all pairs of positions of causal attention, as Megatron's papers do.
    """
    flow = gradient_flow(graph)
    return sum(
        _passes(flow, number, op) * _forward_flops(op) * (_pairs_left_out(op) if full_attention else 1)
        for number, op in enumerate(graph.operators)
        if _multiplies(op)
    )


def flops_per_token(graph: OperatorGraph, *, full_attention: bool = False) -> float | None:
    """Return `model_flops` for each position of each sample; None for a model without sequences or with unknown FLOPs.

    For Llama 3 8B at 8,192 positions 51.5 GFLOP, as NVIDIA publishes it, and 57.9 with attention in full.
    """
    length = sequence_length(graph)
    if length is None or unknown_flops(graph):
        return None
    return model_flops(graph, full_attention=full_attention) / (graph.batch_size * length)


def active_parameters(graph: OperatorGraph) -> int | None:
    """Return the numbers of the matrices that a token is multiplied with, those of its experts among them.

    Tables of words and gates that score experts are none.  None for a model without sequences.
    """
    length = sequence_length(graph)
    if length is None:
        return None
    products = (op for op in graph.operators if _multiplies(op) and op.kind not in _ATTENTIONS and op.work)
    flops = sum(
        op.work[0].coefficient * prod(op.dims[dim].size for dim in op.work[0].dims)
        for op in products
        if len(op.work[0].dims) > max(len(tensor.axes) for tensor in op.outputs)
    )
    return round(flops / (2 * graph.batch_size * length))


def repeated_flops(graph: OperatorGraph, strategy: Strategy | None) -> float:
    """Return FLOPs of the matrix products that run forward again: those of the model, and of regions of a plan."""
    repeated = np.array(repeated_operators(graph))
    if isinstance(strategy, StagedStrategy):
        for stage in strategy.stages:
            repeated[stage.operators[stage.regions >= 0]] = True
    return sum(
        _forward_flops(op)
        for op, repeats in zip(graph.operators, repeated.tolist(), strict=True)
        if repeats and _multiplies(op)
    )


def _forward_flops(op: Operator) -> float:
    return sum(term.coefficient * prod(op.dims[dim].size for dim in term.dims) for term in op.work)


def _pairs_left_out(op: Operator) -> float:
    """Return by how much more FLOPs an operator has if no pair of positions is left out."""
    if op.tags.get("causal") != "yes":
        return 1.0
    sizes = {dim.name: dim.size for dim in op.dims}
    queries, keys = sizes.get("q", 1), sizes.get("t", 1)
    window = min(int(op.tags.get("window", keys)), keys)
    return queries * keys / float(np.minimum(np.arange(1, queries + 1), window).sum())


def _passes(flow: GradientFlow, number: int, op: Operator) -> int:
    """Return the products of an operator, one of them forward: one more for each operand whose gradient is computed.

    A weight counts with its input, so that the first layer of a model that is trained in whole has three, too, as
    papers count it.  Operands that are data, such as a weight of integers, have no gradient.
    """
    if flow.everything and op.weights:
        return _PASSES
    of_inputs = operands_with_gradient(op, flow.inputs[number])
    return 1 + min(_PASSES - 1, products_of_weights(op, flow.weights[number]) + of_inputs)


def peak_flops(cluster: Cluster, precision: str, device: str = "") -> float | None:
    """Return dense FLOP/s of all devices together; None where one of them is unknown or has no such arithmetic."""
    names, number = numbered_names(cluster.device_preset)
    peaks = []
    for name in names:
        machine = cluster.machines.get((device or name).lower())
        kind = None if machine is None else machine.device
        peak = None if kind is None else kind.peak_flops.get(precision)
        if peak is None:
            return None
        peaks.append(peak)
    # Summed one after the other: pairs, as `numpy.sum` adds them, round in another way.
    return float(np.cumsum(np.array(peaks)[number] * cluster.device_speed * cluster.gpus_per_device)[-1])


def sequence_length(graph: OperatorGraph) -> int | None:
    """Return the positions of a sample: the most that attention asks from, or else that tokens are embedded at."""
    for kinds, dim in ((_ATTENTIONS, "q"), (("token_embedding",), "t")):
        lengths = [d.size for op in graph.operators if op.kind in kinds for d in op.dims if d.name == dim]
        if lengths:
            return max(lengths)
    return None


def _multiplies(op: Operator) -> bool:
    """Whether an operator is a matrix product that counts, or holds one: of weights, or of two tensors summed over.

    Weights of another operator count as its own: cells of a recurrence that share them all multiply.
    """
    return (
        (bool(op.weights or shared_weights(op)) or multiplies(op))
        and op.kind not in _NO_PRODUCTS
        and "router" not in op.tags
    )

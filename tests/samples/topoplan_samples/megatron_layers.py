"""Layers of GPT as Megatron-LM runs them, and what one tensor-parallel device keeps of each for its backward pass."""

from __future__ import annotations

import functools

import attrs

from topoplan import OperatorGraph
from topoplan.model.graph import Checkpoint
from topoplan_engine.partition import slice_elements
from topoplan_engine.precision import in_precision
from topoplan_operator_times.saved import saved_tensors
from topoplan_operators import GraphBuilder

__all__ = ["PERCENT", "SIZES", "of_a_layer"]

#: Model -> micro-batch, sequence, hidden size, heads (table 3 of the paper).
SIZES = {
    "22B": (4, 2048, 6144, 64),
    "175B": (1, 2048, 12288, 96),
    "530B": (1, 2048, 20480, 128),
    "1T": (1, 2048, 25600, 160),
}
#: Model -> percent of what is kept without sequence parallelism and recomputation.
PERCENT = {
    "22B": {"sequence": 66.84, "selective": 49.42, "selective+sequence": 16.18, "full": 7.64},
    "175B": {"sequence": 62.04, "selective": 56.53, "selective+sequence": 18.49, "full": 8.71},
    "530B": {"sequence": 58.31, "selective": 62.04, "selective+sequence": 20.27, "full": 9.42},
    "1T": {"sequence": 58.31, "selective": 62.04, "selective+sequence": 20.27, "full": 9.42},
}
CORE = ("scores", "softmax", "mask", "context")


def gpt(n_layers, micro_batch, sequence, hidden, heads) -> OperatorGraph:
    """Layers of GPT with dropout, whose attention is not fused, in fp16."""
    b = GraphBuilder("gpt", micro_batch)
    shape = (sequence, heads, hidden // heads)
    x = b.elementwise("gelu", b.input((sequence, hidden)), name="embedding")
    for k in range(n_layers):
        y = b.layer_norm(x, name=f"norm1.{k}")
        q, keys, values = (b.view(b.linear(y, hidden, name=f"{n}.{k}"), shape, name=f"{n}.heads.{k}") for n in "qkv")
        scores = b.einsum("nqhd,nthd->nhqt", [q, keys], name=f"scores.{k}")
        shares = b.elementwise("dropout", b.softmax(scores, name=f"softmax.{k}"), name=f"mask.{k}")
        y = b.einsum("nhqt,nthd->nqhd", [shares, values], name=f"context.{k}")
        y = b.linear(b.view(y, (sequence, hidden), name=f"context.flat.{k}"), hidden, name=f"out.{k}")
        x = b.add(x, b.elementwise("dropout", y, name=f"dropout1.{k}"), name=f"sum1.{k}")
        y = b.linear(b.layer_norm(x, name=f"norm2.{k}"), 4 * hidden, name=f"up.{k}")
        y = b.linear(b.elementwise("gelu", y, name=f"gelu.{k}"), hidden, name=f"down.{k}")
        x = b.add(x, b.elementwise("dropout", y, name=f"dropout2.{k}"), name=f"sum2.{k}")
    return in_precision(b.build(), "fp16")


def cut_of(op, devices, sequence_parallel):
    """Degrees of an operator under Megatron's tensor parallelism: heads, or channels of the layers between."""
    name = op.name.partition(".")[0]
    wanted = {"q": "o", "k": "o", "v": "o", "up": "o", "out": "i", "down": "i", "scores": "h", "context": "h"}.get(name)
    if wanted is None and name in ("softmax", "mask"):
        wanted = op.dims[1].name  # samples, heads, queries, keys
    if wanted is None and name == "gelu":
        wanted = op.dims[2].name
    if wanted is None and sequence_parallel:
        wanted = op.dims[1].name  # samples, positions, channels
    assert wanted is None or wanted in [dim.name for dim in op.dims], op.name
    return tuple(devices if dim.name == wanted else 1 for dim in op.dims)


def kept(graph, devices=8, *, sequence_parallel=False):
    """Bytes that one device keeps; a view has none of its own."""
    total = 0
    for op, tensors in zip(graph.operators, saved_tensors(graph), strict=True):
        degrees = cut_of(op, devices, sequence_parallel) if tensors else ()
        total += sum(int(slice_elements(op, tensor, degrees).max()) * tensor.itemsize for tensor in tensors)
    return total


def recomputed(graph, names):
    """The graph with a checkpointed region for these operators of each layer; all operators: None."""
    operators, region = [], None
    for op in graph.operators:
        name, _, number = op.name.rpartition(".")
        inside = number.isdigit() and (names is None or name in names)
        checkpoint = Checkpoint(begins=number != region, reentrant=True) if inside else None
        region = number if inside else region
        operators.append(attrs.evolve(op, checkpoint=checkpoint))
    return attrs.evolve(graph, operators=tuple(operators))


@functools.cache
def of_a_layer(model, mode="none"):
    """Bytes for each layer more: the region that runs again, and what precedes the layers, are there once."""
    graphs = [gpt(count, *SIZES[model]) for count in (1, 2)]
    if "selective" in mode:
        graphs = [recomputed(graph, CORE) for graph in graphs]
    if mode == "full":
        graphs = [recomputed(graph, None) for graph in graphs]
    one, two = (kept(graph, sequence_parallel="sequence" in mode) for graph in graphs)
    return two - one

"""What forward passes keep for backward ones: of every operator the outputs that are read again, and its extras.

An operator says which inputs and outputs its backward pass reads (`topoplan_engine.training.tensors_read`): a sum and a
view keep nothing, a product keeps its factors, and a function of elements keeps its inputs.  A tensor is counted once,
where it is made, however many operators read it.  A view has no bytes of its own: reading it is reading what it looks
at.  Training data are not counted.  Where nothing is trained, or no gradient flows back, nothing is read.

Of a region of activation checkpointing its inputs are kept, and what it makes for itself is there while it runs again.
That happens to one region after the other, so that the largest one is counted, and the others with their inputs alone.

`gradient_tensors` says which gradients of activations there are while an operator's backward pass runs: those of its
outputs, and those of its inputs.  An operator that hands the gradient of its output on, whole or in slices, makes none,
nor does one for the input that its tag ``in_place`` names: what it keeps becomes the gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I32
from topoplan.model.graph import Axis, Operator, OperatorGraph, Tensor
from topoplan_engine.checkpoints import checkpoint_regions
from topoplan_engine.trainer_kernels import kernels_of, products_in_fp8
from topoplan_engine.training import GradientFlow, gradient_flow, is_view, shared_weights, tensors_read

__all__ = ["NO_GRADIENTS", "Gradients", "gradient_tensors", "saved_tensors"]


class Gradients(NamedTuple):
    """Tensors of an operator: outputs that have a gradient, inputs whose gradients it makes, and its scratch."""

    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    scratch: tuple[Tensor, ...]


_ATTENTION = "scaled_dot_product_attention"
NO_GRADIENTS = Gradients((), (), ())

#: Number of an operator and of one of its outputs.
_Place = tuple[int, int]


def saved_tensors(graph: OperatorGraph) -> list[tuple[Tensor, ...]]:
    """Return for every operator its outputs that are kept for backward passes, and its extras.

    Raises:
        TopoplanError: an operator names a tensor that it has not.
    """
    flow, region = gradient_flow(graph), checkpoint_regions(graph)
    made_by = {(v, place): (u, output) for u, output, v, place in graph.edges.reshape(-1, 4).tolist()}
    stored = {made_by[v, place] for v, place in made_by if region[v] >= 0 and region[v] != region[made_by[v, place][0]]}
    inside: set[_Place] = set()  # what regions make for themselves
    for number, operator in reversed([*enumerate(graph.operators)]):  # readers before what they read
        arguments, outputs = tensors_read(operator, (*flow.inputs[number], *flow.weights[number]))
        if not flow.backward[number]:
            arguments, outputs = set(), set()
        inputs = {argument for argument in arguments if argument < len(operator.inputs)}
        mine = stored if region[number] < 0 else inside
        mine |= {(number, output) for output in outputs}
        answers = {(number, output) for output in range(len(operator.outputs))}
        if is_view(operator) and (stored | inside) & answers:
            mine = stored if stored & answers else inside
            stored -= answers
            inside -= answers
            inputs = {0}
        for place in inputs:
            if (number, place) in made_by:
                (stored if region[made_by[number, place][0]] != region[number] else mine).add(made_by[number, place])
    extras = [
        (*op.extras, *_written_attention(graph, op).kept) if has else ()
        for op, has in zip(graph.operators, flow.backward, strict=True)
    ]
    largest = _largest_region(graph, region, inside - stored, extras)
    narrow = _kept_in_fp8(graph, flow)
    return [
        (
            *(
                attrs.evolve(tensor, itemsize=1) if (number, k) in narrow else tensor
                for k, tensor in enumerate(operator.outputs)
                if (number, k) in stored or ((number, k) in inside and region[number] == largest)
            ),
            *(extras[number] if region[number] in (-1, largest) else ()),
        )
        for number, operator in enumerate(graph.operators)
    ]


def _kept_in_fp8(graph: OperatorGraph, flow: GradientFlow) -> set[_Place]:
    """Return the outputs that a trainer keeps in fp8: those that nothing reads again but products of layers, and gates.

    Routers, the head, normalizations and attention read what they need in its own precision.
    """
    products, edges = products_in_fp8(graph), graph.edges.reshape(-1, 4).tolist()
    if not products:
        return set()
    gates = {u for u, _, v, _ in edges if graph.operators[u].kind == "silu" and graph.operators[v].kind == "multiply"}
    gates |= {v for u, _, v, _ in edges if u in gates}
    narrow: set[_Place] = set()
    wide: set[_Place] = set()
    for u, output, v, place in edges:
        operator = graph.operators[v]
        arguments, outputs = tensors_read(operator, (*flow.inputs[v], *flow.weights[v]))
        wide |= {(v, k) for k in outputs}
        if flow.backward[v] and place in arguments:
            (narrow if v in products or v in gates else wide).add((u, output))
    return narrow - wide


def _largest_region(graph: OperatorGraph, region: I32, inside: set[_Place], extras: list[tuple[Tensor, ...]]) -> int:
    """Return the last of the regions that make the most bytes for themselves; -1 where there is none."""
    if (region < 0).all():
        return -1
    nbytes = np.zeros(int(region.max()) + 1)
    for number, output in inside:
        if region[number] >= 0:
            nbytes[region[number]] += graph.operators[number].outputs[output].nbytes
    for number, tensors in enumerate(extras):
        if region[number] >= 0:
            nbytes[region[number]] += sum(tensor.nbytes for tensor in tensors)
    return len(nbytes) - 1 - int(np.argmax(nbytes[::-1]))


def gradient_tensors(graph: OperatorGraph) -> list[Gradients]:
    """Return for every operator which gradients of activations there are in its backward pass.

    The gradient of a weight of another operator is none: it is added to that of the weight.
    """
    flow = gradient_flow(graph)
    read = {(u, output) for u, output, _, _ in graph.edges.reshape(-1, 4)[flow.edges].tolist()}
    return [
        Gradients(
            outputs=tuple(tensor for k, tensor in enumerate(operator.outputs) if (number, k) in read),
            inputs=()
            if _hands_on(operator)
            else tuple(
                tensor
                for k, tensor in enumerate(operator.inputs)
                if flow.inputs[number][k]
                and k not in shared_weights(operator)
                and tensor.name != operator.tags.get("in_place")
            ),
            scratch=(*operator.scratch, *_written_attention(graph, operator).scratch) if flow.backward[number] else (),
        )
        for number, operator in enumerate(graph.operators)
    ]


def _has_trainer(graph: OperatorGraph) -> bool:
    """Whether a trainer brings attention of its own; transformers calls PyTorch's."""
    kernels = kernels_of(graph)
    return kernels is not None and not kernels.written


class _Written(NamedTuple):
    """What attention keeps that writes its scores, beside its inputs, and what its backward pass makes."""

    kept: tuple[Tensor, ...]
    scratch: tuple[Tensor, ...]


def _written_attention(graph: OperatorGraph, op: Operator) -> _Written:
    """Return what attention in fp32 keeps whose heads share keys; nothing where a fused kernel runs.

    No fused kernel of PyTorch has both: the efficient one refuses shared keys, others fp32.  Keys and values are copied
    for all heads of the query, and the shares of all pairs are written (aten/src/ATen/native/transformers,
    ``sdp_utils.cpp`` and ``_scaled_dot_product_attention_math``).  A graph that names the kernels of a trainer says
    itself what its attention keeps.
    """
    if op.kind != _ATTENTION or graph.precision != "fp32" or _has_trainer(graph):
        return _Written((), ())
    sizes = {dim.name: (dim.size, number) for number, dim in enumerate(op.dims)}
    group = sizes["g"][0]
    if group == 1:
        return _Written((), ())

    def of(name: str, axes: str, copies: int = 0) -> Tensor:
        more = (Axis(copies),) if copies else ()
        return Tensor(name, (*(Axis(*sizes[dim]) for dim in axes), *more))

    copied = of("keys_of_heads", "nhtd", group - 1), of("values_of_heads", "nhte", group - 1)
    shares = of("shares", "nhgqt")
    return _Written((*copied, shares), (shares, of("scores_gradient", "nhgqt")))


def _hands_on(operator: Operator) -> bool:
    """Whether the gradients of all inputs are that of the output, or slices of it: of views, concatenations, sums."""
    if operator.weights or operator.extras or len(operator.outputs) != 1:
        return is_view(operator)
    together = tuple(range(len(operator.inputs))) in operator.linear_in
    (output,) = operator.outputs
    is_sum = len(operator.inputs) > 1 and all(tensor.nbytes == output.nbytes for tensor in operator.inputs)
    return together and (is_sum or not operator.work)

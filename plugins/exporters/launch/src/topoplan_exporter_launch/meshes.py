"""What the axes of an SPMD program's mesh are for, by what its operators cut along them, and what replicas keep.

    samples of every operator                         data
    samples, but experts where weights have them      data, with experts
    positions of every operator, and no weight        context
    anything else that is no sample                   tensor

Experts may be dealt out along any of these: operators whose weights have experts are looked at by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from topoplan import Operator, OperatorGraph
from topoplan.arrays import I32
from topoplan.model.graph import Role
from topoplan.model.sharding import Holding, Sharding
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.experts import expert_dims
from topoplan_exporter_launch.targets import Target

__all__ = ["SMALL", "Axis", "Kept", "Places", "cuts_experts", "has_experts", "places_of", "sliced_along"]

#: Elements of a weight that may stay whole where others are sliced: DeepSpeed's stage3_param_persistence_threshold.
SMALL = 100_000


class Kept(StrEnum):
    """What a replica of the data keeps of parameters, gradients and optimizer state."""

    WHOLE = "whole"
    """All of them."""
    OPTIMIZER_SLICES = "optimizer slices"
    """All parameters and gradients; a slice of the optimizer's state (ZeRO, first stage)."""
    STATE_SLICES = "state slices"
    """All parameters; a slice of gradients and optimizer state (ZeRO, second stage)."""
    SLICES = "slices"
    """A slice of everything (ZeRO, third stage; fully sharded data parallelism)."""


class Axis(StrEnum):
    """What an axis of a mesh is for; the order is that of ranks, the last one changing fastest."""

    DATA = "data"
    EXPERT = "expert"
    CONTEXT = "context"
    TENSOR = "tensor"


class Places(NamedTuple):
    """The places of a mesh in the order of ranks.

    Attributes:
        devices: (data x context, tensor) numbers of places.
        context, experts: neighbours that share a sample, or the experts.
        expert_tensor: devices that share the matrices of an expert.
        tensor_axes: axes of the mesh that cut tensors, the outer one first; on an inner one heads of keys and values
            may be copied, and on outer ones experts be divided, or copied.
        data_axes, replica_axes: axes of the mesh that cut samples or positions, and of them those of samples alone.
        context_way: how attention gets all positions: ``gather``, ``ring`` or ``ulysses`` (all-to-alls to heads).
    """

    devices: I32
    context: int
    experts: int
    expert_tensor: int
    tensor_axes: tuple[int, ...]
    data_axes: tuple[int, ...]
    replica_axes: tuple[int, ...]
    context_way: str


def places_of(graph: OperatorGraph, program: SpmdProgram, rings: Sequence[int], target: Target) -> Places:
    """Return what the axes of a mesh are for, with its places in the order of ranks.

    Args:
        graph: the model.
        program: of all its operators.
        rings: (n_ops,) axis along which each gets what it reads from neighbour to neighbour; -1 for none.
        target: named in messages.

    Raises:
        TopoplanError: operators use an axis in different ways, or two axes cut tensors.
    """
    used = [number for number, size in enumerate(program.mesh) if size > 1]
    axes = {number: _axis(graph, program, number, target) for number in used}
    dealt = {number for number in used if _deals_experts(graph, program, number)}
    # Neighbours have different experts: of positions, the slices of those come one after the other.
    order = [
        number
        for kind in Axis
        for number in sorted(used, key=lambda each: (kind is Axis.CONTEXT and each in dealt, each))
        if axes[number] is kind
    ]
    tensors = [number for number in order if axes[number] is Axis.TENSOR]
    if len(tensors) > 1:
        _check_copies(graph, program, tensors, target)
    positions = tuple(number for number in order if axes[number] is Axis.CONTEXT)
    ways = [_context_way(graph, program, number, rings, target) for number in positions]
    _check_neighbours(graph, program, order, dealt, target)
    size = {kind: math.prod(program.mesh[number] for number in order if axes[number] is kind) for kind in Axis}
    unused = [number for number in range(len(program.mesh)) if number not in used]
    places = np.arange(program.n_devices, dtype=np.int32).reshape(program.mesh).transpose([*unused, *order])
    return Places(
        devices=places.reshape(-1, size[Axis.TENSOR]),
        context=size[Axis.CONTEXT],
        experts=math.prod(program.mesh[number] for number in dealt),
        expert_tensor=math.prod(program.mesh[number] for number in tensors if _slices_experts(graph, program, number)),
        tensor_axes=tuple(tensors),
        data_axes=tuple(number for number in order if axes[number] is not Axis.TENSOR),
        replica_axes=tuple(number for number in order if axes[number] is Axis.DATA),
        context_way=ways[0] if ways else "gather",
    )


def _axis(graph: OperatorGraph, program: SpmdProgram, number: int, target: Target) -> Axis:
    """Return what an axis of the mesh is for, by what every operator cuts along it."""
    cuts = [rules[number].dim for rules in program.rules]
    operators = graph.operators
    samples = [index for index, op in enumerate(operators) if cuts[index] >= 0 and cuts[index] == op.sample_dim]
    exceptions = [index for index, op in enumerate(operators) if op.sample_dim >= 0 and cuts[index] != op.sample_dim]
    if not exceptions:
        return Axis.DATA
    weighted = [index for index in exceptions if operators[index].weights]
    dense = [index for index in weighted if not cuts_experts(operators[index], cuts[index])]
    if not samples:
        whole = all(_cuts_no_weight(operators[index], cuts[index]) for index in dense)
        along = any(cuts[index] >= 0 for index in dense)
        return Axis.CONTEXT if whole and along else Axis.TENSOR
    if weighted and not dense:
        return Axis.EXPERT
    odd = operators[(dense or exceptions)[0]]
    cut = cuts[(dense or exceptions)[0]]
    what = f"is cut along {odd.dims[cut].name!r}" if cut >= 0 else "is whole"
    raise target.refusal(
        odd, f"{what} on axis {number} of the mesh, where {operators[samples[0]].name!r} cuts its samples"
    )


def _check_copies(graph: OperatorGraph, program: SpmdProgram, tensors: list[int], target: Target) -> None:
    """Check that axes of tensors cut what the first one does, but for experts and copied heads."""
    for op, rules in zip(graph.operators, program.rules, strict=True):
        outer, *inner = (rules[number].dim for number in tensors)
        if op.weights and not has_experts(op) and any(dim not in (outer, -1) for dim in inner):
            raise target.refusal(
                op, f"is cut along two axes of the mesh, {tensors[0]} and {tensors[1]}, that cut no samples"
            )


def _context_way(graph: OperatorGraph, program: SpmdProgram, number: int, rings: Sequence[int], target: Target) -> str:
    """Return how attention gets all positions along an axis that cuts them: ``gather``, ``ring`` or ``ulysses``.

    Raises:
        TopoplanError: something else is sent along the axis, or attention is not the same everywhere.
    """
    ways: dict[str, Operator] = {}
    experts = expert_dims(graph)
    for u, out, v, into in graph.edges.reshape(-1, 4).tolist():
        form, new_form = program.made(u, out)[number], program.wanted(v, into)[number]
        if form == new_form or (experts[u] >= 0 and experts[v] >= 0):  # tokens go to experts, and come back
            continue
        op, ends = graph.operators[v], (graph.operators[u].weights, graph.operators[v].weights)
        if form.sliced and new_form.holding is Holding.REPLICATED and not ends[1]:
            ways.setdefault("ring" if rings[v] == number else "gather", op)
        elif form.sliced and new_form.sliced and not all(ends):
            ways.setdefault("ulysses", op)
        else:
            what = f"wants input {op.inputs[into].name!r} in another form than it is made in"
            raise target.refusal(op, f"{what}, on axis {number} of the mesh, which cuts positions")
    if len(ways) > 1:
        (first, _), (second, op) = [*ways.items()][:2]
        raise target.refusal(op, f"gets all positions by {second}, others by {first}")
    return next(iter(ways), "gather")


def _cuts_no_weight(op: Operator, dim: int) -> bool:
    return dim < 0 or not any(axis.dim == dim for weight in op.weights for axis in weight.axes)


def cuts_experts(op: Operator, dim: int) -> bool:
    """Say whether a dimension counts experts: every expert has a matrix of its own, and inputs of its own."""
    if dim < 0 or op.dims[dim].role is Role.REDUCTION:
        return False
    return any(len(w.axes) >= 3 and w.axes[0].dim == dim for w in op.weights) and all(
        any(axis.dim == dim for axis in x.axes) for x in op.inputs
    )


def has_experts(op: Operator) -> bool:
    """Say whether an operator has a matrix for each of several experts."""
    return any(cuts_experts(op, dim) for dim in range(len(op.dims)))


def _deals_experts(graph: OperatorGraph, program: SpmdProgram, number: int) -> bool:
    """Say whether devices along an axis have different experts."""
    return any(cuts_experts(op, rules[number].dim) for op, rules in zip(graph.operators, program.rules, strict=True))


def _slices_experts(graph: OperatorGraph, program: SpmdProgram, number: int) -> bool:
    """Say whether devices along an axis that cuts tensors have slices of the matrices of experts, if there are any."""
    experts = [
        (op, rules[number].dim) for op, rules in zip(graph.operators, program.rules, strict=True) if has_experts(op)
    ]
    return not experts or any(not cuts_experts(op, dim) and not _cuts_no_weight(op, dim) for op, dim in experts)


def _check_neighbours(
    graph: OperatorGraph, program: SpmdProgram, order: list[int], dealt: set[int], target: Target
) -> None:
    """Check that the devices that share the experts are neighbours, as trainers have them.

    From the fastest axis on there are devices that share an expert's matrices, those that have other experts, and then
    copies.
    """
    experts = next((k for k, op in enumerate(graph.operators) if has_experts(op)), None)
    if experts is None or not dealt:
        return
    op, is_dealt = graph.operators[experts], False
    for number in reversed(order):
        cut = program.rules[experts][number].dim
        slices = cut >= 0 and number not in dealt and not _cuts_no_weight(op, cut)
        is_dealt = is_dealt or number in dealt
        copies_first = number not in dealt and not slices and not is_dealt
        if (slices and is_dealt) or copies_first:
            axis = f"axis {number} of the mesh"
            raise target.refusal(op, f"deals its experts to devices that are no neighbours ({axis} is between)")


def sliced_along(graph: OperatorGraph, program: SpmdProgram, places: Places, target: Target) -> set[int]:
    """Return the axes along which replicas keep slices of weights; all operators must treat large weights equally.

    Raises:
        TopoplanError: a weight is whole where another one is sliced, or is stored in slices and used in others.
    """
    whole: Operator | None = None
    sliced: Operator | None = None
    axes: set[int] = set()
    data = places.data_axes
    for index, op in enumerate(graph.operators):
        count = len(op.inputs)
        for k in range(count, count + len(op.weights)):
            stored, used = program.stored[index][k], program.wanted(index, k)
            for axis, (form, use) in enumerate(zip(stored, used, strict=True)):
                if axis not in data and _slices(form) != _slices(use):
                    raise target.refusal(op, f"stores weight {op.weights[k - count].name!r} as {form} and uses {use}")
            along = {axis for axis in data if stored[axis].sliced and not used[axis].sliced}
            if along:
                sliced, axes = sliced or op, axes | along
            elif op.weights[k - count].elements >= SMALL:
                whole = whole or op
    if sliced is not None and whole is not None:
        raise target.refusal(whole, f"keeps its weights whole, but {sliced.name!r} slices them over the data")
    return axes


def _slices(sharding: Sharding) -> int:
    return sharding.axis if sharding.sliced else -1

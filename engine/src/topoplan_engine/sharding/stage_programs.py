"""Programs of stages from the signatures of their operators: in which sharding everything is stored follows from them.

Weights are stored as they are used; one that every device has whole, although devices run different parts of its
operator, or different readers of what it makes whole, has a gradient to be summed.  Data are there as they are used.
What another stage makes arrives as it is sent if both meshes have the same sizes, and else as its first reader wants
it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from topoplan.model.graph import OperatorGraph, Tensor
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, MeshSharding, Sharding, Signature, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.sharding.gradient_terms import whole_with_terms
from topoplan_engine.tied import tied_weights

__all__ = ["Rules", "stage_program", "stage_programs"]

#: The signatures of an operator, one for each axis of a mesh.
Rules = tuple[Signature, ...]


def stage_programs(
    graph: OperatorGraph,
    stage_of: Sequence[int],
    sizes: Sequence[tuple[int, ...]],
    rules: Sequence[Rules],
    gradient_bucket_bytes: int = 0,
    sliced: Sequence[int] = (),
    summed: Collection[tuple[int, int]] = (),
    gathers_again: bool = True,
) -> list[SpmdProgram]:
    """Return the program of each stage.

    Args:
        graph: the model.
        stage_of: (n_ops,) stage of each operator.
        sizes: of the mesh of each stage.
        rules: (n_ops,) signatures of each operator on the mesh of its stage.
        gradient_bucket_bytes: see `topoplan.SpmdProgram`.
        sliced: axes of the meshes along which weights are stored in slices, gathered for a pass and given back (ZeRO's
            third level), as far as devices along them have copies; none: they are stored as they are used.
        summed: (operator, axis of the meshes) along which devices run the whole operator for different readers, so that
            each has a term of the gradients of its weights, beside those of `whole_with_terms`.
        gathers_again: whether weights in slices are given back after each pass; else they stay until the backward
            pass, in pipelines for all micro-batches.
    """
    sources = {(v, k): (u, output) for u, output, v, k in graph.edges.reshape(-1, 4).tolist()}
    owner_of = {user: tied.owner for tied in tied_weights(graph) for user in tied.users}
    by_stage: list[list[int]] = [[] for _ in sizes]
    for op, stage in enumerate(stage_of):
        by_stage[stage].append(op)

    def arrives(v: int, k: int) -> MeshSharding:
        u, output = sources[v, k]
        if sizes[stage_of[u]] != sizes[stage_of[v]]:
            return tuple(rule.inputs[k] if rule.inputs[k].sliced else REPLICATED for rule in rules[v])
        forms = (rule.outputs[output] for rule in rules[u])
        return tuple(form if form.sliced else REPLICATED for form in forms)

    summed = {*summed, *whole_with_terms(graph, rules)}
    options = gradient_bucket_bytes, sliced, summed, gathers_again
    programs = []
    for stage, operators in enumerate(by_stage):
        inputs: dict[tuple[int, int], MeshSharding] = {}
        for op in operators:
            for k in range(len(graph.operators[op].inputs)):
                if (op, k) in sources:
                    inside = stage_of[sources[op, k][0]] == stage
                    inputs[op, k] = () if inside else arrives(op, k)
        own_copies = {(op, k): stage_of[owner] != stage for (op, k), owner in owner_of.items() if stage_of[op] == stage}
        programs.append(stage_program(graph, operators, sizes[stage], rules, inputs, own_copies, *options))
    return programs


def stage_program(
    graph: OperatorGraph,
    operators: Sequence[int],
    sizes: tuple[int, ...],
    rules: Sequence[Rules],
    inputs: Mapping[tuple[int, int], MeshSharding],
    copies: Mapping[tuple[int, int], bool],
    gradient_bucket_bytes: int = 0,
    sliced: Sequence[int] = (),
    summed: Collection[tuple[int, int]] = (),
    gathers_again: bool = True,
) -> SpmdProgram:
    """Return the program of some operators.

    Args:
        graph: the model.
        operators: numbers in the graph, ascending.
        sizes: of the mesh.
        rules: (n_ops,) signatures of every operator of the graph.
        inputs: (operator, input) -> how it arrives, or nothing if an operator of the stage makes it; others are data.
        copies: (operator, input) that is a weight of another operator -> whether that is one of another stage.
        gradient_bucket_bytes, sliced, summed, gathers_again: see `stage_programs`.
    """
    stored = []
    for op in operators:
        operator = graph.operators[op]
        forms = []
        for k in range(len(arguments(operator))):
            if (op, k) in inputs:
                forms.append(inputs[op, k])
                continue
            weight = k >= len(operator.inputs) or (op, k) in copies
            if not weight:
                forms.append(tuple(rule.inputs[k] for rule in rules[op]))
                continue
            form = tuple(_stored(rule, k, (op, axis) in summed) for axis, rule in enumerate(rules[op]))
            is_stored = copies.get((op, k), True)  # one of this stage is stored once, where its owner is
            forms.append(_in_slices(form, arguments(operator)[k], sizes, sliced) if is_stored else form)
        stored.append(tuple(forms))
    return SpmdProgram(
        mesh=sizes,
        rules=tuple(rules[op] for op in operators),
        stored=tuple(stored),
        gradient_bucket_bytes=gradient_bucket_bytes,
        gathers_again=bool(sliced) and gathers_again,
    )


def _stored(rule: Signature, argument: int, summed: bool) -> Sharding:
    """Return how a weight is stored along an axis."""
    form = rule.inputs[argument]
    return PENDING_GRADIENT if form == REPLICATED and (rule.dim >= 0 or summed) else form


def _in_slices(form: MeshSharding, tensor: Tensor, sizes: tuple[int, ...], sliced: Sequence[int]) -> MeshSharding:
    """Return how a weight is stored in slices along axes of the mesh, of as many as one of its own axes has room for.

    That is one that divides evenly and that operators do not cut, if there is one; where none divides, the longest, in
    slices that differ, as FSDP2 and ZeRO-3 pad them.  Along later axes of the mesh slices are cut into slices.
    """
    cut = {each.axis for each in form if each.sliced}
    slices = [
        math.prod(sizes[k] for k, each in enumerate(form) if each.sliced and each.axis == axis)
        for axis in range(len(tensor.shape))
    ]
    for axis in sliced:
        if form[axis] != PENDING_GRADIENT or sizes[axis] == 1:
            continue
        fits = [k for k, size in enumerate(tensor.shape) if size % (slices[k] * sizes[axis]) == 0]
        place = min(fits, key=lambda k: (k in cut, k), default=None)
        if place is None:
            room = [k for k, size in enumerate(tensor.shape) if size >= slices[k] * sizes[axis] and k not in cut]
            place = max(room, key=lambda k: tensor.shape[k], default=None)
        if place is not None:
            slices[place] *= sizes[axis]
            form = (*form[:axis], shard(place), *form[axis + 1 :])
    return form

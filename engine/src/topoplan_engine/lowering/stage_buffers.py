"""Bytes of a stage that belong to no operator's tensors: what the kernels of a trainer hold beside them.

A trainer that adds gradients of weights to those in fp32 inside of its kernels gives PyTorch a tensor in their place,
whose values are not read.  Transformer Engine has one for each shape of a matrix, throughout; Megatron-LM's own layers,
the head among them, make one in each backward pass.  Matrices that read the same tensor are one there: queries, keys
and values, or a gate and what it gates.  An expert has matrices of its own, of one shape.

    StageGraph, trainer's kernels ─► placeholders: bytes by shape, once for all stages of a device
                                  └► made_in_backward: bytes while the backward pass of each operator runs

Sources: NVIDIA/TransformerEngine@7088403 (``get_dummy_wgrad`` in ``pytorch/module/base.py``);
NVIDIA/Megatron-LM@d98e8a64 (``core/tensor_parallel/layers.py``, ``LinearWithGradAccumulationAndAsyncCommunication``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from topoplan.arrays import F64
from topoplan.model.graph import Operator, Role
from topoplan.model.sharding import arguments
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.experts import expert_dims
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.trainer_kernels import kernels_of
from topoplan_engine.training import shared_weights

__all__ = ["kept_in_other_slices", "made_in_backward", "placeholders"]

#: Sizes of a matrix, as one device has it.
Shape = tuple[int, ...]


def placeholders(stage: StageGraph) -> Mapping[Shape, float]:
    """Return bytes of the tensors that stand for gradients of matrices of layers, by their shape."""
    kernels = kernels_of(stage.graph)
    if kernels is None or not kernels.placeholders:
        return {}
    layer, experts = layers_of(stage.graph).layer, expert_dims(stage.graph)
    read_by: dict[tuple[int, int], list[int]] = {}
    edges = stage.graph.edges.reshape(-1, 4).tolist()
    source = {(v, k): (u, output) for u, output, v, k in edges}
    routers = {u for u, _, v, _ in edges if stage.graph.operators[v].kind == "top_k"}  # whose matrix is in fp32
    for op, operator in enumerate(stage.graph.operators):
        if layer[op] and op not in routers and stage.backward[op] and (op, 0) in source and _matrix(operator) >= 0:
            read_by.setdefault(source[op, 0], []).append(op)
    nbytes: dict[Shape, float] = {}
    for members in read_by.values():
        sizes = [_local_bytes(stage, op, experts[op]) for op in members]
        nbytes[tuple(map(round, sizes))] = sum(sizes)
    return nbytes


def made_in_backward(stage: StageGraph, micro_batches: int) -> F64:
    """(n,) bytes that are there while the backward pass of each operator runs, and belong to no activation.

    What stands for the gradient of its matrix, and its input where that was gathered for the matrix and is again.
    """
    nbytes = np.zeros(sum(position >= 0 for position in stage.position))
    kernels = kernels_of(stage.graph)
    if kernels is None or not kernels.placeholders:
        return nbytes
    layer = layers_of(stage.graph).layer
    for op, operator in enumerate(stage.graph.operators):
        position = stage.position[op]
        if position >= 0 and not layer[op] and _matrix(operator) >= 0 and stage.backward[op]:
            nbytes[position] = _local_bytes(stage, op, -1)
            nbytes[position] += _gathered_input(stage, op) / micro_batches
    return nbytes


def _matrix(operator: Operator) -> int:
    """Return the argument that is a matrix of an operator's product: its own, or another operator's; -1 for none."""
    summed = {index for index, dim in enumerate(operator.dims) if dim.role is Role.REDUCTION}
    read = {axis.dim for tensor in operator.inputs for axis in tensor.axes}
    if summed and not summed & read:  # rows of a table are looked up
        return -1
    shared = shared_weights(operator)
    for argument, tensor in enumerate(arguments(operator)):
        if (argument in shared or argument >= len(operator.inputs)) and sum(axis.dim >= 0 for axis in tensor.axes) > 1:
            return argument
    return -1


def _local_bytes(stage: StageGraph, op: int, experts: int) -> float:
    """Return the bytes of an operator's matrix on one device: of one expert, if it counts them along a dimension."""
    operator, argument = stage.graph.operators[op], _matrix(stage.graph.operators[op])
    tensor = arguments(operator)[argument]
    nbytes = tensor.nbytes / pieces(stage.program, stage.program.wanted(op, argument))
    if experts < 0:
        return nbytes
    cut = stage.program.degrees(op, len(operator.dims))[experts]
    return nbytes / (operator.dims[experts].size / cut)


def _gathered_input(stage: StageGraph, op: int) -> float:
    """Return the bytes of what an operator's backward pass reads and devices gather for it, of the batch."""
    total = 0.0
    for reshard in stage.reshards:
        if op in reshard.users and reshard.output >= 0 and stage.reads(op, reshard):
            argument = next(
                k
                for u, output, v, k in stage.graph.edges.reshape(-1, 4).tolist()
                if (u, output, v) == (reshard.op, reshard.output, op)
            )
            slices = pieces(stage.program, stage.program.wanted(op, argument))
            if slices < pieces(stage.program, stage.program.made(reshard.op, reshard.output)):
                total += reshard.nbytes / slices
    return total


def kept_in_other_slices(stage: StageGraph) -> F64:
    """(n,) bytes of the batch that a device keeps of each operator's outputs beyond those that it makes of them.

    Less where devices make terms of a sum and read slices of it.  What is gathered for an operator is gathered again
    for its backward pass, as Megatron-LM does; with DTensors (torchtitan) it is kept as the operator reads it.
    """
    keeps_gathered = (kernels := kernels_of(stage.graph)) is not None and kernels.units
    read: dict[tuple[int, int], set[int]] = {}
    for u, output, v, k in stage.graph.edges.reshape(-1, 4).tolist():
        if stage.position[u] >= 0 and stage.backward[v] and k in stage.arguments_read[v]:
            read.setdefault((u, output), set()).add(pieces(stage.program, stage.program.wanted(v, k)))
    more = np.zeros(sum(position >= 0 for position in stage.position))
    for (u, output), slices in read.items():
        nbytes = stage.graph.operators[u].outputs[output].nbytes
        n_slices = pieces(stage.program, stage.program.made(u, output))
        most = sum(nbytes / each for each in slices) if keeps_gathered else nbytes / max(*slices, n_slices)
        more[stage.position[u]] += most - nbytes / n_slices
    return more

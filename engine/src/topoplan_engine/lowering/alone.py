"""Memory of a device that trains alone: gradients of weights come in the backward pass, and go with the step.

Devices that train together keep the gradients of all weights throughout, in the buffers in which they are summed
(PyTorch's DistributedDataParallel, Megatron).  A process alone has none of these: the gradient of a weight is there
from its operator's backward pass to the optimizer's step, for ``zero_grad`` frees it (``set_to_none``, PyTorch's
default since 2.0).  So it is not there yet when the loss holds the most.  In mixed precision the step reads gradients
in fp32: they are cast one after the other, and each is free when it is cast (NVIDIA/Megatron-LM,
``Float16OptimizerWithFloat16Params._copy_model_grads_to_main_grads``).  Training data stay for the whole iteration.

Data flow: fragments on the one device ─► `alone_bytes`: (n_ops,) bytes by operator ─► `alone_peak`: the most at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan_engine.lowering.fragments import OperatorFragment
from topoplan_engine.lowering.gradient_peaks import GradientOrder
from topoplan_engine.lowering.memory_levels import Changes
from topoplan_engine.trainer_kernels import kernels_of
from topoplan_engine.training import has_sparse_gradient, shared_weights

__all__ = ["AloneBytes", "AlonePeak", "alone_bytes", "alone_peak", "is_alone", "late_gradients", "training_data_bytes"]


class AloneBytes(NamedTuple):
    """(n_ops,) bytes of every operator on one device.

    ``resting`` stays: weights and the optimizer's state.  ``weights`` are gradients of weights, of which those that
    are ``cast`` are read in fp32 by the step.  ``kept`` is there until the backward pass of the operator, ``outputs``
    and ``made`` are gradients, see `topoplan.model.costs.PartCosts`.
    """

    resting: F64
    weights: F64
    cast: F64
    kept: F64
    outputs: F64
    made: F64


class AlonePeak(NamedTuple):
    """Bytes of a device at its fullest moment, and the gradients of weights and of activations among them."""

    total: float
    weight_gradients: float
    gradients: float


def is_alone(graph: OperatorGraph, cluster: Cluster) -> bool:
    """Whether one GPU trains without others, by software that has no buffers for gradients."""
    kernels = kernels_of(graph)
    return cluster.n_devices == 1 and cluster.gpus_per_device == 1 and (kernels is None or not kernels.buffers)


def training_data_bytes(graph: OperatorGraph) -> int:
    """Return the bytes of inputs that no operator makes, and that are no weights of others; each is counted once."""
    computed_inputs = {(int(v), int(place)) for _, _, v, place in graph.edges.reshape(-1, 4)}
    return sum(
        tensor.nbytes
        for number, op in enumerate(graph.operators)
        for place, tensor in enumerate(op.inputs)
        if (number, place) not in computed_inputs and place not in shared_weights(op)
    )


def alone_bytes(graph: OperatorGraph, fragments: Sequence[OperatorFragment]) -> AloneBytes:
    """Return the bytes of every operator, whose parts are all on one device."""
    states = [np.zeros(3) if each.states is None else each.states.sum(axis=1) for each in fragments]
    _, weights, _ = np.array(states).T
    stays = np.array([float((each.memory if each.kept is None else each.kept).sum()) for each in fragments])
    memory = np.array([float(each.memory.sum()) for each in fragments])
    gradients = [np.zeros(2) if each.gradients is None else each.gradients.sum(axis=1) for each in fragments]
    is_cast = graph.precision != "fp32"
    dense = np.array([is_cast and not has_sparse_gradient(op) for op in graph.operators])
    return AloneBytes(stays - weights, weights, np.where(dense, weights, 0.0), memory - stays, *np.array(gradients).T)


def alone_peak(parts: AloneBytes, order: GradientOrder, data: float) -> AlonePeak:
    """Return the most bytes of one iteration: in the backward pass, or in the optimizer's step.

    Args:
        parts: of every operator.
        order: in which a backward pass makes gradients.
        data: bytes of training data.
    """
    level, weights, gradients = float(parts.kept.sum()), 0.0, 0.0
    fullest = AlonePeak(level, 0.0, 0.0)
    for op in range(len(parts.kept) - 1, -1, -1):
        weights += float(parts.weights[op])
        rise = float(parts.made[op])
        if level + gradients + rise + weights > fullest.total:
            fullest = AlonePeak(level + gradients + rise + weights, weights, gradients + rise)
        level -= float(parts.kept[op])
        gradients -= float(parts.outputs[op])
        gradients += float(parts.outputs[order.producer[order.ptr[op] : order.ptr[op + 1]]].sum())
    step = weights + _cast_most(parts)
    if step > fullest.total:
        fullest = AlonePeak(step, step, 0.0)
    return fullest._replace(total=fullest.total + float(parts.resting.sum()) + data)


def _cast_most(parts: AloneBytes) -> float:
    """Return the most bytes that the step adds to gradients: each becomes one of four bytes, and is free then."""
    return float((np.cumsum(parts.cast) + parts.cast).max(initial=0.0))


def late_gradients(
    graph: OperatorGraph, fragments: Sequence[OperatorFragment], starts: F64, end: float
) -> tuple[float, Changes]:
    """Return how bytes over time differ from those of devices that keep all gradients of weights.

    Args:
        graph, fragments: the model, and the parts of its operators.
        starts: (P,) seconds at which the backward passes of parts begin.
        end: seconds at which the iteration ends.

    Returns:
        Bytes that there are all the time, below 0 for gradients that come later; and when these come.
    """
    weights = np.concatenate(
        [np.zeros(len(each.memory)) if each.states is None else each.states[1] for each in fragments]
    )
    step, count = _cast_most(alone_bytes(graph, fragments)), len(weights) + 1
    changes = Changes(
        device=np.zeros(count, dtype=np.int32),
        time=np.append(starts, end),
        nbytes=np.append(weights, step),
        first=np.zeros(count, dtype=np.bool_),
    )
    return training_data_bytes(graph) - float(weights.sum()), changes

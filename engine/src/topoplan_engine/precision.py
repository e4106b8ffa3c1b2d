"""Mixed precision as a property of the model: what 2-byte tensors change in bytes, memory and rates.

    frontend's graph (fp32) ─► in_precision ─► graph ─► estimator, searchers, lowering, simulators

Activations, weights and their gradients take half the bytes, wherever they are kept or sent, so that everything that
counts bytes of tensors needs to know no more.  Two things do not follow from bytes:

- *memory of weights* (`weight_states`): beside a weight and its gradient of 2 bytes each, the optimizer keeps the
  weight and its own state in 4 bytes: 16 bytes for each parameter under Adam.  Source: Rajbhandari et al., ZeRO:
  Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, section 3.1; the technique is that of
  Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1;
- *rates* (`at_speed`): an estimator that knows the devices' rates prices the graph in its precision; the seconds of
  any other one are those of fp32, and are divided by a factor that the user states, or by factors of operators that
  the cost function knows (`PrecisionSpeedups`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.errors import TopoplanError
from topoplan.model.costs import CostFunction
from topoplan.model.graph import Axis, Operator, OperatorGraph, Tensor
from topoplan.plugin.components import Estimator
from topoplan_engine.model_notes import with_note
from topoplan_engine.scaling import scaled_costs
from topoplan_engine.training import shared_weights

__all__ = [
    "OPTIMIZERS",
    "PrecisionSpeedups",
    "at_speed",
    "in_fp8",
    "in_precision",
    "in_run_precision",
    "optimizer_of",
    "stating",
    "weight_states",
]

#: How much smaller an element is than in fp32.
_SMALLER = 2

#: Tags of a graph: the precision that its file states, and which key of which file does.
_STATED, _SOURCE = "precision", "precision source"

#: Optimizer -> numbers in fp32 that it keeps for each weight, beside the weight itself: Adam two moments, or two in
#: bf16, which take as much as one (DeepSeek-V3, 2024, section 3.3.3); momentum one.
OPTIMIZERS: Mapping[str, int] = MappingProxyType({"adam": 2, "adam-bf16": 1, "momentum": 1, "sgd": 0})


@runtime_checkable
class PrecisionSpeedups(Protocol):
    """The part of a cost function in fp32 that knows how much faster mixed precision is, if it does."""

    def speedups(self) -> tuple[F64, str] | None:
        """Return (n,) factors on the speed of operators in the model's precision, and what they rest on; None: unknown.

        Raises:
            TopoplanError: a device has no such arithmetic.
        """


def optimizer_of(graph: OperatorGraph) -> str:
    """Return the optimizer of a model: Adam unless it says."""
    return graph.optimizer or "adam"


def in_precision(graph: OperatorGraph, precision: str) -> OperatorGraph:
    """Return an fp32 model in ``precision``: the very same for ``fp32``, with half the bytes otherwise.

    Training data (inputs that no operator gives) keep their bytes: they are indices, or cast when they are read.
    Weights that an operator shares with another one are inputs that no operator gives, too, and have half the bytes.
    A tensor that is stated in bytes, as profiles do, has half of them, rounded up.
    """
    if precision == graph.precision:
        return graph
    computed = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
    operators = tuple(
        _smaller(op, [(index, k) in computed or k in shared_weights(op) for k in range(len(op.inputs))])
        for index, op in enumerate(graph.operators)
    )
    return attrs.evolve(graph, operators=operators, precision=precision)


def stating(graph: OperatorGraph, precision: str, source: str) -> OperatorGraph:
    """Return an fp32 model whose file states the precision that it is trained in; ``source`` names the key and file."""
    return attrs.evolve(graph, tags={**graph.tags, _STATED: precision, _SOURCE: source})


def in_run_precision(graph: OperatorGraph, precision: str | None) -> OperatorGraph:
    """Return an fp32 model in the precision of a run: the one that its user says, or else its file, or else fp32.

    What the file states is noted (`topoplan_engine.model_notes`), whether it is taken or not.  ``fp8`` is mixed
    precision in bf16 whose products run in fp8: bytes are those of bf16, and `in_fp8` is for the rates.
    """
    stated = graph.tags.get(_STATED)
    chosen = precision or stated or "fp32"
    changed = in_precision(graph, "bf16" if chosen == "fp8" else chosen)
    if stated is None:
        return changed
    source = f"{stated} ({graph.tags[_SOURCE]})"
    is_taken = precision is None or precision == stated
    return with_note(changed, "precision", source if is_taken else f"{chosen} (--precision; not {source})")


def in_fp8(estimator: Estimator) -> Estimator:
    """Return an estimator that prices products in fp8.

    Raises:
        TopoplanError: it has no option for that.
    """
    if not any(field.name == "fp8" for field in attrs.fields(type(estimator))):
        raise TopoplanError(
            f"precision: fp8: estimator {estimator.name} knows no products in fp8 (-e kernels or -e roofline do)"
        )
    options: dict[str, Any] = {"fp8": True}
    return attrs.evolve(estimator, **options)


def weight_states(graph: OperatorGraph, copies: int | None = None, *, gradient: bool = True) -> tuple[int, int, int]:
    """Return how many times its bytes in ``graph`` a weight, its gradient and the optimizer's state take in memory.

    Args:
        graph: the model, in its precision, with its optimizer.
        copies: numbers that the optimizer keeps for each weight; None: as many as the model's optimizer.
        gradient: there is a gradient of the same size; not where few rows of a table get one.

    Returns:
        In mixed precision the state is in fp32, and with it counts one more copy of the weight, which the optimizer
        updates.
    """
    count = OPTIMIZERS[optimizer_of(graph)] if copies is None else copies
    return 1, int(gradient), count if graph.precision == "fp32" else _SMALLER * (1 + count)


def at_speed(estimator: Estimator, costs: CostFunction, graph: OperatorGraph, speedup: float | None) -> CostFunction:
    """Return what ``estimator`` built for ``graph``, at the rate of the graph's precision.

    Args:
        estimator: made ``costs``.
        costs: prices parts of ``graph``.
        graph: the model, in its precision.
        speedup: how much faster than in fp32 devices compute; None where the user says nothing, for what ``costs``
            knows itself.  The assumptions of the result then say what that is.

    Raises:
        TopoplanError: the factor is missing, or there is no use for it.
    """
    precision = graph.precision
    if precision == "fp32":
        if speedup is not None:
            raise TopoplanError("precision-speedup: is for mixed precision (choose --precision bf16 or fp16)")
        return costs
    if estimator.knows_precision:
        if speedup is not None:
            raise TopoplanError(
                f"precision-speedup: estimator {estimator.name} knows the rates of devices in {precision} "
                "(leave it out)"
            )
        return costs
    speedups = costs.speedups() if speedup is None and isinstance(costs, PrecisionSpeedups) else None
    if speedups is not None:
        factors, note = speedups
        faster = scaled_costs(costs, 1 / factors)
        faster.assumptions = {**costs.assumptions, "notes": {**costs.assumptions.get("notes", {}), precision: note}}
        return faster
    if speedup is None:
        raise TopoplanError(
            f"precision: the times of estimator {estimator.name} are those of fp32: say how much faster {precision} is "
            f"(--precision-speedup 2, or 1 if they were measured in {precision})"
        )
    return scaled_costs(costs, np.full(len(graph.operators), 1 / speedup))


def _smaller(op: Operator, computed: list[bool]) -> Operator:
    """Halve everything but training data; ``computed`` says of each input that it is none."""
    data = [tensor for tensor, is_computed in zip(op.inputs, computed, strict=True) if not is_computed]
    activations = op.tags.get(
        "activations", ""
    ).split()  # of its extras and scratch; others are indices, or sums in fp32
    # A term over just the dimensions of training data is their traffic.
    reads = {frozenset(axis.dim for axis in tensor.axes if axis.dim >= 0) for tensor in data}
    return attrs.evolve(
        op,
        inputs=tuple(
            _halved(tensor) if is_computed else tensor for tensor, is_computed in zip(op.inputs, computed, strict=True)
        ),
        weights=tuple(map(_halved, op.weights)),
        outputs=tuple(map(_halved, op.outputs)),
        extras=tuple(_halved(tensor) if tensor.name in activations else tensor for tensor in op.extras),
        scratch=tuple(_halved(tensor) if tensor.name in activations else tensor for tensor in op.scratch),
        traffic=tuple(
            term if frozenset(term.dims) in reads else attrs.evolve(term, coefficient=term.coefficient / _SMALLER)
            for term in op.traffic
        ),
        profile=None
        if op.profile is None
        else attrs.evolve(op.profile, activation_bytes=op.profile.activation_bytes / _SMALLER),
    )


def _halved(tensor: Tensor) -> Tensor:
    if tensor.itemsize % _SMALLER == 0:
        return attrs.evolve(tensor, itemsize=tensor.itemsize // _SMALLER)
    # Stated in bytes: fewer of them, along the axis that no cut follows.
    free = max((k for k, axis in enumerate(tensor.axes) if axis.dim < 0), default=-1)
    axes = tuple(Axis(-(-axis.size // _SMALLER)) if k == free else axis for k, axis in enumerate(tensor.axes))
    return attrs.evolve(tensor, axes=axes)

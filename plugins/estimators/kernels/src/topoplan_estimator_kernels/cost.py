"""Prices of parts: the kernels that a part launches, at the times that its device's constants give.

A part has the shape that its kernels see (`topoplan_operator_times.parts`); equal shapes are priced once.  Where a
user's own table has the shape, its times count.  A tensor that several operators read gets the sum of their gradients,
by kernels that count with the operator that made it.  Memory is that of the tensors, as ``roofline`` counts it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from topoplan.arrays import F64, I32, f64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.graph import OperatorGraph, Slices
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.partition import slice_elements
from topoplan_engine.precision import optimizer_of, weight_states
from topoplan_engine.throughput import sequence_length
from topoplan_engine.training import gradient_flow, has_sparse_gradient, trained_weights
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_kernels.launching import Launching
from topoplan_estimator_kernels.measured import measured_errors
from topoplan_estimator_kernels.operators import PartSeconds, operator_seconds
from topoplan_estimator_kernels.within import Within, in_software
from topoplan_kernel_constants.kernels import Kernels
from topoplan_kernel_constants.sheets import DEVICES, origin, sheet
from topoplan_operator_times.equal_parts import for_equal_parts
from topoplan_operator_times.parts import PartShape, gradients_of, part_shape
from topoplan_operator_times.saved import gradient_tensors, saved_tensors
from topoplan_operator_times.speeds import at_speeds
from topoplan_operator_times.states import state_bytes
from topoplan_operator_times.table import PartTimes, read
from topoplan_operator_times.work import part_work, parts_are_equal, weight_shares

__all__ = ["KernelCosts"]

_LOSSES = ("cross_entropy", "nll_loss")

#: Optimizer of a model -> the kernel of its step.
_STEPS = {"adam": "adam_fused", "adam-bf16": "adam_fused", "momentum": "sgd_momentum_fused", "sgd": "sgd_fused"}


class KernelCosts(CostFunction):
    """A `topoplan.CostFunction`: see the module.

    Attributes:
        assumptions: what the constants were measured on, and how kernels are launched, as plans record it.
        graph: the model that is priced.
        launching: what launches add.
    """

    knows_training = True

    def __init__(self, options: KernelTimes, graph: OperatorGraph, cluster: Cluster) -> None:
        self.graph, self._gpus = graph, cluster.gpus_per_device
        self._mode = _mode_of(options, graph)
        device = _device_of(options, cluster)
        options = in_software(options, graph, device)
        self._kernels = Kernels.of(device)
        self._experts, self._fused = options.experts, bool(options.fused)
        self._narrow = _narrow_of(options, graph, device)
        self._within = Within(options, self._kernels, self._mode)
        self._table = _table_of(options, graph)
        self._flow, self._weight_share = gradient_flow(graph), weight_shares(graph)
        self._gradients, self._saved = gradients_of(graph), saved_tensors(graph)
        self._gradient_tensors = gradient_tensors(graph)
        self._trained = [trained_weights(graph, op) for op in range(len(graph.operators))]
        self._states = weight_states(graph)
        self._sums = _sums_of_gradients(graph, self._gradients)
        self._step = _STEPS[optimizer_of(graph)] if options.optimizer == "auto" else options.optimizer
        self._tensors = max(sum(map(len, self._trained)), 1)
        self._speed = cluster.device_speed
        self._equal = bool((self._speed == self._speed[0]).all())
        self.assumptions: Mapping[str, Any] = {
            "precision": self._mode,
            **({"device": options.device} if options.device else {}),
            "kernels": origin(device),
            **({narrow: "products of layers and experts with weights"} if (narrow := _narrow(options)) else {}),
            **({"experts": self._experts} if self._experts != "grouped" else {}),
            **({"fused": True} if self._fused else {}),
            "launch": options.launch,
            "optimizer": self._step,
            **({"table": options.table} if options.table else {}),
            **self._within.changed,
            **(_measured(options, graph, device, cluster) if sequence_length(graph) is not None else {}),
        }
        # For each operator, the first one that differs in its name only: layers of a model share their prices.
        first: dict[object, int] = {}
        summed = [tuple(sorted(sums.items())) for sums in self._sums]
        columns = (first_equal(graph), self._flow.backward, self._gradients, self._weight_share, self._saved)
        rows = zip(*columns, self._trained, self._gradient_tensors, summed, self._narrow, strict=True)
        self._like = [first.setdefault(row, number) for number, row in enumerate(rows)]
        self._of_one: dict[tuple[int, tuple[int, ...], int], PartCosts] = {}
        self._shapes: dict[tuple[PartShape, str], PartSeconds] = {}
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._steps_of: dict[tuple[int, tuple[int, ...]], F64] = {}  # of the optimizer, on devices of one speed
        whole = [self._device_seconds(op, (1,) * len(operator.dims)) for op, operator in enumerate(graph.operators)]
        kinds = [operator.kind for operator in graph.operators]
        self.launching = Launching.of(options.launch, self._kernels, self._mode, kinds, whole, options.host)

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether this is a legal cut into parts as even as can be."""
        uneven = any(isinstance(degree, Slices) for degree in degrees)
        return not uneven and not self.graph.operators[op].why_invalid(degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part as the largest of the cut; the arrays are read-only.

        Raises:
            TopoplanError: the cut is not legal, or its parts are not even.
        """
        key = self._like[op], degrees
        cached = self._prices.get(key)
        if cached is None:
            self._check(op, degrees)
            # Lowerings share what they make of one price, which is long on many devices.
            if self._equal and self._parts_are_equal(op, degrees):
                price = at_speeds(self._costs(op, degrees, of_one=True), self._speed[devices[:1]])
                return self._prices.setdefault(key, for_equal_parts(price, math.prod(degrees)))
            cached = self._costs(op, degrees)
            cached = self._prices[key] = at_speeds(cached, self._speed[devices]) if self._equal else cached
        return cached if self._equal else at_speeds(cached, self._speed[devices])

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Price every part of a micro-batch; where all are equal, one for all.

        Raises:
            TopoplanError: see `price`.
        """
        cut = batch.cut(degrees)
        key = self._like[op], cut, math.prod(degrees)
        if key in self._of_one:
            return self._of_one[key]
        if batch.whole or (self._speed != 1).any() or not self._parts_are_equal(op, cut):
            return super().price_micro_batch(op, degrees, devices, batch)
        self._check(op, cut)
        price = self._costs(op, cut, of_one=True)
        self._of_one[key] = for_equal_parts(price, key[2])
        return self._of_one[key]

    def _parts_are_equal(self, op: int, degrees: tuple[int, ...]) -> bool:
        gradients = self._gradient_tensors[op]
        tensors = (*self._saved[op], *gradients.outputs, *gradients.inputs, *gradients.scratch)
        return parts_are_equal(self.graph.operators[op], degrees, tensors)

    def _check(self, op: int, degrees: tuple[int, ...]) -> None:
        operator = self.graph.operators[op]
        if reason := operator.why_invalid(degrees):
            raise TopoplanError(f"kernels: operator {operator.name!r}: {reason}")
        if not self.supports(op, degrees):
            raise TopoplanError(f"kernels: operator {operator.name!r}: slices of unequal size have no measured kernels")

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """(weights, P) seconds of the optimizer's step; None where none is priced, for tables, and without any."""
        operator = self.graph.operators[op]
        if self._step == "none" or not operator.weights or has_sparse_gradient(operator):
            return None
        key = self._like[op], degrees
        if key in self._steps_of:
            return self._steps_of[key]
        steps = self._kernels.steps.seconds
        mixed = self.graph.precision != "fp32" and ("bf16", self._step) in steps
        nothing, element, tensor = steps["bf16" if mixed else "fp32", self._step]
        each = tensor + nothing / self._tensors  # one step of all weights of the model
        waiting = self.launching.step(0.0, len(devices))
        some = 1 if self._equal and self._parts_are_equal(op, degrees) else len(devices)
        slices = np.array([slice_elements(operator, weight, degrees)[:some] for weight in operator.weights])
        seconds = (slices * element + each) * self._within.options.passes
        seconds = f64(np.maximum(seconds, waiting) / self._speed[devices[:some]])
        seconds = np.broadcast_to(seconds, (len(slices), len(devices))) if some == 1 else seconds
        if self._equal:
            self._steps_of[key] = seconds
        return seconds

    def _costs(self, op: int, degrees: tuple[int, ...], *, of_one: bool = False) -> PartCosts:
        """Return costs on devices of normal speed, of all parts or of one."""
        operator = self.graph.operators[op]
        rows = self._saved[op], self._trained[op], self._gradient_tensors[op]
        work = part_work(operator, degrees, self._gpus, *rows, of_one=of_one)
        parts = len(work.weights)
        cut_into = math.prod(degrees)
        seconds = self.launching.seconds(operator.kind, self._device_seconds(op, degrees), cut_into)
        states = state_bytes(operator, work, self._states)
        share = self._weight_share[op]
        added = self._accumulation(op, degrees)
        backward = np.full(parts, seconds.backward)
        return PartCosts(
            forward=f64(np.full(parts, seconds.forward)),
            backward=f64(backward + added),
            memory=f64(states.sum(axis=0) + work.saved),
            states=f64(states),
            weight_gradient=None if share is None else f64(backward * share + added),
            gradients=f64(work.gradients),
        )

    def _device_seconds(self, op: int, degrees: tuple[int, ...]) -> PartSeconds:
        """Return what the largest part takes in a stream, with the sums of gradients of its outputs."""
        operator = self.graph.operators[op]
        shape = part_shape(operator, degrees, self._gradients[op], self._gpus)
        key = shape, self._narrow[op]
        seconds = self._shapes.get(key)
        if seconds is None:
            seconds = self._shapes[key] = self._shape_seconds(*key)
        backward = seconds.backward if self._flow.backward[op] else 0.0
        for output, sums in self._sums[op].items():
            piece = shape.outputs[output]
            elements = piece.nbytes / piece.itemsize
            added = self._kernels.moving(self._mode, "add", "forward", 1, max(elements, 1))
            backward += sums * added * self._within.options.passes
        return PartSeconds(seconds.forward, backward)

    def _shape_seconds(self, shape: PartShape, narrow: str) -> PartSeconds:
        row = self._table.get(shape)
        if row is not None and row.forward is not None and row.backward is not None:
            return PartSeconds(row.forward.median, row.backward.median)
        kernel_seconds = operator_seconds(
            self._kernels, self._mode, shape, narrow=narrow, experts=self._experts, fused=self._fused
        )
        return self._within.seconds(shape, kernel_seconds)

    def _accumulation(self, op: int, degrees: tuple[int, ...]) -> float:
        """Return the seconds in which the largest part adds gradients of weights to those of other micro-batches."""
        nbytes, operator = self._within.options.accumulation, self.graph.operators[op]
        if not nbytes or not any(self._trained[op]) or has_sparse_gradient(operator):
            return 0.0
        largest = (float(slice_elements(operator, weight, degrees).max()) for weight in self._trained[op])
        return sum(self._within.moving(elements, nbytes) for elements in largest)


def _sums_of_gradients(graph: OperatorGraph, gradients: list[tuple[bool, ...]]) -> list[Counter[int]]:
    """Return for each operator how many gradients of each output are added to the first one."""
    readers: list[Counter[int]] = [Counter() for _ in graph.operators]
    for u, output, v, place in graph.edges.reshape(-1, 4).tolist():
        readers[u][output] += gradients[v][place]
    return [Counter({output: count - 1 for output, count in of.items() if count > 1}) for of in readers]


def _narrow(options: KernelTimes) -> str:
    return "fp4" if options.fp4 else "fp8" if options.fp8 else ""


def _narrow_of(options: KernelTimes, graph: OperatorGraph, device: str) -> list[str]:
    """Return the narrower precision of each product: none of those that a loss reads, which stay as they are."""
    narrow = _narrow(options)
    if not narrow:
        return [""] * len(graph.operators)
    if narrow not in sheet(device).flops or graph.precision not in ("bf16", "fp16"):
        raise TopoplanError(
            f"estimator kernels: {narrow}: needs a device that has it and a model in bf16 or fp16, not {device} and "
            f"{graph.precision}"
        )
    losses = {op for op, operator in enumerate(graph.operators) if operator.kind in _LOSSES}
    heads = {int(u) for u, _, v, _ in graph.edges.reshape(-1, 4).tolist() if v in losses}
    return ["" if op in heads else narrow for op in range(len(graph.operators))]


def _mode_of(options: KernelTimes, graph: OperatorGraph) -> str:
    """Return the precision of products; what the library calls fp16 runs as bf16 does."""
    mode = options.precision or graph.precision
    allowed = ("fp32", "tf32") if graph.precision == "fp32" else (graph.precision,)
    if mode not in allowed:
        raise TopoplanError(
            f"estimator kernels: precision: {mode} is not that of the model, {graph.precision} (allowed: "
            f"{', '.join(allowed)}; --precision sets the model's)"
        )
    return "bf16" if mode == "fp16" else mode


def _measured(options: KernelTimes, graph: OperatorGraph, device: str, cluster: Cluster) -> dict[str, Any]:
    """Return how far predictions of language models on such devices were off."""
    precision = _narrow(options) or options.precision or graph.precision
    gpus = cluster.n_devices * cluster.gpus_per_device
    return {"measured_errors": measured_errors(device, gpus, precision, options.products)}


def _device_of(options: KernelTimes, cluster: Cluster) -> str:
    """Return the kind of device whose constants price all devices."""
    kinds = {options.device.lower()} if options.device else {name.lower() for name in set(cluster.device_preset)}
    unknown = sorted(kinds - set(DEVICES))
    if unknown:
        raise TopoplanError(
            f"estimator kernels: device: there are no constants of {unknown[0]} (have: {', '.join(DEVICES)}; "
            "-e roofline prices any device, -e measured:file=TABLE one that you measured)"
        )
    if len(kinds) > 1:
        raise TopoplanError(
            f"estimator kernels: device: devices of one kind are priced, not {', '.join(sorted(kinds))}"
        )
    return kinds.pop()


def _table_of(options: KernelTimes, graph: OperatorGraph) -> Mapping[PartShape, PartTimes]:
    if not options.table:
        return {}
    table = read(Path(options.table))
    if table.bench.precision != graph.precision:
        raise TopoplanError(
            f"estimator kernels: table: {options.table} was measured in {table.bench.precision}, and the model is in "
            f"{graph.precision}"
        )
    return table.rows

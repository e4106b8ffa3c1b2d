"""The roofline model: the time of a kernel is the maximum of FLOPs over peak rate and bytes over bandwidth.

Model: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009; plus a constant time per kernel.
Work is cached by (operator, degrees); where all devices are equal, so are the finished prices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I32, f64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.graph import Operator, OperatorGraph, Role
from topoplan.model.machine import Device
from topoplan_engine.distinct import numbered_names
from topoplan_engine.equal_operators import first_equal, layers_of
from topoplan_engine.partition import slice_elements
from topoplan_engine.precision import weight_states
from topoplan_engine.training import has_sparse_gradient, trained_weights
from topoplan_estimator_roofline import Roofline
from topoplan_operator_times.equal_parts import for_equal_parts
from topoplan_operator_times.saved import gradient_tensors, saved_tensors
from topoplan_operator_times.states import state_bytes
from topoplan_operator_times.work import PartWork, factors_of, part_work, parts_are_equal, weight_shares

__all__ = ["RooflineCosts"]

#: Share of the arithmetic peak where no matrix product was measured.
_NOT_MEASURED = 0.9


@attrs.frozen(eq=False)
class _Rates:
    """(D,) each: FLOP/s that kernels, and products of layers, reach, bytes/s of kernels, and seconds per kernel."""

    flops: F64
    products: F64
    bandwidth: F64
    overhead: F64


class RooflineCosts(CostFunction):
    """A `topoplan.CostFunction`: see the module.

    Attributes:
        assumptions: precision and efficiencies, as plans record them.
    """

    knows_training = True

    def __init__(self, options: Roofline, graph: OperatorGraph, cluster: Cluster) -> None:
        self._graph = graph
        self._share, self._prices_steps = cluster.gpus_per_device, options.optimizer_step
        self._states = weight_states(graph, options.optimizer_state)
        precision = options.precision or graph.precision
        self._rates = _rates(options, cluster, precision)
        devices = {device.name: device for device in map(cluster.device, dict.fromkeys(_names(options, cluster)))}
        self.assumptions: Mapping[str, Any] = {
            "precision": precision,
            **({"device": options.device} if options.device else {}),
            **_assumed_rates(options, devices, precision),
            **({"optimizer_step": True} if options.optimizer_step else {}),
            **({"fp8": "products of layers with weights"} if options.fp8 else {}),
        }
        layers = layers_of(graph).layer
        self._is_product = [
            bool(layer) and _multiplies_weights(op) for layer, op in zip(layers, graph.operators, strict=True)
        ]
        self._equal = all((column == column[0]).all() for column in attrs.astuple(self._rates, recurse=False))
        self._backward, self._weight_share = factors_of(graph), weight_shares(graph)
        self._saved, self._gradients = saved_tensors(graph), gradient_tensors(graph)
        self._trained = [trained_weights(graph, op) for op in range(len(graph.operators))]
        # For each operator, the first one that differs in its name only: layers of a model share their prices.
        first: dict[object, int] = {}
        columns = (first_equal(graph), self._backward, self._weight_share, self._saved, self._trained, self._gradients)
        rows = zip(*columns, self._is_product, strict=True)
        self._like = [first.setdefault(row, number) for number, row in enumerate(rows)]
        self._work: dict[tuple[int, tuple[int, ...]], PartWork] = {}
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._of_one: dict[tuple[int, tuple[int, ...], int], PartCosts] = {}

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether ``degrees`` is a legal cut of operator ``op``; every legal cut can be priced."""
        return not self._graph.operators[op].why_invalid(degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part on its device; the arrays are shared between calls and read-only.

        Raises:
            TopoplanError: the cut is not legal.
        """
        key = (self._like[op], degrees)
        cached = self._prices.get(key)
        if cached is not None:
            return cached
        work = self._work.get(key)
        if work is None:
            self._check(op, degrees)
            if self._equal and self._parts_are_equal(op, degrees):
                price = self._price(op, self._part_work(op, degrees, of_one=True), devices)
                return self._prices.setdefault(key, for_equal_parts(price, math.prod(degrees)))
            work = self._work[key] = self._part_work(op, degrees)
        costs = self._price(op, work, devices)
        if self._equal:
            self._prices[key] = costs
        return costs

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Price every part of a micro-batch; where all are equal, on equal devices, one for all.

        Raises:
            TopoplanError: see `price`.
        """
        cut = batch.cut(degrees)
        key = self._like[op], cut, math.prod(degrees)
        if key in self._of_one:
            return self._of_one[key]
        if batch.whole or not self._equal or not self._parts_are_equal(op, cut):
            return super().price_micro_batch(op, degrees, devices, batch)
        self._check(op, cut)
        price = self._price(op, self._part_work(op, cut, of_one=True), devices)
        self._of_one[key] = for_equal_parts(price, key[2])
        return self._of_one[key]

    def _parts_are_equal(self, op: int, degrees: tuple[int, ...]) -> bool:
        gradients = self._gradients[op]
        tensors = (*self._saved[op], *gradients.outputs, *gradients.inputs, *gradients.scratch)
        return parts_are_equal(self._graph.operators[op], degrees, tensors)

    def _check(self, op: int, degrees: tuple[int, ...]) -> None:
        operator = self._graph.operators[op]
        if reason := operator.why_invalid(degrees):
            raise TopoplanError(f"roofline: operator {operator.name!r}: {reason}")

    def _part_work(self, op: int, degrees: tuple[int, ...], *, of_one: bool = False) -> PartWork:
        rows = self._saved[op], self._trained[op], self._gradients[op]
        return part_work(self._graph.operators[op], degrees, self._share, *rows, of_one=of_one)

    def _price(self, op: int, work: PartWork, devices: I32) -> PartCosts:
        """Return the price of some work on devices."""
        rows = np.zeros(len(work.flops), dtype=np.int64) if self._equal else devices
        rates = self._rates.products if self._is_product[op] else self._rates.flops
        arithmetic, moving = work.flops / rates[rows], work.traffic / self._rates.bandwidth[rows]
        overhead, times = self._rates.overhead[rows], self._backward[op]
        states = state_bytes(self._graph.operators[op], work, self._states)
        backward = np.maximum(arithmetic * times.flops, moving * times.traffic) + overhead * times.kernels
        share = self._weight_share[op]
        return PartCosts(
            forward=f64(np.maximum(arithmetic, moving) + overhead),
            backward=f64(backward),
            memory=f64(states.sum(axis=0) + work.saved),
            states=f64(states),
            weight_gradient=None if share is None else f64(backward * share),
            gradients=f64(work.gradients),
        )

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """(weights, P) seconds of the optimizer's step; None unless it is priced, for tables, and without weights.

        A step is one kernel that reads the gradient, and reads and writes the weight and the optimizer's state; in
        mixed precision the weight that it reads is the fp32 copy among the state.
        """
        operator = self._graph.operators[op]
        if not self._prices_steps or not operator.weights or has_sparse_gradient(operator):
            return None
        weight, gradient, state = self._states
        moved = gradient + 2 * state + (2 * weight if self._graph.precision == "fp32" else weight)
        slices = [slice_elements(operator, tensor, degrees) * tensor.itemsize for tensor in operator.weights]
        return f64(moved * np.array(slices) / self._rates.bandwidth[devices] + self._rates.overhead[devices])


def _multiplies_weights(operator: Operator) -> bool:
    """Whether an operator is a product of what it reads with a matrix of weights; looking rows up is none."""
    if has_sparse_gradient(operator) or not operator.work:
        return False
    summed = {index for index, dim in enumerate(operator.dims) if dim.role is Role.REDUCTION}
    inputs = {axis.dim for tensor in operator.inputs for axis in tensor.axes}
    return any({axis.dim for axis in weight.axes} & summed & inputs for weight in operator.weights)


def _names(options: Roofline, cluster: Cluster) -> tuple[str, ...]:
    """Return the kind that each device is priced as."""
    return (options.device,) * cluster.n_devices if options.device else cluster.device_preset


def _efficiency(options: Roofline, device: Device, precision: str) -> float:
    """Return the share of the arithmetic peak that kernels reach."""
    if options.compute_efficiency is not None:
        return options.compute_efficiency
    return device.matmul_efficiency.get(precision, _NOT_MEASURED)


def _assumed_rates(options: Roofline, devices: Mapping[str, Device], precision: str) -> dict[str, Any]:
    """Return what plans record of the rates: the ones that are given, and shares of the devices' peaks otherwise."""
    compute: dict[str, Any] = {"compute_tflops": options.compute_tflops}
    if options.compute_tflops is None:
        efficiencies = {name: _efficiency(options, device, precision) for name, device in devices.items()}
        compute = {"compute_efficiency": efficiencies}
    if options.memory_gb_per_s is None:
        return {**compute, "memory_efficiency": options.memory_efficiency}
    return {**compute, "memory_gb_per_s": options.memory_gb_per_s}


def _rates(options: Roofline, cluster: Cluster, precision: str) -> _Rates:
    """Return what each device of the cluster reaches."""
    names, number = numbered_names(_names(options, cluster))
    columns: list[tuple[float, float, float, float]] = []
    for name in names:
        device = cluster.device(name)
        if precision not in device.peak_flops and options.compute_tflops is None:
            raise TopoplanError(
                f"estimator roofline: precision: {device.name} has no {precision} "
                f"(it has {', '.join(device.peak_flops)})"
            )
        if options.fp8 and not {"fp8", precision} <= set(device.peak_flops):
            raise TopoplanError(
                f"estimator roofline: fp8: {device.name} has no fp8 (it has {', '.join(device.peak_flops)})"
            )
        faster = device.peak_flops["fp8"] / device.peak_flops[precision] if options.fp8 else 1.0
        overhead = device.kernel_overhead if options.kernel_overhead_us is None else options.kernel_overhead_us * 1e-6
        kind = (
            device.peak_flops[precision] * _efficiency(options, device, precision)
            if options.compute_tflops is None
            else options.compute_tflops * 1e12,
            device.memory_bandwidth * options.memory_efficiency
            if options.memory_gb_per_s is None
            else options.memory_gb_per_s * 1e9,
            overhead,
            faster,
        )
        columns.append(kind)
    rows = np.array(columns)[number]
    speed = cluster.device_speed
    flops = f64(rows[:, 0] * speed)
    return _Rates(
        flops=flops,
        products=f64(flops * rows[:, 3]),
        bandwidth=f64(rows[:, 1] * speed),
        overhead=f64(rows[:, 2] / speed),
    )

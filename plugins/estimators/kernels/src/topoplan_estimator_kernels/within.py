"""Prices of kernels within an iteration, as a software runs them, where they are known one by one.

Matrix products and kernels that move bytes take longer within an iteration than by themselves (clocks, caches, work of
communication kernels); attention that keeps no scores on chip writes them to memory several times; gradients are summed
over micro-batches, in four bytes; and where the host launches kernels one by one, an operator takes no less than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I32, f64
from topoplan.model.costs import CostFunction, PartCosts
from topoplan_engine.partition import slice_elements
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_kernels.cost import KernelCosts
from topoplan_kernel_constants.launches import launches_of
from topoplan_operator_times.parts import PartShape, gradients_of, part_shape

__all__ = ["CHANGES", "IterationCosts"]

#: Operators that are matrix products.
_PRODUCTS = frozenset({"bmm", "einsum", "expert_linear", "linear", "matmul"})
_ATTENTION = "scaled_dot_product_attention"
#: Bytes moved for each score of 2 bytes.  Forward: scores are written, read and written by scale, mask and softmax in
#: one kernel, read and written by dropout with a mask of one byte, and read by the product with values.  Backward:
#: their gradient is written, passes dropout and softmax likewise, and is read by two products; the dropped scores are
#: read by one.
_FORWARD_BYTES, _BACKWARD_BYTES = 2 + 4 + 5 + 2, 2 + 2 + 5 + 6 + 4
_HALVINGS = 30
#: Options of the estimator that change prices of kernels one by one.
CHANGES = ("products", "passes", "attention", "accumulation", "launch_us")
_DEFAULTS = {field.name: field.default for field in attrs.fields(KernelTimes)}


class IterationCosts(CostFunction):
    """A `topoplan.CostFunction`: those of kernels one by one, changed by options; see the module."""

    knows_training = True

    def __init__(self, options: KernelTimes, costs: KernelCosts) -> None:
        self._options, self._costs, self._graph = options, costs, costs.graph
        self._kernels, self._mode = costs.launching.kernels, costs.launching.mode
        self._gradients = gradients_of(self._graph)
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._shares: dict[int, float] = {}
        changed = {name: getattr(options, name) for name in CHANGES if getattr(options, name) != _DEFAULTS[name]}
        self.assumptions: Mapping[str, Any] = {**costs.assumptions, **changed}

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether the estimator can price it."""
        return self._costs.supports(op, degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part."""
        cached = self._prices.get((op, degrees))
        if cached is None:
            cached = self._prices[op, degrees] = self._price(op, degrees, devices)
        return cached

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """(weights, P) seconds of the optimizer's step."""
        seconds = self._costs.optimizer_seconds(op, degrees, devices)
        return None if seconds is None else f64(seconds * self._options.passes)

    def _price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        price = self._costs.price(op, degrees, devices)
        forward, backward = self._seconds(op, degrees, price)
        added = self._accumulation(op, degrees)
        forward, backward = self._launched(op, forward, backward, len(price.forward))
        before = price.weight_gradient
        share = 0.0 if before is None else float(np.divide(before, price.backward, where=price.backward > 0).max())
        return attrs.evolve(
            price,
            forward=f64(forward),
            backward=f64(backward + added),
            weight_gradient=None if before is None else f64(backward * share + added),
        )

    def _seconds(self, op: int, degrees: tuple[int, ...], price: PartCosts) -> tuple[F64, F64]:
        options, operator = self._options, self._graph.operators[op]
        if operator.kind in _PRODUCTS:
            return price.forward * options.products, price.backward * options.products
        if operator.kind == _ATTENTION:
            if options.attention == "fused":
                return price.forward * options.products, price.backward * options.products
            pair = self._written_scores(part_shape(operator, degrees, self._gradients[op], 1))
            return np.full(len(price.forward), pair[0]), np.full(len(price.forward), pair[1])
        return price.forward * options.passes, price.backward * options.passes

    def _written_scores(self, part: PartShape) -> tuple[float, float]:
        """Return the seconds of attention whose scores are in memory, forward and backward."""
        samples, positions, heads, group, keys, channels, _ = part.sizes
        batch, options = samples * heads * group, self._options
        of = self._kernels.product
        forward = of(self._mode, "forward", batch, positions, keys, channels)
        forward += of(self._mode, "forward", batch, positions, channels, keys)
        scores = batch * positions * keys
        moved = self._kernels.moving(self._mode, "copy", "forward", 1, scores) / 4  # a copy moves 4 bytes an element
        return (
            forward * options.products + _FORWARD_BYTES * moved * options.passes,
            2 * forward * options.products + _BACKWARD_BYTES * moved * options.passes,
        )

    def _accumulation(self, op: int, degrees: tuple[int, ...]) -> F64 | float:
        """(P,) seconds of adding the gradients of a micro-batch to those before it."""
        nbytes, operator = self._options.accumulation, self._graph.operators[op]
        if not nbytes or not operator.weights:
            return 0.0
        elements = np.sum([slice_elements(operator, weight, degrees) for weight in operator.weights], axis=0)
        return np.array(
            [self._kernels.moving(self._mode, "copy", "forward", 1, max(float(each), 1)) for each in elements]
        ) * (nbytes / 4 * self._options.passes)

    # ── Launches ───────────────────────────────────────────────────────────────────────────────────────────

    def _launched(self, op: int, forward: F64, backward: F64, parts: int) -> tuple[F64, F64]:
        """Return seconds that are no less than those in which the host launches the operator's kernels.

        The host runs ahead while the device is busy, so that the longer of both totals counts: of its time the share
        with which the sum of the longer is the longer of the sums, as `topoplan_estimator_kernels.launching` does.
        """
        if not self._options.launch_us:
            return forward, backward
        host = self._host(op) * self._share(parts)
        return np.maximum(forward, host[0]), np.maximum(backward, host[1])

    def _host(self, op: int) -> F64:
        counts = launches_of(self._kernels.device, self._mode, self._graph.operators[op].kind)
        return np.array(counts) * self._options.launch_us * 1e-6

    def _share(self, parts: int) -> float:
        if parts not in self._shares:
            operators = range(len(self._graph.operators))
            whole = [self._whole(op) for op in operators]
            device, host = np.array(whole) / parts, np.array([self._host(op) for op in operators])
            host = np.where(device > 0, host, 0.0)
            total = max(device.sum(), host.sum())
            low, high = 0.0, 1.0
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if np.maximum(device, middle * host).sum() <= total else (low, middle)
            self._shares[parts] = low
        return self._shares[parts]

    def _whole(self, op: int) -> tuple[float, float]:
        """Return the seconds of an operator on one device."""
        degrees = (1,) * len(self._graph.operators[op].dims)
        price = self._costs.price(op, degrees, np.zeros(1, np.int32))
        forward, backward = self._seconds(op, degrees, price)
        return float(forward[0]), float(backward[0])

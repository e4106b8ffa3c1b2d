"""Measured times of whole operators, shared among their parts.

The time of a part is the time of the whole operator times the part's share of the iteration space, and a micro-batch
takes its share of the batch's time.  A profile has one batch size, so the lower efficiency of small kernels is not
known.  A part holds its weights with gradients and
optimizer state, and its share of the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from topoplan import Cluster, CostFunction, Operator, OperatorGraph, PartCosts, TopoplanError
from topoplan.arrays import F64, I32, f64
from topoplan_engine.partition import part_bounds, slice_elements
from topoplan_engine.precision import weight_states
from topoplan_estimator_profile import Profiled

__all__ = ["ProfiledCosts"]


class ProfiledCosts(CostFunction):
    """A `topoplan.CostFunction`: see the module."""

    linear_in_samples = True

    def __init__(self, options: Profiled, graph: OperatorGraph, cluster: Cluster) -> None:
        self._graph = graph
        self._states = np.array(weight_states(graph, options.optimizer_state))[:, None]
        self._gpus = cluster.gpus_per_device
        self._speed = cluster.device_speed
        self._equal = bool((self._speed == self._speed[0]).all())
        self._whole: dict[tuple[int, int], float] = {}  # bytes of weights that are not cut
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether operator ``op`` was profiled and ``degrees`` is a legal cut of it."""
        return not _unpriced(self._graph.operators[op], degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part; the arrays are shared between calls and read-only.

        Raises:
            TopoplanError: the operator was not profiled, or the cut is not legal.
        """
        cached = self._prices.get((op, degrees))
        if cached is not None:
            return cached
        operator = self._graph.operators[op]
        if reason := _unpriced(operator, degrees):
            raise TopoplanError(f"estimator profile: operator {operator.name!r}: {reason}")
        profile = operator.profile
        assert profile is not None
        share = self._share(operator, degrees)
        speed = self._speed[0] if self._equal else self._speed[devices]
        states = self._states * self._weights(op, degrees)
        costs = PartCosts(
            forward=f64(profile.forward * share / speed),
            backward=f64(profile.backward * share / speed),
            memory=f64(states.sum(axis=0) + profile.activation_bytes * share),
            states=f64(states),
        )
        if self._equal:
            self._prices[op, degrees] = costs
        return costs

    def replica_prices(self, counts: Sequence[int]) -> tuple[F64, I32] | None:
        """Price all n operators with their samples divided among R numbers of devices, by the largest part.

        Args:
            counts: (R,) numbers of devices.

        Returns:
            (5, R, n) seconds forward, backward and of gradients of weights, bytes that persist and those that do not;
            and (R, n) 1 for an operator that cannot be cut into so many parts, whose prices are 0.  None if devices
            differ, an operator was not profiled, or weights would be cut.
        """
        operators = self._graph.operators
        profiles = [operator.profile for operator in operators if operator.profile is not None]
        if not self._equal or len(profiles) < len(operators) or any(map(_cuts_weights, operators)):
            return None
        columns = [(p.forward, p.backward, p.activation_bytes) for p in profiles]
        forward, backward, activations = np.array(columns, dtype=np.float64).reshape(-1, 3).T
        samples = [op.dims[op.sample_dim].size if op.sample_dim >= 0 else 1 for op in operators]
        sizes = np.array(samples, dtype=np.int64)
        divided = np.array([op.sample_dim >= 0 for op in operators])
        count = np.where(divided, np.array(counts, dtype=np.int64)[:, None], 1)  # (R, n)
        largest = -(-sizes // count)
        share = np.where(divided, np.ceil(largest / self._gpus) / sizes, 1.0)
        weights = np.array([self._weights(i, (1,) * len(op.dims))[0] for i, op in enumerate(operators)])
        states = (self._states * weights).sum(axis=0)
        backward_seconds = backward * share / self._speed[0]
        has_weights = np.array([bool(op.weights) for op in operators])
        prices = np.stack(
            [
                forward * share / self._speed[0],
                backward_seconds,
                np.where(has_weights, backward_seconds / 2, 0.0),
                np.broadcast_to(states, share.shape),
                states + activations * share - states,
            ]
        )
        unpriced = count > sizes
        return np.where(unpriced, 0.0, prices), unpriced.astype(np.int32)

    def _share(self, operator: Operator, degrees: tuple[int, ...]) -> F64:
        """Return the (P,) share of the iteration space that one GPU of each part runs."""
        share = np.ones(degrees)
        for index, (dim, degree) in enumerate(zip(operator.dims, degrees, strict=True)):
            sample = index == operator.sample_dim
            if degree > 1 or (sample and self._gpus > 1):  # the others are whole
                starts, stops = part_bounds(dim.size, degree)
                per_gpu = np.ceil((stops - starts) / self._gpus) if sample else stops - starts
                share *= (per_gpu / dim.size).reshape([-1 if axis == index else 1 for axis in range(len(degrees))])
        return share.ravel()

    def _weights(self, op: int, degrees: tuple[int, ...]) -> F64:
        """Return the (P,) bytes of the weights of each part."""
        operator = self._graph.operators[op]
        weights = np.zeros(math.prod(degrees))
        for number, tensor in enumerate(operator.weights):
            if any(degrees[axis.dim] > 1 for axis in tensor.axes if axis.dim >= 0):
                weights += slice_elements(operator, tensor, degrees).astype(np.float64) * tensor.itemsize
                continue
            if (op, number) not in self._whole:
                elements = slice_elements(operator, tensor, (1,) * len(degrees))
                self._whole[op, number] = float(elements[0]) * tensor.itemsize
            weights += self._whole[op, number]
        return weights


def _cuts_weights(op: Operator) -> bool:
    """Whether a weight is divided with the samples."""
    return any(axis.dim == op.sample_dim >= 0 for tensor in op.weights for axis in tensor.axes)


def _unpriced(op: Operator, degrees: tuple[int, ...]) -> str | None:
    """Return why ``op`` cut by ``degrees`` has no price, or None if it has one."""
    if op.profile is None:
        return "was not profiled (use a model with measured times, such as torchgraph reads, or -e roofline)"
    return op.why_invalid(degrees)

"""Seconds from counts: HiDup's cost model as a cost function that prices collectives too.

Source: HiDup (Zhang et al., SoCC 2022, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from topoplan import Cluster, CostFunction, Operator, OperatorGraph, PartCosts, Tensor, TopoplanError
from topoplan.arrays import F64, I32, f64
from topoplan.model.taskgraph import Collective
from topoplan_engine.partition import part_sizes, slice_elements
from topoplan_engine.precision import weight_states
from topoplan_estimator_hidup import Hidup
from topoplan_estimator_hidup.flops import flops
from topoplan_estimator_hidup.reading import Line, read

__all__ = ["BACKWARD", "HidupCosts"]

#: Time of the backward pass over that of the forward pass.
BACKWARD = 2


class HidupCosts(CostFunction):
    """A `topoplan.CostFunction` and `topoplan_engine.sharding.resharding.CollectiveCosts`: see the module."""

    def __init__(self, options: Hidup, graph: OperatorGraph, cluster: Cluster) -> None:
        noisy = _noise(options)
        self._graph = graph
        self._flops = [noisy(flops(op)) for op in graph.operators]
        self.n_devices = max(1, noisy(cluster.n_devices))
        self._rate = noisy(options.device_flops)
        lines = _lines(options, cluster)
        self._bandwidth = {kind: noisy(line.bandwidth) for kind, line in lines.items()}
        self._latency = {kind: line.latency for kind, line in lines.items()}
        self._states = np.array(weight_states(graph, options.optimizer_state))[:, None]
        self._gpus = cluster.gpus_per_device
        self._speed = cluster.device_speed
        self._equal = bool((self._speed == self._speed[0]).all())
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective for a tensor of ``nbytes`` in total; slices and reads take no time."""
        bandwidth = self._bandwidth.get(kind)
        return 0.0 if bandwidth is None else nbytes / bandwidth + self._latency[kind]

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether ``degrees`` is a legal cut of operator ``op``; every legal cut can be priced."""
        return not self._graph.operators[op].why_invalid(degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part by its share of the iteration space; the arrays are shared between calls and read-only.

        Raises:
            TopoplanError: the cut is not legal.
        """
        cached = self._prices.get((op, degrees))
        if cached is not None:
            return cached
        operator = self._graph.operators[op]
        if reason := operator.why_invalid(degrees):
            raise TopoplanError(f"estimator hidup: operator {operator.name!r}: {reason}")
        speed = self._speed[0] if self._equal else self._speed[devices]
        forward = self._flops[op] / self._rate * self._share(operator, degrees) / speed
        states = self._states * self._slice_bytes(operator, operator.weights, degrees)
        costs = PartCosts(
            forward=f64(forward),
            backward=f64(BACKWARD * forward),
            memory=f64(states.sum(axis=0) + self._slice_bytes(operator, operator.outputs, degrees)),
            states=f64(states),
        )
        if self._equal:
            self._prices[op, degrees] = costs
        return costs

    @staticmethod
    def _slice_bytes(operator: Operator, tensors: tuple[Tensor, ...], degrees: tuple[int, ...]) -> F64:
        """Return the (P,) bytes of the slices of ``tensors``."""
        nbytes = np.zeros(math.prod(degrees))
        for tensor in tensors:
            nbytes += tensor.itemsize * slice_elements(operator, tensor, degrees).astype(np.float64)
        return nbytes

    def _share(self, operator: Operator, degrees: tuple[int, ...]) -> F64:
        """Return the (P,) share of the iteration space that one GPU of each part runs."""
        share = np.ones(math.prod(degrees))
        for index, sizes in enumerate(part_sizes(operator, degrees)):
            per_gpu = np.ceil(sizes / self._gpus) if index == operator.sample_dim else sizes
            share *= per_gpu / operator.dims[index].size
        return share


def _lines(options: Hidup, cluster: Cluster) -> dict[Collective, Line]:
    """Return latency and bandwidth of each collective; the order is that in which HiDup draws noise."""
    if options.file:
        return read(Path(options.file), cluster.n_devices)
    bandwidths = {
        Collective.ALL_GATHER: options.all_gather_bytes_per_s,
        Collective.ALL_REDUCE: options.all_reduce_bytes_per_s,
        Collective.REDUCE_SCATTER: options.reduce_scatter_bytes_per_s,
        Collective.ALL_TO_ALL: options.all_to_all_bytes_per_s,
    }
    return {kind: Line(options.latency_us / 1e6, bandwidth) for kind, bandwidth in bandwidths.items()}


def _noise(options: Hidup) -> Callable[[int], int]:
    """Return a function that multiplies each number by its own random factor and truncates it, as HiDup does."""
    rng = np.random.default_rng(options.noise_seed)

    def noisy(value: int) -> int:
        return int(value * (1 + rng.uniform(-options.noise, options.noise))) if options.noise else value

    return noisy

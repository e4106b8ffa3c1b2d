"""Seconds from counts: HiDup's cost model as a cost function that prices collectives too.

Source: HiDup (Zhang et al., SoCC 2022, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from topoplan import Cluster, CostFunction, Operator, OperatorGraph, PartCosts, Tensor, TopoplanError
from topoplan.arrays import F64, I32, f64
from topoplan.model.taskgraph import Collective
from topoplan_engine.partition import part_sizes, slice_elements
from topoplan_engine.precision import weight_states
from topoplan_estimator_hidup import Hidup
from topoplan_estimator_hidup.bandwidths import bandwidths_of
from topoplan_estimator_hidup.flops import flops
from topoplan_estimator_hidup.reading import Line, read
from topoplan_estimator_hidup.speedups import speedups_of

__all__ = ["BACKWARD", "HidupCosts"]

#: Time of the backward pass over that of the forward pass.
BACKWARD = 2

#: Bytes/s of collectives in HiDup's released profile of eight V100.
RELEASED = {
    Collective.ALL_GATHER: 1_224_592_728,
    Collective.ALL_REDUCE: 611_692_856,
    Collective.REDUCE_SCATTER: 1_130_230_706,
    Collective.ALL_TO_ALL: 10_701_240_728,
}


class HidupCosts(CostFunction):
    """A `topoplan.CostFunction` that prices collectives and knows `PrecisionSpeedups`: see the module."""

    def __init__(self, options: Hidup, graph: OperatorGraph, cluster: Cluster) -> None:
        noisy = _noise(options)
        self._graph = graph
        self._flops = [noisy(flops(op)) for op in graph.operators]
        self.n_devices = max(1, noisy(cluster.n_devices))
        self._rate = noisy(options.device_flops) * (1 if options.preset == "released" else 1 + BACKWARD)
        lines = _lines(options, cluster)
        self._bandwidth = {kind: noisy(line.bandwidth) for kind, line in lines.items()}
        self._latency = {kind: line.latency for kind, line in lines.items()}
        self._states = np.array(weight_states(graph, options.optimizer_state))[:, None]
        self._gpus = cluster.gpus_per_device
        self._speed = cluster.device_speed
        self._equal = bool((self._speed == self._speed[0]).all())
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._cluster = cluster
        self.assumptions: Mapping[str, Any] = {"notes": _notes(options)}

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective for a tensor of ``nbytes`` in total; slices and reads take no time."""
        bandwidth = self._bandwidth.get(kind)
        return 0.0 if bandwidth is None else nbytes / bandwidth + self._latency[kind]

    def speedups(self) -> tuple[F64, str] | None:
        """Return (n,) how much faster than here operators run in the model's precision, and what that rests on."""
        return speedups_of(self._graph, self._cluster)

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
    bandwidths = RELEASED if options.preset == "released" else bandwidths_of(cluster)
    latency, typed_bandwidths = options.latency_us / 1e6, _typed_bandwidths(options)
    return {kind: Line(latency, typed_bandwidths.get(kind, bandwidth)) for kind, bandwidth in bandwidths.items()}


def _typed_bandwidths(options: Hidup) -> dict[Collective, int]:
    """Return the bandwidths that the user named."""
    bandwidths = {kind: getattr(options, f"{kind.name.lower()}_bytes_per_s") for kind in RELEASED}
    return {kind: bandwidth for kind, bandwidth in bandwidths.items() if bandwidth is not None}


def _notes(options: Hidup) -> dict[str, str]:
    """Return what the prices rest on, as tables and JSON show it."""
    released = options.preset == "released"
    if released:
        collectives = "HiDup's released profile: eight V100 over about 10 Gbps, whatever the cluster is"
    else:
        collectives = "rings and exchanges over the links of the cluster"
    if options.file:
        collectives = Path(options.file).name
    elif typed_bandwidths := _typed_bandwidths(options):
        collectives = "as given" if len(typed_bandwidths) == len(RELEASED) else f"as given; others: {collectives}"
    source = "as HiDup measured on V100" if options.device_flops == Hidup().device_flops else "as given"
    rate = f"{options.device_flops / 1e12:.3g} TFLOP/s of forward FLOPs over the time of an iteration, {source}"
    if released:
        rate += (
            f"; taken for the forward pass alone, so that times are {1 + BACKWARD} times those that were measured, and "
            "rank plans (preset=cluster predicts times)"
        )
    return {"rate of a device": rate, "bandwidths of collectives": collectives}


def _noise(options: Hidup) -> Callable[[int], int]:
    """Return a function that multiplies each number by its own random factor and truncates it, as HiDup does."""
    rng = np.random.default_rng(options.noise_seed)

    def noisy(value: int) -> int:
        return int(value * (1 + rng.uniform(-options.noise, options.noise))) if options.noise else value

    return noisy

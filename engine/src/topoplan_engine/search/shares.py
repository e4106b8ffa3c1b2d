"""Shares of a batch for devices of unequal speed: the slowest one ends as early as it can.

    costs ─► seconds of n samples on each kind of device ─► `least_longest` ─► samples of each device

FlexFlow (Jia, Zaharia, Aiken, MLSys 2019, section 4) cuts every dimension into equal parts, which on unequal devices
makes the fast ones wait.  Here the estimator prices a slice of n samples of the whole model on each kind of device; the
sizes of slices are those whose longest time is least, to the sample.  All operators get the same slices, so that no
sample changes its device between them.  Time for gradients is not counted: it does not depend on the sizes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from topoplan.arrays import I32
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan_engine.distinct import distinct_columns, numbered_names
from topoplan_engine.partition import degree_of

__all__ = ["BatchShares", "device_kinds", "least_longest", "resized"]

#: Halvings of an interval of seconds, after which samples are dealt out one by one.
_HALVINGS = 60


def device_kinds(cluster: Cluster) -> I32:
    """(D,) a number for each device; equal ones compute equally fast."""
    _, name = numbered_names(cluster.device_preset)
    different = distinct_columns(name, np.unique(cluster.device_speed, return_inverse=True)[1].ravel())
    by_first = np.empty(len(different.first), dtype=np.int32)  # numbers by the first device of each kind
    by_first[np.argsort(different.first)] = np.arange(len(different.first))
    kinds: I32 = by_first[different.number]
    return kinds


def least_longest(seconds: Sequence[Callable[[int], float]], total: int) -> list[int]:
    """Divide ``total`` samples so that the longest time is as short as can be.

    Args:
        seconds: for each device the time of n samples, which does not fall as n grows; 0 for none.
        total: samples, at least 1.

    Returns:
        The samples of each device, perhaps 0.  No other division has a shorter longest time.
    """
    low, high = [0] * len(seconds), [total] * len(seconds)
    short, long = 0.0, min(time(total) for time in seconds)
    for _ in range(_HALVINGS):
        if sum(high) - sum(low) <= len(seconds):
            break
        middle = (short + long) / 2
        counts = [_most(time, middle, a, b) for time, a, b in zip(seconds, low, high, strict=True)]
        if sum(counts) < total:
            short, low = middle, counts
        else:
            long, high = middle, counts
    # Whoever would end first takes the next sample.
    ends = [(time(count + 1), device) for device, (time, count) in enumerate(zip(seconds, low, strict=True))]
    heapq.heapify(ends)
    for _ in range(total - sum(low)):
        _, device = ends[0]
        low[device] += 1
        heapq.heapreplace(ends, (seconds[device](low[device] + 1), device))
    return low


def _most(time: Callable[[int], float], limit: float, low: int, high: int) -> int:
    """Return the most samples from ``low`` to ``high`` that take no longer than ``limit``; ``low`` of them do not."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if time(middle) <= limit else (low, middle - 1)
    return low


def resized(sizes: Sequence[int], total: int) -> list[int]:
    """Return slices of ``total`` iterations in proportion to ``sizes``, each at least one; there are enough of them."""
    one_each = np.arange(1, len(sizes) + 1)  # iterations up to the end of each slice, if each had one
    stops = np.cumsum(sizes) * total // sum(sizes)
    stops = np.clip(np.maximum.accumulate(stops - one_each), 0, total - len(sizes)) + one_each
    return [int(size) for size in np.diff(stops, prepend=0)]


class BatchShares:
    """The shares of a batch among devices of a cluster, under one cost function; each is computed once."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._graph, self._costs = graph, costs
        self._kinds = device_kinds(cluster)
        self._first = np.unique(self._kinds, return_index=True)[1]
        self._seconds: dict[tuple[int, int], float] = {}
        self._shares: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        # Tables are placed whole.
        operators = enumerate(graph.operators)
        self._ops = [op for op, operator in operators if operator.sample_dim >= 0 and operator.kind != "embedding"]

    @property
    def usable(self) -> bool:
        """Whether devices differ, and every operator can be priced with slices of unequal sizes."""
        batch = self._graph.batch_size
        if len(self._first) < 2 or batch < len(self._kinds) or not self._ops:
            return False
        cuts = [(op, samples) for op in self._ops for samples in (1, batch)]
        return all(self._costs.supports(op, self._degrees(op, samples)) for op, samples in cuts)

    def of(self, rows: Sequence[I32]) -> list[int]:
        """Return how many samples of the batch each slice gets, perhaps 0.

        Args:
            rows: for each slice the devices that run its parts; the slowest one counts.
        """
        key = tuple(tuple(sorted(set(self._kinds[row].tolist()))) for row in rows)
        if key not in self._shares:
            self._shares[key] = least_longest([self._slowest(kinds) for kinds in key], self._graph.batch_size)
        return self._shares[key]

    def fastest(self) -> list[I32]:
        """Return the devices of the fastest kind, of the two fastest kinds, and so on, without all devices."""
        order = sorted(range(len(self._first)), key=lambda kind: self._seconds_of(kind, self._graph.batch_size))
        return [np.flatnonzero(np.isin(self._kinds, order[:count])).astype(np.int32) for count in range(1, len(order))]

    def degree(self, op: int, shares: Sequence[int]) -> int:
        """Return the degree that cuts the samples of an operator in proportion to ``shares``."""
        operator = self._graph.operators[op]
        return degree_of(resized(shares, operator.dims[operator.sample_dim].size))

    def _slowest(self, kinds: tuple[int, ...]) -> Callable[[int], float]:
        return lambda samples: max(self._seconds_of(kind, samples) for kind in kinds)

    def _seconds_of(self, kind: int, samples: int) -> float:
        """Return the seconds of both passes of ``samples`` through all operators on a device of a kind."""
        if not 0 < samples <= self._graph.batch_size:
            return np.inf if samples else 0.0
        key = (kind, samples)
        if key not in self._seconds:
            self._seconds[key] = sum(self._operator_seconds(op, kind, samples) for op in self._ops)
        return self._seconds[key]

    def _operator_seconds(self, op: int, kind: int, samples: int) -> float:
        degrees = self._degrees(op, samples)
        price = self._costs.price(op, degrees, np.full(math.prod(degrees), self._first[kind], dtype=np.int32))
        return float(price.forward[0] + price.backward[0])

    def _degrees(self, op: int, samples: int) -> tuple[int, ...]:
        """Return the cut of an operator into a part of ``samples`` and the rest."""
        operator, batch = self._graph.operators[op], self._graph.batch_size
        whole = samples == batch or operator.dims[operator.sample_dim].size == 1
        return operator.sample_cut(1 if whole else self.degree(op, (samples, batch - samples)))

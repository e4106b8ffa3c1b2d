"""Estimates: seconds that operators take under cuts, and edges between two cuts, without a simulation.

    degrees of an operator ─► cuts worth a look ─► compute and gradient seconds of each
    bounds of the slices of both ends of an edge, device by device ─► bytes to fetch ─► seconds of each pair of cuts

All cuts lie on the first device set of their size.  Operators are taken to run one after the other, messages to share
nothing but the interfaces of their hosts; a plan made of these estimates is simulated before anything is said of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from topoplan import Placement, Problem
from topoplan.arrays import F64
from topoplan.model.graph import Operator, Tensor
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.lowering.gradient_groups import share_of_ring
from topoplan_engine.partition import slice_bounds
from topoplan_engine.training import gradient_flow, trained_weights
from topoplan_placement_moves.forms import form_of

__all__ = ["CutEstimates"]

#: Cuts of an operator that are considered, at most; fewer where there are many devices.
_CUTS = 32
#: Numbers in a table of slice bounds of all pairs of cuts.
_ENTRIES = 4_000_000
#: Numbers in tables of pairs of cuts that are made at a time.
_AT_A_TIME = 5_000_000


class CutEstimates:
    """Estimates for one problem.

    Attributes:
        cuts: for each operator the placements that are considered, its initial one among them.
        compute, gradients: for each operator, (C,) seconds of its slowest part in both passes, and of summing the
            gradients of its weights, under each of them.
    """

    def __init__(self, problem: Problem) -> None:
        cluster = problem.cluster
        self._graph, self._problem = problem.graph, problem
        self._host = cluster.device_host
        #: Devices of a host, and bytes/s of a host to others and inside: of the slowest.
        self._per_host = int(np.bincount(self._host).max())
        self._outside = float((cluster.interfaces * cluster.interface_bandwidth).min())
        self._inside = float(cluster.inside_bandwidth.min())
        most = min(_CUTS, max(4, math.isqrt(_ENTRIES // (4 * cluster.n_devices))))
        self._rows: dict[Any, tuple[float, float]] = {}
        #: What `_distinct` returned.
        self._bounds: dict[Any, tuple[F64, list[int], list[Placement]]] = {}
        flow = gradient_flow(self._graph)
        gradients = zip(flow.inputs, flow.weights, flow.backward, strict=True)
        self._forms = [(form_of(op), *row) for op, row in zip(self._graph.operators, gradients, strict=True)]
        self.cuts: list[list[Placement]] = []
        self.compute: list[F64] = []
        self.gradients: list[F64] = []
        #: Of operators of one form with one initial placement.
        cuts_of: dict[Any, list[Placement]] = {}
        for op, first in enumerate(problem.space.initial().placements):
            stop_if_wanted()
            key = (self._forms[op], first.key)
            if key not in cuts_of:
                cuts_of[key] = self._cuts_of(op, first, most)
            rows = np.array([self._row(op, cut) for cut in cuts_of[key]])
            self.cuts.append(cuts_of[key])
            self.compute.append(rows[:, 0])
            self.gradients.append(rows[:, 1])

    def _cuts_of(self, op: int, first: Placement, most: int) -> list[Placement]:
        """Return the initial placement of an operator, and those of one or two cut dimensions, widest first."""
        degrees = self._problem.space.degrees(op)
        devices = self._problem.cluster.n_devices

        def order(cut: tuple[int, ...]) -> tuple[bool, int, int, tuple[int, ...]]:
            parts, dims = math.prod(cut), sum(degree > 1 for degree in cut)
            return parts not in (1, devices), dims, -parts, tuple(map(int, cut))

        narrow = sorted((cut for cut in degrees if sum(degree > 1 for degree in cut) <= 2), key=order)
        placements = [self._problem.space.place(cut, 0) for cut in narrow[:most]]
        if self._graph.operators[op].kind == "embedding" and first.parts == 1:
            # Tables that are whole lie on devices in turn, so that none holds them all.
            placements = [placement for placement in placements if placement.parts > 1]
        return [first, *(placement for placement in placements if placement != first)]

    def _row(self, op: int, cut: Placement) -> tuple[float, float]:
        """Return seconds of compute and of gradients; operators of one form are priced once."""
        key = (self._forms[op], cut.key)
        if key not in self._rows:
            prices = self._problem.costs.price(op, cut.degrees, cut.devices)
            compute = np.bincount(cut.devices, prices.forward + prices.backward).max()
            self._rows[key] = float(compute), self._gradient_seconds(op, cut)
        return self._rows[key]

    def _gradient_seconds(self, op: int, cut: Placement) -> float:
        """Return the seconds of ring all-reduces over the replicas of each weight that is trained."""
        operator, trained = self._graph.operators[op], trained_weights(self._graph, op)
        spans_hosts = len(np.unique(self._host[cut.devices])) > 1
        share = 0.0 if operator.kind == "embedding" else share_of_ring(self._graph, self._problem.cluster)
        total = 0.0
        for weight in trained:
            groups = _slices(weight, cut.degrees)
            replicas, size = cut.parts // groups, weight.nbytes / groups
            sharing, rate = (min(groups, self._per_host), self._outside) if spans_hosts else (1, self._inside)
            total += sharing * 2 * (replicas - 1) / replicas * size / rate
            total += share * 2 * size / self._inside
        return total

    def edges(self) -> dict[tuple[int, int], F64]:
        """Return for each pair of operators that edges join, (C, C) seconds of both passes for their cuts."""
        *_, sums = self.growing_edges()
        return sums

    def growing_edges(self) -> Iterator[dict[tuple[int, int], F64]]:
        """Yield the sums of `edges`, complete at last, after each part of them that takes long."""
        tables: dict[Any, F64] = {}
        sums: dict[tuple[int, int], F64] = {}
        entries, devices = 0, len(self._host)
        for u, output, v, argument in self._graph.edges.reshape(-1, 4).tolist():
            ends = (self._forms[u], output, self._forms[v], argument)
            key = (ends, *(tuple(cut.key for cut in self.cuts[op]) for op in (u, v)))
            if key not in tables:
                stop_if_wanted()
                entries += len(self.cuts[u]) * len(self.cuts[v]) * devices
                tables[key] = self._edge(u, output, v, argument)
            sums[u, v] = sums[u, v] + tables[key] if (u, v) in sums else tables[key]
            if entries > _AT_A_TIME:
                entries = 0
                yield sums
        yield sums

    def _edge(self, u: int, output: int, v: int, argument: int) -> F64:
        """(C, C) seconds in which the slowest host gets what its parts lack, once for each pass that has it.

        A part fetches its slice from every holder of partial sums, but for what its own device holds.
        """
        product, needed = self._graph.operators[u].outputs[output], self._graph.operators[v].inputs[argument]
        held_ranges, of_held, producers = self._distinct(u, "output", output)
        asked, of_asked, _ = self._distinct(v, "input", argument)
        sizes = np.prod(asked[:, 1] - asked[:, 0], axis=0)
        passes = 1 + gradient_flow(self._graph).inputs[v][argument]
        seconds = np.empty((len(producers), asked.shape[2]))
        for row, producer in enumerate(producers):  # tables of one cut stay in the cache of a core
            local = np.ones_like(sizes)
            for (held_low, held_high), (low, high) in zip(held_ranges[:, :, row], asked, strict=True):
                common = np.minimum(held_high, high)
                common -= np.maximum(held_low, low)
                local *= np.maximum(common, 0, out=common)
            partial = producer.parts // _slices(product, producer.degrees)
            fetched = (partial * sizes - local) * needed.itemsize
            seconds[row] = self._seconds(passes * fetched, producer)
        return seconds[np.ix_(of_held, of_asked)]

    def _distinct(self, op: int, side: str, number: int) -> tuple[F64, list[int], list[Placement]]:
        """Return the different slices of an output or input under all cuts.

        Cuts of dimensions that a tensor does not have differ in nothing that matters to it.

        Returns:
            (A, 2, S, D) where the slices of each device start and stop (`_bounds`), (C,) which of them each cut
            has, and a cut of each.
        """
        key = (self._forms[op], side, number, tuple(cut.key for cut in self.cuts[op]))
        if key not in self._bounds:
            operator, devices = self._graph.operators[op], len(self._host)
            tensor = (operator.outputs if side == "output" else operator.inputs)[number]
            places: dict[Any, int] = {}
            rows: list[F64] = []
            which, cuts = [], []
            for cut in self.cuts[op]:
                bounds = _bounds(operator, tensor, cut, devices)
                place = bounds.tobytes(), np.sort(cut.devices).tobytes()
                if place not in places:
                    places[place] = len(rows)
                    rows.append(bounds)
                    cuts.append(cut)
                which.append(places[place])
            self._bounds[key] = np.stack(rows, axis=2), which, cuts
        return self._bounds[key]

    def _seconds(self, fetched: F64, producer: Placement) -> F64:
        """(C,) seconds in which devices fetch (C, D) bytes, each equally from all devices of the producer."""
        hosts = int(self._host.max()) + 1
        on_host = np.bincount(self._host[producer.devices], minlength=hosts)
        far = fetched
        if self._per_host > 1:
            far = fetched * (1 - (on_host / on_host.sum())[self._host])
        first = np.searchsorted(self._host, np.arange(hosts))  # devices of a host have consecutive numbers
        sent = far.sum(axis=-1) / (on_host > 0).sum()
        between = np.maximum(np.add.reduceat(far, first, axis=-1).max(axis=-1), sent) / self._outside
        seconds: F64 = np.maximum(between, (fetched - far).max(axis=-1) / self._inside)
        return seconds


def _slices(tensor: Tensor, degrees: tuple[int, ...]) -> int:
    """Return into how many slices a cut divides a tensor."""
    return math.prod(degrees[axis.dim] for axis in tensor.axes if axis.dim >= 0)


def _bounds(operator: Operator, tensor: Tensor, cut: Placement, devices: int) -> F64:
    """(A, 2, D) where the slice of each device starts and stops along each axis; empty where it has no part."""
    bounds = np.zeros((max(1, len(tensor.axes)), 2, devices))
    bounds[:, 1, cut.devices] = 1  # a scalar
    bounds[: len(tensor.axes), :, cut.devices] = slice_bounds(operator, tensor, cut.degrees).transpose(2, 0, 1)
    return bounds

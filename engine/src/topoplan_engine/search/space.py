"""The placements that strategy searchers choose from, and the strategy that they start with.

Degrees come from the divisors of the number of devices, over every dimension that the operator can cut,
as far as the cost function can price them (a measurement file thereby defines the space, as in FlexNet).
Devices come as FlexNet places them: within one host, or the same number of whole hosts at equal strides,
which is where ring permutations of a direct-connect network can serve their all-reduces (TopoOpt's
``FFModel::get_random_parallel_config`` with ``net-opt``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from topoplan.arrays import I32
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import Operator, OperatorGraph, Role
from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy, Strategy

__all__ = ["Space"]


class Space:
    """Placements of every operator of a graph on a cluster.

    Placements are interned: asking twice for the same one gives the same object.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self.graph = graph
        self.cluster = cluster
        self._costs = costs
        self._degrees: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._interned: dict[Placement, Placement] = {}
        self._placed: dict[tuple[tuple[int, ...], int], Placement] = {}
        counts = np.bincount(cluster.device_host)
        #: Devices per host if all hosts have the same number, else 1: hosts are then not kept whole.
        self._per_host = int(counts[0]) if (counts == counts[0]).all() else 1

    def degrees(self, op: int) -> tuple[tuple[int, ...], ...]:
        """Return the degree vectors of operator ``op`` that can be priced; never empty.

        Raises:
            TopoplanError: not even the uncut operator, or any cut of it, can be priced.
        """
        supported = self._degrees.get(op)
        if supported is None:
            operator = self.graph.operators[op]
            supported = tuple(
                degrees
                for degrees in _cuts(operator, self.cluster.n_devices, self.graph.batch_size)
                if self._costs.supports(op, degrees)
            )
            if not supported:
                uncut = (1,) * len(operator.dims)
                self._costs.price(op, uncut, np.zeros(1, dtype=np.int32))  # says what is missing
                supported = (uncut,)
            self._degrees[op] = supported
        return supported

    def starts(self, parts: int) -> int:
        """Return how many different device sets the placement rule has for ``parts`` parts."""
        per_host, devices = self._per_host, self.cluster.n_devices
        if parts <= per_host:
            return devices // per_host * (per_host - parts + 1)
        return devices // parts

    def place(self, degrees: tuple[int, ...], start: int) -> Placement:
        """Return the placement of ``degrees`` on the device set number ``start`` (see `starts`)."""
        placement = self._placed.get((degrees, start))
        if placement is None:
            placement = self.intern(Placement(degrees, self._device_set(math.prod(degrees), start)))
            self._placed[degrees, start] = placement
        return placement

    def intern(self, placement: Placement) -> Placement:
        """Return the one object that stands for this placement, so that equal ones compare by identity."""
        return self._interned.setdefault(placement, placement)

    def random_placement(self, op: int, rng: np.random.Generator) -> Placement:
        """Draw a degree vector of ``op``, then a device set, both uniformly."""
        choices = self.degrees(op)
        degrees = choices[int(rng.integers(len(choices)))]
        return self.place(degrees, int(rng.integers(self.starts(math.prod(degrees)))))

    def placements(self, op: int) -> Iterator[Placement]:
        """Go through all placements of ``op``, in a fixed order."""
        for degrees in self.degrees(op):
            for start in range(self.starts(math.prod(degrees))):
                yield self.place(degrees, start)

    def initial(self) -> Strategy:
        """Return FlexNet's initial strategy: embeddings whole, round robin; all else data parallel.

        Raises:
            TopoplanError: the batch cannot be divided over the devices.
        """
        devices = self.cluster.n_devices
        batch = self.graph.batch_size
        placements: list[Placement] = []
        tables = 0
        for index, op in enumerate(self.graph.operators):
            uncut = (1,) * len(op.dims)
            if op.kind == "embedding" and self._costs.supports(index, uncut):
                placements.append(self.intern(Placement(uncut, [tables % devices])))
                tables += 1
                continue
            cut = list(uncut)
            if op.sample_dim >= 0:
                cut[op.sample_dim] = devices
                if op.dims[op.sample_dim].size == batch and batch % devices:
                    low = batch // devices * devices
                    raise TopoplanError(
                        f"batch size {batch}: cannot be divided over {devices} devices "
                        f"(nearest: {f'{low} or ' if low else ''}{low + devices})"
                    )
            if not self._costs.supports(index, tuple(cut)):
                cut = list(self._widest(index))
            placements.append(self.place(tuple(cut), 0))
        return PlacedStrategy(tuple(placements))

    def _widest(self, op: int) -> tuple[int, ...]:
        """Return the priced cut of most parts, of the sample dimension alone if there is one."""
        dim = self.graph.operators[op].sample_dim
        return max(self.degrees(op), key=lambda d: (dim >= 0 and d[dim] == np.prod(d), int(np.prod(d)), d))

    def _device_set(self, parts: int, start: int) -> I32:
        per_host, devices = self._per_host, self.cluster.n_devices
        if parts <= per_host:
            host, offset = divmod(start, per_host - parts + 1)
            return (host * per_host + offset + np.arange(parts)).astype(np.int32)
        if parts % per_host == 0:
            stride = devices // parts
            hosts = start + np.arange(parts // per_host) * stride
            return (hosts[:, None] * per_host + np.arange(per_host)).ravel().astype(np.int32)
        return (start + np.arange(parts) * (devices // parts)).astype(np.int32)


def _cuts(op: Operator, devices: int, batch: int) -> list[tuple[int, ...]]:
    """List the degree vectors whose number of parts divides ``devices``; the batch is cut evenly.

    Other dimensions, the slots of an expert among them, may be cut into parts that differ by one.
    """
    low = [d for d in range(1, math.isqrt(devices) + 1) if devices % d == 0]
    divisors = sorted({*low, *(devices // d for d in low)})
    vectors: list[tuple[int, ...]] = [()]
    for dim in op.dims:
        longer = []
        for vector in vectors:
            parts = int(np.prod(vector, dtype=np.int64))
            for degree in divisors if dim.role is not None else [1]:
                fits = degree <= dim.size and devices % (parts * degree) == 0
                if fits and not (dim.role is Role.SAMPLE and dim.size == batch and batch % degree):
                    longer.append((*vector, degree))
        vectors = longer
    return vectors

"""The placements that strategy searchers choose from, and the strategy that they start with.

Degrees come from the divisors of the number of devices, over every dimension that the operator can cut,
as far as the cost function can price them (a measurement file thereby defines the space, as in FlexNet).
Devices come as FlexNet places them: within one host, or the same number of whole hosts at equal strides,
which is where ring permutations of a direct-connect network can serve their all-reduces (TopoOpt's
``FFModel::get_random_parallel_config`` with ``net-opt``).

Where devices differ in speed, every cut of the samples is there twice: in slices as even as can be, and in slices whose
devices end together (`topoplan_engine.search.shares`).  Besides there are cuts over the fastest devices alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from topoplan.arrays import I32
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import Dimension, Operator, OperatorGraph, Role
from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.search.shares import BatchShares

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
        #: Cuts of operators of equal dimensions, whatever they cost.
        self._cuts: dict[tuple[Dimension, ...], list[tuple[int, ...]]] = {}
        self._interned: dict[Placement, Placement] = {}
        #: Degrees of each operator, with how many device sets there are.
        self._choices: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        self._placed: dict[tuple[tuple[int, ...], int], Placement] = {}
        shares = BatchShares(graph, cluster, costs)
        self._shares = shares if shares.usable else None
        #: Device sets beside those of the rule, by their number of devices; and of cuts that fit some sets only.
        self._fastest = {len(devices): devices for devices in shares.fastest()} if self._shares else {}
        self._own_sets: dict[tuple[int, ...], list[I32]] = {}
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
            stop_if_wanted()
            operator = self.graph.operators[op]
            cuts = self._cuts.get(operator.dims)
            if cuts is None:
                cuts = _cuts(operator, self.cluster.n_devices, self.graph.batch_size)
                self._cuts[operator.dims] = cuts
            if self._shares and operator.sample_dim >= 0:
                cuts = [*cuts, *self._uneven_cuts(op, cuts)]
            supported = tuple(degrees for degrees in cuts if self._costs.supports(op, degrees))
            if not supported:
                uncut = (1,) * len(operator.dims)
                self._costs.price(op, uncut, np.zeros(1, dtype=np.int32))  # says what is missing
                supported = (uncut,)
            self._degrees[op] = supported
        return supported

    def starts(self, degrees: tuple[int, ...]) -> int:
        """Return how many different device sets there are for a cut."""
        if degrees in self._own_sets:
            return len(self._own_sets[degrees])
        parts = math.prod(degrees)
        return self._regular_sets(parts) + (parts in self._fastest)

    def place(self, degrees: tuple[int, ...], start: int) -> Placement:
        """Return the placement of ``degrees`` on the device set number ``start`` (see `starts`)."""
        placement = self._placed.get((degrees, start))
        if placement is None:
            placement = self.intern(Placement(degrees, self._device_set(degrees, start)))
            self._placed[degrees, start] = placement
        return placement

    def intern(self, placement: Placement) -> Placement:
        """Return the one object that stands for this placement, so that equal ones compare by identity."""
        return self._interned.setdefault(placement, placement)

    def random_placement(self, op: int, rng: np.random.Generator) -> Placement:
        """Draw a degree vector of ``op``, then a device set, both uniformly."""
        choices = self._choices.get(op)
        if choices is None:
            choices = self._choices[op] = [(degrees, self.starts(degrees)) for degrees in self.degrees(op)]
        degrees, starts = choices[int(rng.integers(len(choices)))]
        return self.place(degrees, int(rng.integers(starts)))

    def placements(self, op: int) -> Iterator[Placement]:
        """Go through all placements of ``op``, in a fixed order."""
        for degrees in self.degrees(op):
            for start in range(self.starts(degrees)):
                yield self.place(degrees, start)

    def initial(self) -> Strategy:
        """Return FlexNet's initial strategy: embeddings whole, round robin; all else data parallel.

        Where devices differ in speed, samples are shared so that all end together, and devices that would only hold
        the others up have none.
        """
        return self.initial_choices()[0]

    def initial_choices(self) -> list[Strategy]:
        """Return `initial`, and the same on the devices of the fastest kinds alone, where there are several kinds."""
        if not self._shares:
            return [self._shared_out([])]
        everywhere = np.arange(self.cluster.n_devices, dtype=np.int32)
        choices: dict[bytes, Strategy] = {}
        for devices in (everywhere, *self._fastest.values()):
            shares = np.zeros(len(everywhere), dtype=np.int64)
            shares[devices] = self._shares.of(list(devices[:, None]))
            strategy = self._shared_out(shares.tolist())
            choices[strategy.key] = strategy
        return list(choices.values())

    def _shared_out(self, shares: Sequence[int]) -> Strategy:
        """Return tables round robin and all else data parallel, in these shares; evenly if there are none."""
        members = np.flatnonzero(shares) if shares else np.arange(self.cluster.n_devices)
        placements: list[Placement] = []
        tables = 0
        for index, op in enumerate(self.graph.operators):
            uncut = (1,) * len(op.dims)
            if op.kind == "embedding" and self._costs.supports(index, uncut):
                placements.append(self.intern(Placement(uncut, [members[tables % len(members)]])))
                tables += 1
                continue
            placements.append(self._in_shares(index, shares) or self._data_parallel(index))
        return PlacedStrategy(tuple(placements))

    def _in_shares(self, op: int, shares: Sequence[int]) -> Placement | None:
        """Return the data-parallel placement on all devices with a share; None where ``op`` has none that is priced."""
        devices = np.flatnonzero(shares)
        sample = self.graph.operators[op].sample_dim
        if not self._shares or sample < 0 or self.graph.operators[op].dims[sample].size < len(devices):
            return None
        cut = self.graph.operators[op].sample_cut(self._shares.degree(op, [share for share in shares if share]))
        return self.intern(Placement(cut, devices)) if self._costs.supports(op, cut) else None

    def _data_parallel(self, op: int) -> Placement:
        """Return the placement of an operator whose samples are cut evenly over all devices, or as widely as it can.

        A batch that they do not divide is cut over as many devices as divide both, 96 samples on 64 devices over 32:
        others have nothing to do in this strategy, but in those that cut more than samples.
        """
        operator, devices, batch = self.graph.operators[op], self.cluster.n_devices, self.graph.batch_size
        if operator.sample_dim >= 0 and operator.dims[operator.sample_dim].size == batch:
            devices = math.gcd(batch, devices)
        cut = operator.sample_cut(devices)
        return self.place(cut if self._costs.supports(op, cut) else self._widest(op), 0)

    def _uneven_cuts(self, op: int, cuts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the cuts of samples in unequal slices, and those over the fastest devices, beside ``cuts``.

        Every one in unequal slices has the device sets for which these are the best.
        """
        assert self._shares is not None
        operator = self.graph.operators[op]
        sample, size = operator.sample_dim, operator.dims[operator.sample_dim].size
        counts = {*cuts, *(operator.sample_cut(count) for count in self._fastest if count <= size)}
        sets: dict[tuple[int, ...], list[I32]] = {}
        for degrees in [*sorted(counts), operator.sample_cut(self.cluster.n_devices)]:
            if not 1 < degrees[sample] <= min(size, self.graph.batch_size):
                continue
            for start in range(self.starts(degrees)):
                devices = self._device_set(degrees, start)
                rows = np.moveaxis(devices.reshape(degrees), sample, 0).reshape(degrees[sample], -1)
                uneven = self._shares.degree(op, self._shares.of(list(rows)))
                cut = (*degrees[:sample], uneven, *degrees[sample + 1 :])
                if cut != degrees:
                    sets.setdefault(cut, []).append(devices)
        self._own_sets |= sets
        return [*sorted(counts - set(cuts)), *sets]

    def _widest(self, op: int) -> tuple[int, ...]:
        """Return the priced cut of most parts, of the sample dimension alone if there is one."""
        dim = self.graph.operators[op].sample_dim
        return max(self.degrees(op), key=lambda d: (dim >= 0 and d[dim] == math.prod(d), math.prod(d), d))

    def _regular_sets(self, parts: int) -> int:
        """Return how many device sets the placement rule has for ``parts`` parts."""
        per_host, devices = self._per_host, self.cluster.n_devices
        if parts <= per_host:
            return devices // per_host * (per_host - parts + 1)
        return devices // parts if devices % parts == 0 else 0

    def _device_set(self, degrees: tuple[int, ...], start: int) -> I32:
        if degrees in self._own_sets:
            return self._own_sets[degrees][start]
        per_host, devices, parts = self._per_host, self.cluster.n_devices, math.prod(degrees)
        if parts in self._fastest and start == self._regular_sets(parts):
            return self._fastest[parts]
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
            parts = math.prod(vector)
            for degree in divisors if dim.role is not None else [1]:
                fits = degree <= dim.size and devices % (parts * degree) == 0
                if fits and not (dim.role is Role.SAMPLE and dim.size == batch and batch % degree):
                    longer.append((*vector, degree))
        vectors = longer
    return vectors

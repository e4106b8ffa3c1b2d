"""A problem to search, with a price for every state that is known without lowering or simulating.

Two dense operators on four hosts have 256 strategies; the best ones cut the outputs of both operators over
all four devices.  On the network axis traffic flows from every host to the next but one, so a fabric with
direct links between these beats the ring that the search starts with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from topoplan.model.fabric import Fabric
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.problem import Demand, Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.search.protocol import State, Trial
from topoplan_testing import reference

__all__ = ["problem", "start", "trial"]


class _Space:
    """A `topoplan.model.problem.PlacementSpace` of operators with three dimensions, on hosts of one device.

    The parts divide the devices, and lie at equal distances.
    """

    def __init__(self, graph: OperatorGraph, n_devices: int) -> None:
        self._graph, self._n_devices = graph, n_devices
        self._interned: dict[Placement, Placement] = {}
        divisors = [degree for degree in range(1, n_devices + 1) if n_devices % degree == 0]
        vectors = (itertools.product(divisors, repeat=len(op.dims)) for op in graph.operators)
        self._degrees = [tuple(v for v in each if n_devices % math.prod(v) == 0) for each in vectors]
        self._placed: dict[tuple[tuple[int, ...], int], Placement] = {}

    def degrees(self, op: int) -> tuple[tuple[int, ...], ...]:
        """Return the degree vectors of an operator."""
        return self._degrees[op]

    def place(self, degrees: tuple[int, ...], start: int) -> Placement:
        """Return the placement whose first part is on device ``start``."""
        if (placement := self._placed.get((degrees, start))) is None:
            parts = math.prod(degrees)
            placement = self.intern(Placement(degrees, start + np.arange(parts) * (self._n_devices // parts)))
            self._placed[degrees, start] = placement
        return placement

    def placements(self, op: int) -> Iterator[Placement]:
        """Go through all placements of an operator."""
        for degrees in self.degrees(op):
            for start in range(self._n_devices // math.prod(degrees)):
                yield self.place(degrees, start)

    def random_placement(self, op: int, rng: np.random.Generator) -> Placement:
        """Draw a degree vector, then a device of the first part."""
        choices = self.degrees(op)
        degrees = choices[int(rng.integers(len(choices)))]
        return self.place(degrees, int(rng.integers(self._n_devices // math.prod(degrees))))

    def intern(self, placement: Placement) -> Placement:
        """Return the one object that stands for this placement."""
        return self._interned.setdefault(placement, placement)

    def initial(self) -> Strategy:
        """Return data parallelism over all devices."""
        return PlacedStrategy((self.place((self._n_devices, 1, 1), 0),) * len(self._graph.operators))


def problem() -> Problem:
    """Return the problem: both of its axes can be searched."""
    graph, cluster, costs = reference.graph(("dense1", "dense2")), reference.cluster(), reference.Costs()
    space = _Space(graph, cluster.n_devices)
    return Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=space,
        topology="reference",
        build_fabric=_build_fabric,
        demand=lambda strategy: reference.demand(),
        reconfigurable=True,
    )


def start(problem: Problem) -> State:
    """Return the state that a search begins with."""
    return State(problem.space.initial(), reference.ring())


def trial(state: State) -> Trial:
    """Price a state."""
    cost = _strategy_seconds(state.strategy) + _network_seconds(state.fabric)
    return Trial(state=state, cost=cost, demand=reference.demand)


def _build_fabric(demand: Demand | None, rng: np.random.Generator) -> Fabric:
    """Return a ring, with a direct link for every pair of hosts that send to each other."""
    ring = reference.ring()
    if demand is None:
        return ring
    links = {*zip(ring.link_src.tolist(), ring.link_dst.tolist(), strict=True)}
    links |= {(int(a), int(b)) for a, b in np.argwhere(demand.matrix > 0)}
    return Fabric.from_links(name="ring", n_hosts=ring.n_hosts, links=sorted(links), bandwidth=1e9, latency=1e-6)


def _strategy_seconds(strategy: Strategy) -> float:
    """Compute shrinks with the parts; cut samples are all-reduced, cut inputs summed, moved tensors sent.

    Ranks of a pipeline work at the same time: the slowest one counts.
    """
    rank_of = strategy.rank_of if isinstance(strategy, StagedStrategy) else [0] * len(strategy.placements)
    total, before = [0.0] * (1 + int(max(rank_of))), strategy.placements[0]
    for placement, rank in zip(strategy.placements, rank_of, strict=True):
        sample, _, reduction = placement.degrees
        total[rank] += 2e-3 / placement.parts + 1e-3 * (sample > 1) + 1e-3 * (reduction > 1)
        total[rank] += 1e-4 * (not np.array_equal(before.devices, placement.devices))
        before = placement
    return max(total)


def _network_seconds(fabric: AnyFabric) -> float:
    """Sum the hops that the traffic takes; infinite where it cannot flow."""
    matrix = reference.demand(fabric.n_hosts).matrix
    return sum(1e-4 * reference.hops(fabric.links, int(a)).get(int(b), math.inf) for a, b in np.argwhere(matrix > 0))

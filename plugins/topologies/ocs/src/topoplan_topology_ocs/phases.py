"""The wiring of each phase, and wirings for the whole iteration.

All links are two-way, so traffic and its reverse need the same links.  Every wiring starts with the same random numbers
(ties among equal links), so that equal demands have equal wirings and need no rebuild.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Cluster, Demand, Fabric, ReconfigurableFabric
from topoplan.arrays import F64
from topoplan_directconnect.construct import construct
from topoplan_topology_ocs.choice import fastest
from topoplan_topology_ocs.direct import direct

__all__ = ["phases", "throughout"]


def phases(
    cluster: Cluster, demand: Demand | None, delay: float, paths: int, rng: np.random.Generator
) -> ReconfigurableFabric:
    """Wire the phases of an iteration.

    All-reduces get rings with all interfaces.  A pass gets the wiring whose busiest link has the least time: direct
    links alone, direct links with one ring, or the wiring of another phase, which wins a tie.  If there are no
    all-reduces, or nothing is sent in a pass, there is one wiring less.

    Args:
        cluster: hosts and interfaces.
        demand: the demand; None for rings over all hosts.
        delay: seconds of a rebuild.
        paths: number of equal-cost paths for a pair.
        rng: breaks ties among links.
    """
    wirings = _Wirings(cluster, paths, int(rng.integers(2**63)))
    if demand is None or cluster.interfaces.min() < 2:  # with one interface there is only one wiring
        fabric = wirings.construct(demand)
        return ReconfigurableFabric(forward=fabric, backward=fabric, reduce=fabric, delay=delay)
    sums = wirings.construct(attrs.evolve(demand, matrix=np.zeros_like(demand.matrix), forward=None))
    alternatives = [sums] if demand.n_groups else []
    if demand.forward is None:
        forward = backward = wirings.fastest(demand, demand.matrix, alternatives)
    else:
        backward_bytes = demand.matrix - demand.forward
        forward = wirings.fastest(demand, demand.forward, alternatives)
        # The reverse of the forward traffic needs the same links.
        same = np.array_equal(backward_bytes, demand.forward.T)
        backward = forward if same else wirings.fastest(demand, backward_bytes, [forward, *alternatives])
    reduce = sums if demand.n_groups else backward
    return ReconfigurableFabric(forward=forward, backward=backward, reduce=reduce, delay=delay)


class _Wirings(NamedTuple):
    """Builds wirings of a cluster, each from the same random numbers."""

    cluster: Cluster
    paths: int
    seed: int

    def construct(self, demand: Demand | None, pairs: int | None = None, detours: bool = False) -> Fabric:
        """Wire rings and direct links as TopoOpt does."""
        fabric = construct(
            self.cluster,
            demand,
            rules="paper",
            paths=self.paths,
            rng=np.random.default_rng(self.seed),
            pairs=pairs,
            detours=detours,
        )
        return attrs.evolve(fabric, name="ocs", switching="ocs")

    def fastest(self, demand: Demand, matrix: F64, alternatives: list[Fabric]) -> Fabric:
        """Return the best wiring for a matrix of traffic; one of ``alternatives`` if none is better."""
        if alternatives and not matrix.any():
            return alternatives[0]
        transfers = attrs.evolve(demand, group_ptr=[0], group_members=[], group_bytes=[], matrix=matrix, forward=None)
        ring_variants = [self.construct(transfers, 1, detours) for detours in (False, True)]
        links = direct(self.cluster, matrix, self.paths, np.random.default_rng(self.seed))
        return fastest([*alternatives, *ring_variants, *links], matrix)


def throughout(cluster: Cluster, demand: Demand | None, paths: int, rng: np.random.Generator) -> list[Fabric]:
    """Return wirings for a whole iteration: every number of ring pairs, with both variants of direct links."""
    wirings = _Wirings(cluster, paths, int(rng.integers(2**63)))
    widest = max(1, int(cluster.interfaces.min()) // 2)
    splits = itertools.product(range(1, widest + 1), (False, True))
    return [wirings.construct(demand, pairs, detours) for pairs, detours in splits]

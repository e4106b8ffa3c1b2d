"""The wiring of each phase, and the wirings that would do for all of them.

All links go both ways, so that traffic and its reverse ask for the same ones.  Randomness (ties among equal links)
is drawn alike for every wiring: equal demands are wired alike, and need no rebuild.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Cluster, Demand, Fabric, Phases
from topoplan.arrays import F64
from topoplan_directconnect.construct import construct
from topoplan_topology_ocs.choice import fastest
from topoplan_topology_ocs.direct import direct

__all__ = ["phases", "throughout"]


def phases(cluster: Cluster, demand: Demand | None, delay: float, paths: int, rng: np.random.Generator) -> Phases:
    """Wire the phases of an iteration.

    All-reduces get rings and all interfaces; a pass gets the wiring on which its busiest link is done first, out of
    direct links alone, direct links beside one ring, and what other phases have, which is taken where nothing
    is faster.  Where there are no all-reduces, or nothing is sent in a pass, there is one wiring less.

    Args:
        cluster: hosts and interfaces.
        demand: what to wire for; None for rings over all hosts.
        delay: seconds of a rebuild.
        paths: equal-cost paths kept for a pair.
        rng: breaks ties among links.
    """
    wirings = _Wirings(cluster, paths, int(rng.integers(2**63)))
    if demand is None or cluster.interfaces.min() < 2:  # a host with one interface leaves nothing to choose
        always = wirings.construct(demand)
        return Phases(forward=always, backward=always, reduce=always, delay=delay)
    sums = wirings.construct(attrs.evolve(demand, matrix=np.zeros_like(demand.matrix), forward=None))
    alternatives = [sums] if demand.n_groups else []
    if demand.forward is None:
        forward = backward = wirings.fastest(demand, demand.matrix, alternatives)
    else:
        back = demand.matrix - demand.forward
        forward = wirings.fastest(demand, demand.forward, alternatives)
        # What goes back the same way needs the same links.
        same = np.array_equal(back, demand.forward.T)
        backward = forward if same else wirings.fastest(demand, back, [forward, *alternatives])
    return Phases(forward=forward, backward=backward, reduce=sums if demand.n_groups else backward, delay=delay)


class _Wirings(NamedTuple):
    """Makes wirings of a cluster, of which each draws alike."""

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
        return attrs.evolve(fabric, name="ocs")

    def fastest(self, demand: Demand, matrix: F64, alternatives: list[Fabric]) -> Fabric:
        """Return the best wiring for a matrix of traffic; one of the others where none is better."""
        if alternatives and not matrix.any():
            return alternatives[0]
        transfers = attrs.evolve(demand, group_ptr=[0], group_members=[], group_bytes=[], matrix=matrix, forward=None)
        beside = [self.construct(transfers, 1, detours) for detours in (False, True)]
        links = direct(self.cluster, matrix, self.paths, np.random.default_rng(self.seed))
        return fastest([*alternatives, *beside, *links], matrix)


def throughout(cluster: Cluster, demand: Demand | None, paths: int, rng: np.random.Generator) -> list[Fabric]:
    """Wire for a whole iteration: every number of ring pairs, with both ways to choose direct links."""
    wirings = _Wirings(cluster, paths, int(rng.integers(2**63)))
    widest = max(1, int(cluster.interfaces.min()) // 2)
    splits = itertools.product(range(1, widest + 1), (False, True))
    return [wirings.construct(demand, pairs, detours) for pairs, detours in splits]

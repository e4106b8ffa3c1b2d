"""A problem as a wrong profile shows it: compute times with noise, and links that are faster or slower.

    Problem ─► perturbed ─► Problem that is searched in;   its plan's fabric ─► at_bandwidth ─► as it really is

Everything that tells a searcher about speed is perturbed alike, so that no searcher has to know: the cost function, the
cluster's bandwidths inside hosts and of interfaces, and every fabric that the topology builds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from topoplan.model.fabric import Fabric
from topoplan.model.problem import Demand, Problem
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.scaling import scaled_costs
from topoplan_engine.search.space import Space

__all__ = ["at_bandwidth", "perturbed"]


def perturbed(problem: Problem, perturbation: Perturbation) -> Problem:
    """Return ``problem`` as the wrong profile shows it; memory, latency and shapes are as they are."""
    scale, noise = perturbation.communication_scale, perturbation.compute_noise
    factors = np.random.default_rng(perturbation.seed).uniform(1 - noise, 1 + noise, len(problem.graph.operators))
    costs = scaled_costs(problem.costs, factors, scale)
    cluster = attrs.evolve(
        problem.cluster,
        inside_bandwidth=problem.cluster.inside_bandwidth * scale,
        interface_bandwidth=problem.cluster.interface_bandwidth * scale,
    )
    return attrs.evolve(
        problem,
        cluster=cluster,
        costs=costs,
        space=Space(problem.graph, cluster, costs),
        build_fabric=_built_at(problem.build_fabric, scale),
    )


def at_bandwidth(fabric: Fabric, scale: float) -> Fabric:
    """Return a fabric whose links have ``scale`` times their bandwidth."""
    if fabric.phases is None:
        return attrs.evolve(fabric, link_bandwidth=fabric.link_bandwidth * scale)
    forward, backward, reduce = (at_bandwidth(part, scale) for part in fabric.phases.fabrics)
    return Fabric.from_phases(attrs.evolve(fabric.phases, forward=forward, backward=backward, reduce=reduce))


def _built_at(
    build: Callable[[Demand | None, np.random.Generator], Fabric], scale: float
) -> Callable[[Demand | None, np.random.Generator], Fabric]:
    """Build with the true cluster, so that topologies with bandwidths of their own are scaled like all others."""

    def built(demand: Demand | None, rng: Any) -> Fabric:
        return at_bandwidth(build(demand, rng), scale)

    return built

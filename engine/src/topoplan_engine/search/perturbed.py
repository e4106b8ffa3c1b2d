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

from topoplan.errors import TopoplanError
from topoplan.model.problem import Demand, Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.components import Estimator
from topoplan_engine.host_models import at_rates
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.scaling import scaled_costs
from topoplan_engine.search.space import Space

__all__ = ["at_bandwidth", "noisy_profile", "perturbed"]


def perturbed(problem: Problem, perturbation: Perturbation) -> Problem:
    """Return ``problem`` as the wrong profile shows it; memory, latency and shapes are as they are."""
    scale, noise = perturbation.communication_scale, perturbation.compute_noise
    factors = np.random.default_rng(perturbation.seed).uniform(1 - noise, 1 + noise, len(problem.graph.operators))
    costs = scaled_costs(problem.costs, factors / perturbation.compute_scale, scale)
    cluster = attrs.evolve(
        problem.cluster,
        inside_bandwidth=problem.cluster.inside_bandwidth * scale,
        interface_bandwidth=problem.cluster.interface_bandwidth * scale,
        host=problem.cluster.host and at_rates(problem.cluster.host, scale),
    )
    return attrs.evolve(
        problem,
        cluster=cluster,
        costs=costs,
        space=Space(problem.graph, cluster, costs),
        build_fabric=_built_at(problem.build_fabric, scale),
    )


def noisy_profile(estimator: Estimator, perturbation: Perturbation) -> Estimator:
    """Return an estimator whose profile has the noise of a perturbation, if there is any.

    Raises:
        TopoplanError: the estimator has no noise.
    """
    if not perturbation.profile_noise:
        return estimator
    if not {"noise", "noise_seed"} <= set(attrs.fields_dict(type(estimator))):
        raise TopoplanError(
            f"profile-noise: estimator {estimator.name} has no option noise (take estimator hidup, or compute-noise)"
        )
    options: dict[str, Any] = {"noise": perturbation.profile_noise, "noise_seed": perturbation.seed}
    return attrs.evolve(estimator, **options)


def at_bandwidth(fabric: AnyFabric, scale: float) -> AnyFabric:
    """Return a fabric whose links have ``scale`` times their bandwidth."""
    return fabric.map_wirings(lambda wiring: attrs.evolve(wiring, link_bandwidth=wiring.link_bandwidth * scale))


def _built_at(
    build: Callable[[Demand | None, np.random.Generator], AnyFabric], scale: float
) -> Callable[[Demand | None, np.random.Generator], AnyFabric]:
    """Build with the true cluster, so that topologies with bandwidths of their own are scaled like all others."""

    def built(demand: Demand | None, rng: Any) -> AnyFabric:
        return at_bandwidth(build(demand, rng), scale)

    return built

"""What several trainers run all, and what trainers add to plans that leave it to them.

`topoplan_engine.search.trainers` makes one restriction of several, for the `topoplan.Problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.problem import Problem
from topoplan.model.restriction import AxisUse, PipelineLimits, Restriction
from topoplan.model.sharding import Sharding, Signature
from topoplan.model.strategy import Strategy

__all__ = ["AddsToPlans", "AllOf", "as_run", "refusal_of_time"]


@runtime_checkable
class AddsToPlans(Protocol):
    """A restriction whose trainer does more than some plans say: it sums gradients in fp32, say, and clips them."""

    def as_run(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> Strategy:
        """Return a strategy with what the trainer adds; the same one where it says that, or cannot run it."""


def as_run(problem: Problem, strategy: Strategy) -> Strategy:
    """Return a strategy as the trainer runs it that plans are for; the same one where they are for none."""
    restriction = problem.restriction
    if not isinstance(restriction, AddsToPlans):
        return strategy
    return restriction.as_run(problem.graph, problem.cluster, strategy)


def refusal_of_time(problem: Problem, restriction: Restriction, strategy: Strategy) -> str:
    """Say why a trainer does not run a strategy in its time: it cannot, or adds to it; empty if it does."""
    refusal = restriction.refusal(problem.graph, problem.cluster, strategy)
    if refusal or as_run(problem, strategy) is strategy:
        return refusal
    return f"{restriction.name}: sums and clips gradients in a way that the plan leaves to it, and its time has not"


class AllOf(Restriction):
    """What every one of several trainers runs."""

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._all = tuple(restrictions)
        self.name = " and ".join(dict.fromkeys(restriction.name for restriction in restrictions))
        meshes = dict.fromkeys(mesh for restriction in restrictions for mesh in restriction.meshes)
        self.meshes = tuple(mesh for mesh in meshes if all(_has(each.meshes, mesh) for each in restrictions))
        self.shards_state = all(restriction.shards_state for restriction in restrictions)
        self.pipelines = _common([restriction.pipelines for restriction in restrictions])

    def allows(self, operator: Operator, use: AxisUse, signature: Signature) -> bool:
        """Say whether all allow a signature."""
        return all(restriction.allows(operator, use, signature) for restriction in self._all)

    def stores(self, elements: int, use: AxisUse, stored: Sharding, used: Sharding) -> bool:
        """Say whether all allow a storage."""
        return all(restriction.stores(elements, use, stored, used) for restriction in self._all)

    def converts(self, use: AxisUse, source: Sharding, target: Sharding) -> bool:
        """Say whether all allow a conversion."""
        return all(restriction.converts(use, source, target) for restriction in self._all)

    def refusal(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> str:
        """Return the first refusal."""
        return next(filter(None, (each.refusal(graph, cluster, strategy) for each in self._all)), "")

    def as_run(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> Strategy:
        """Return a strategy with what each of them adds."""
        for restriction in self._all:
            if isinstance(restriction, AddsToPlans):
                strategy = restriction.as_run(graph, cluster, strategy)
        return strategy


def _has(meshes: tuple[tuple[AxisUse, ...], ...], mesh: tuple[AxisUse, ...]) -> bool:
    """Say whether a mesh is among those of a trainer, or is one of its meshes with less along axes for anything."""
    free = [trainer_mesh for trainer_mesh in meshes if AxisUse.MODEL in trainer_mesh]
    return mesh in meshes or any(
        len(trainer_mesh) <= len(mesh) and all(use in trainer_mesh or use is not AxisUse.EXPERT for use in mesh)
        for trainer_mesh in free
    )


def _common(limits: Sequence[PipelineLimits | None]) -> PipelineLimits | None:
    """Return the pipelines that all have; None if there are none."""
    pipelines = [limit for limit in limits if limit is not None]
    if len(pipelines) < len(limits):
        return None
    schedules = tuple(kind for kind in pipelines[0].schedules if all(kind in limit.schedules for limit in pipelines))
    strictest: tuple[Literal["none", "all or none", "any"], ...] = ("none", "all or none", "any")
    recompute = next(word for word in strictest if any(limit.recompute == word for limit in pipelines))
    layers = any(limit.cuts == "layers" for limit in pipelines)
    return PipelineLimits(cuts="layers" if layers else "operators", schedules=schedules, recompute=recompute)

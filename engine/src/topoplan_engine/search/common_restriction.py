"""What several trainers run all: the restriction of a search whose plan is for every one of them.

`topoplan_engine.search.trainers` makes it of their restrictions, for the `topoplan.Problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.restriction import AxisUse, PipelineLimits, Restriction
from topoplan.model.sharding import Sharding, Signature
from topoplan.model.strategy import Strategy

__all__ = ["AllOf"]


class AllOf(Restriction):
    """What every one of several trainers runs."""

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._all = tuple(restrictions)
        self.name = " and ".join(restriction.name for restriction in restrictions)
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

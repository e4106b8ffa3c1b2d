"""Estimator ``profile``: times that the operators of a model contain, as in layer profiles.

A part takes its share of the time of the whole operator (`cost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["Profiled", "topoplan_estimators"]


@attrs.frozen(kw_only=True)
class Profiled(Estimator):
    """The profiled times of the model, divided among parts in proportion to their samples.

    The option states the optimizer state in memory.
    """

    name = "profile"

    optimizer_state: int | None = option(
        None,
        help="copies of each weight that the optimizer keeps; unset: those of --optimizer (adam 2)",
        minimum=0,
    )

    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs."""
        from topoplan_estimator_profile.cost import ProfiledCosts

        return ProfiledCosts(self, graph, cluster)


@hookimpl
def topoplan_estimators() -> type[Estimator]:
    """Register the estimator."""
    return Profiled

"""Estimator ``profile``: operators that bring their measured times along, as layer profiles do.

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
    """Times that the model was profiled with, shared evenly by the samples of a part.

    What training keeps in memory beside weights, gradients and activations.
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

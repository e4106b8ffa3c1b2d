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

__all__ = ["PROFILE", "Options", "topoplan_estimators"]


@attrs.frozen
class Options:
    """What training keeps in memory beside weights, gradients and activations."""

    optimizer_state: int | None = option(
        None,
        help="copies of each weight that the optimizer keeps; unset: those of --optimizer (adam 2)",
        minimum=0,
    )


def _build(options: Options, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
    from topoplan_estimator_profile.cost import Profiled

    return Profiled(options, graph, cluster)


PROFILE = Estimator(
    name="profile",
    summary="times that the model was profiled with, shared evenly by the samples of a part",
    options=Options,
    build=_build,
)


@hookimpl
def topoplan_estimators() -> list[Estimator]:
    """Return the estimator of profiled models."""
    return [PROFILE]

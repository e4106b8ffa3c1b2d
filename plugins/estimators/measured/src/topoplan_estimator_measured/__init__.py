"""Estimator ``measured``: times that FlexNet (TopoOpt, NSDI'23) measured on a GPU.

`profiles` holds those that its authors published, `reading` checks a file of FlexNet; both give a table.  `curves`
looks up and interpolates the times of one kind of operator; `cost` matches the operators of a graph with the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["MEASURED", "Options", "topoplan_estimators"]


@attrs.frozen
class Options:
    """Which times, and what to do where they are silent."""

    profile: str = option(
        "",
        help="times that come with this estimator, as dlrm16 or vgg128; its README lists them; this or file is needed",
    )
    file: str = option("", help="FlexNet measurement file (JSON)")
    missing: Literal["interpolate", "refuse"] = option(
        "interpolate",
        help="a batch cut that was not measured: interpolate between those that were (at least two), or refuse it",
    )
    shapes: Literal["auto", "scale", "share", "refuse"] = option(
        "auto",
        help="a layer of other shape than the first of its name, which was measured: scale by FLOPs, share the time, "
        "or refuse; auto shares in the flexnet dialect, as FlexNet does, and scales otherwise",
    )


def _build(options: Options, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
    from topoplan_estimator_measured.cost import Measured

    return Measured(options, graph, cluster)


MEASURED = Estimator(
    name="measured",
    summary="times measured by FlexNet, interpolated between batch cuts",
    options=Options,
    build=_build,
    example={"file": str(Path(__file__).with_name("example.json"))},
)


@hookimpl
def topoplan_estimators() -> list[Estimator]:
    """Return the estimator that reads FlexNet's measurements."""
    return [MEASURED]

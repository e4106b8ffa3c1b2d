"""Estimator ``measured``: times that FlexNet (TopoOpt, NSDI'23) or ``topoplan profile operators`` measured.

`profiles` has the times that FlexNet's authors published, and `reading` checks a file of FlexNet; both return a table.
`curves` looks up and interpolates the times of one kind of operator.  `cost` matches the operators of a graph with the
table.  `own_table` prices with the table that ``topoplan profile operators`` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["Measured", "topoplan_estimators"]


@attrs.frozen(kw_only=True)
class Measured(Estimator):
    """Measured times: FlexNet's, interpolated between batch cuts, or our own.

    The options select the times, and for FlexNet's the rule for cuts and layers without measurements.
    """

    name = "measured"
    example = {"file": str(Path(__file__).with_name("example.json"))}

    profile: str = option(
        "",
        help="included measurements, such as dlrm16 or vgg128 (see the README); this or file is required",
    )
    file: str = option("", help="FlexNet measurement file (JSON), or the table of topoplan profile operators")
    missing: Literal["interpolate", "refuse"] = option(
        "interpolate",
        help="a batch cut that was not measured: interpolate between those that were (at least two), or refuse it",
    )
    nodes: Literal["auto", "same", "any"] = option(
        "auto",
        help="devices of the cluster: as many as the times were measured for, or any number, where missing says what "
        "becomes of cuts that were not measured; auto: same for a file, as in FlexNet, any for an included profile",
    )
    shapes: Literal["auto", "scale", "share", "refuse"] = option(
        "auto",
        help="a layer of other shape than the first of its name, which was measured: scale by FLOPs, share the time, "
        "or refuse; auto shares in the flexnet dialect, as FlexNet does, and scales otherwise",
    )

    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs."""
        from topoplan_estimator_measured.cost import build as build_costs

        return build_costs(self, graph, cluster)


@hookimpl
def topoplan_estimators() -> type[Estimator]:
    """Register the estimator."""
    return Measured

"""Estimator ``hidup``: HiDup's cost model.  Operators take FLOPs over a rate, collectives bytes over a bandwidth.

`flops` counts FLOPs as HiDup does.  `cost` converts counts into seconds.  Bandwidths follow from the cluster
(`bandwidths`) unless options name them, or a file that `reading` checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["Hidup", "topoplan_estimators"]

_HELP = "of the whole tensor; unset: that of the preset"


@attrs.frozen(kw_only=True)
class Hidup(Estimator):
    """HiDup's cost model: FLOPs over a rate, and collectives over a bandwidth for each kind.

    ``preset=cluster`` is for times: bandwidths follow the cluster, and forward and backward pass together run at the
    rate of a device, which is that of whole iterations.  ``preset=released`` is HiDup's released profile of eight V100,
    for its objectives: the forward pass alone runs at that rate.
    """

    name = "hidup"

    preset: Literal["cluster", "released"] = option(
        "cluster",
        help="times of iterations, bandwidths follow the cluster; or HiDup's released profile, for its objectives",
    )
    device_flops: int = option(
        4_139_214_925_014,
        help="forward FLOPs over the time of a whole iteration on one device, as HiDup's profiler measures",
        unit="FLOP/s",
        minimum=1,
    )
    all_gather_bytes_per_s: int | None = option(None, help=_HELP, unit="bytes/s", minimum=1)
    all_reduce_bytes_per_s: int | None = option(None, help=_HELP, unit="bytes/s", minimum=1)
    reduce_scatter_bytes_per_s: int | None = option(None, help=_HELP, unit="bytes/s", minimum=1)
    all_to_all_bytes_per_s: int | None = option(None, help=_HELP, unit="bytes/s", minimum=1)
    file: str = option("", help="measured bandwidths and latencies (topoplan profile collectives), in place of these")
    latency_us: float = option(100.0, help="of one collective", unit="us", minimum=0)
    noise: float = option(0.0, help="every number times a factor this far from 1 at most", minimum=0, maximum=0.99)
    noise_seed: int = option(0, help="of the factors", minimum=0, maximum=2**63 - 1)
    optimizer_state: int | None = option(
        None,
        help="copies of each weight that the optimizer keeps; unset: those of --optimizer (adam 2)",
        minimum=0,
    )

    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs."""
        from topoplan_estimator_hidup.cost import HidupCosts

        return HidupCosts(self, graph, cluster)


@hookimpl
def topoplan_estimators() -> type[Estimator]:
    """Register the estimator."""
    return Hidup

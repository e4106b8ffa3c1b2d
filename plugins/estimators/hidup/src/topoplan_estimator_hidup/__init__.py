"""Estimator ``hidup``: HiDup's cost model.  Operators take FLOPs over a rate, collectives bytes over a bandwidth.

`flops` counts FLOPs as HiDup does.  `cost` converts counts into seconds, with bandwidths from the options or from a
file that `reading` checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["Hidup", "topoplan_estimators"]


@attrs.frozen(kw_only=True)
class Hidup(Estimator):
    """HiDup's cost model: FLOPs over a rate, and collectives over a bandwidth for each kind.

    The defaults are HiDup's released profile of a cluster with eight GPUs.
    """

    name = "hidup"

    device_flops: int = option(4_139_214_925_014, help="rate of a device", unit="FLOP/s", minimum=1)
    all_gather_bytes_per_s: int = option(1_224_592_728, help="of the whole tensor", unit="bytes/s", minimum=1)
    all_reduce_bytes_per_s: int = option(611_692_856, help="of the whole tensor", unit="bytes/s", minimum=1)
    reduce_scatter_bytes_per_s: int = option(1_130_230_706, help="of the whole tensor", unit="bytes/s", minimum=1)
    all_to_all_bytes_per_s: int = option(10_701_240_728, help="of the whole tensor", unit="bytes/s", minimum=1)
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

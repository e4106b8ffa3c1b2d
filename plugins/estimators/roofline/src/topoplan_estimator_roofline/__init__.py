"""Estimator ``roofline``: times from FLOPs, bytes and the peak rates of devices, without measurements.

`topoplan_operator_times.work` derives the FLOPs and bytes of a part.  `cost` converts them into seconds on a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["Roofline", "topoplan_estimators"]


@attrs.frozen(kw_only=True)
class Roofline(Estimator):
    """FLOPs and bytes of each part against its device's peaks.

    The options state the efficiency of kernels, and the optimizer state in memory.
    """

    name = "roofline"
    knows_precision = True

    device: str = option("", help="price every device as this machine; empty: as its own machine")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = option(
        None, help="arithmetic whose peak counts; unset: the model's"
    )
    compute_efficiency: float | None = option(
        None,
        help="share of the arithmetic peak that kernels reach; unset: what the best matrix product reaches that was "
        "measured on the device in that precision, 0.9 where none was",
        minimum=1e-6,
        maximum=1,
    )
    memory_efficiency: float = option(
        0.75, help="share of the memory bandwidth that kernels reach", minimum=1e-6, maximum=1
    )
    compute_tflops: float | None = option(
        None,
        help="arithmetic rate that kernels reach; unset: the device's peak times compute-efficiency",
        unit="TFLOP/s",
        above=0,
        maximum=1e9,
    )
    memory_gb_per_s: float | None = option(
        None,
        help="memory bandwidth that kernels reach; unset: the device's times memory-efficiency",
        unit="GB/s",
        above=0,
        maximum=1e9,
    )
    kernel_overhead_us: float | None = option(
        None, help="time of an empty kernel; empty: the device's", unit="us", minimum=0
    )
    optimizer_state: int | None = option(
        None,
        help="copies of each dense weight that the optimizer keeps; unset: those of --optimizer (adam 2)",
        minimum=0,
    )

    fp8: bool = option(
        False, help="products of layers with their weights run at the device's rate in fp8, everything else as it is"
    )
    optimizer_step: bool = option(
        False,
        help="price the optimizer's step: weights, gradients and state are read and written, for every slice of a "
        "dense weight",
    )

    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs."""
        from topoplan_estimator_roofline.cost import RooflineCosts

        return RooflineCosts(self, graph, cluster)


@hookimpl
def topoplan_estimators() -> type[Estimator]:
    """Register the estimator."""
    return Roofline

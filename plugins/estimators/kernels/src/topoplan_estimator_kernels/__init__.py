"""Estimator ``kernels``: times from constants that were fitted to measured kernels of the device.

`topoplan_kernel_constants` has tables, constants and models of kernels.  `operators` says which kernels the part of an
operator launches, `launching` adds what launches take, and `cost` makes prices of it all, where a table of the user's
own machine comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Estimator, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Cluster, CostFunction
    from topoplan.model.graph import OperatorGraph

__all__ = ["KernelTimes", "topoplan_estimators"]


@attrs.frozen(kw_only=True)
class KernelTimes(Estimator):
    """Kernels as they were measured on the device: tiles and waves of products, attention, bytes, launches, steps.

    The options say how kernels are launched, and which optimizer steps.
    """

    name = "kernels"
    knows_precision = True
    example = {"device": "h100"}

    device: str = option("", help="price every device as this machine; empty: as its own machine")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = option(
        None, help="arithmetic of products; unset: the model's"
    )
    fp8: bool = option(
        False, help="products of layers and experts with their weights run in fp8; the head and all else stays as it is"
    )
    fp4: bool = option(False, help="the same products in fp4, where the device has it (Blackwell)")
    experts: Literal["grouped", "fused", "batched"] = option(
        "grouped",
        help="how experts multiply: one grouped product, as Megatron runs them; fused: their biases and limits are in "
        "its kernels, too; or a batch, as PyTorch's einsum",
    )
    fused: bool | None = option(
        None,
        help="rotary embeddings, SwiGLU, and tokens to experts and back are one kernel each (Transformer Engine); "
        "unset: as those of --kernels, or else no",
    )
    launch: Literal["graphs", "eager", "stream"] = option(
        "graphs",
        help="how kernels are launched: as CUDA graphs; one by one from Python, whose time counts where the device "
        "waits for it; or one behind the other in a stream that never waits",
    )
    table: str = option(
        "", help="table of topoplan profile operators: a part that is in it has its own time, before any constant"
    )
    optimizer: Literal[
        "auto", "none", "adam_fused", "adamw_fused", "adam_foreach", "sgd_fused", "sgd_momentum_fused"
    ] = option("auto", help="the optimizer's kernel, whose step is priced; auto: the fused one of --optimizer")
    products: float = option(
        1.0,
        help="seconds of matrix products within an iteration over those of kernels one by one",
        minimum=0.1,
        maximum=10,
    )
    passes: float = option(
        1.0, help="the same of kernels that move bytes, and of the optimizer's step", minimum=0.1, maximum=10
    )
    attention: Literal["fused", "flash2", "written"] | None = option(
        None,
        help="fused: cuDNN's kernels, or FlashAttention 3; flash2: FlashAttention 2, as slow beside them on Hopper as "
        "its authors say; written: scores are in memory, for mask, softmax and dropout (Megatron-LM before "
        "FlashAttention); unset: what the model says (-o attention), or else as in --kernels, or else fused",
    )
    accumulation: float = option(
        0.0,
        help="bytes moved for each weight in each micro-batch, to add its gradient to those of others",
        minimum=0,
        maximum=100,
    )
    host: float = option(
        1.0,
        help="seconds in which the host launches operators one by one over those of the host that was measured",
        minimum=0.01,
        maximum=100,
    )

    @staticmethod
    def devices() -> tuple[str, ...]:
        """Return the kinds of devices that there are constants of."""
        from topoplan_kernel_constants.sheets import DEVICES

        return DEVICES

    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs."""
        from topoplan_estimator_kernels.cost import KernelCosts

        return KernelCosts(self, graph, cluster)


@hookimpl
def topoplan_estimators() -> type[Estimator]:
    """Register the estimator."""
    return KernelTimes

"""Kernels within an iteration, as a software runs them, where they are known one by one.

Matrix products and kernels that move bytes take longer within an iteration than by themselves (clocks, caches, kernels
of communication beside them); attention that keeps no scores on chip writes them to memory several times, and
FlashAttention 2 leaves half of Hopper's rate unused; and gradients of a micro-batch are added to those before it, in
four bytes.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_engine.trainer_kernels import attention_of, kernels_of
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_kernels.operators import PartSeconds
from topoplan_kernel_constants.kernels import Kernels
from topoplan_operator_times.parts import PartShape

__all__ = ["Within", "in_software"]

#: Operators that are matrix products.
_PRODUCTS = frozenset({"bmm", "einsum", "expert_linear", "linear", "matmul"})
_ATTENTION = "scaled_dot_product_attention"
#: Seconds of FlashAttention 2 over those of FlashAttention 3 on Hopper: its paper (Shah et al. 2024, abstract and
#: section 4.1) says 1.5 to 2.0 forward and 1.5 to 1.75 backward; the middle of both.
_HOPPER = ("h100", "h200", "h800")
_FLASH2_FORWARD, _FLASH2_BACKWARD = 1.75, 1.625
#: Bytes moved for each score of 2 bytes.  Forward: scores are written, read and written by scale, mask and softmax in
#: one kernel, read and written by dropout with a mask of one byte, and read by the product with values.  Backward:
#: their gradient is written, passes dropout and softmax likewise, and is read by two products; the dropped scores are
#: read by one.
_FORWARD_BYTES, _BACKWARD_BYTES = 2 + 4 + 5 + 2, 2 + 2 + 5 + 6 + 4
#: Bytes that a copy moves for each element of 2 bytes.
_COPY = 4


def in_software(options: KernelTimes, graph: OperatorGraph, device: str) -> KernelTimes:
    """Return options with what the model's attention and its trainer's kernels say, where they say nothing.

    FlashAttention 2 of a trainer is what was measured where it is not known beside others.
    """
    kernels, attention = kernels_of(graph), options.attention or attention_of(graph)
    if options.attention is None and "attention" not in graph.tags and attention == "flash2" and device not in _HOPPER:
        attention = "fused"
    fused = options.fused if options.fused is not None else kernels is not None and kernels.fused
    return attrs.evolve(options, attention=attention, fused=fused)


@attrs.frozen(eq=False)
class Within:
    """What an iteration makes of the times of single kernels."""

    options: KernelTimes
    kernels: Kernels
    mode: str

    def __attrs_post_init__(self) -> None:
        """Refuse kernels of attention that are not slower on this device by what their authors say."""
        if self.options.attention == "flash2" and self.kernels.device not in _HOPPER:
            raise TopoplanError(
                f"estimator kernels: attention flash2: is known beside others on {', '.join(_HOPPER)} alone, not on "
                f"{self.kernels.device} (fused is what was measured there)"
            )

    @property
    def changed(self) -> dict[str, float | str]:
        """The options that change something, as plans record them."""
        names, as_measured = ("products", "passes", "attention", "accumulation", "host"), KernelTimes(attention="fused")
        pairs = ((name, getattr(self.options, name)) for name in names)
        return {name: value for name, value in pairs if value != getattr(as_measured, name)}

    def seconds(self, part: PartShape, kernel_seconds: PartSeconds) -> PartSeconds:
        """Return what a part takes, whose kernels one by one take ``kernel_seconds``."""
        if part.kind == _ATTENTION and self.options.attention == "written":
            return self._written_scores(part)
        is_product = part.kind in _PRODUCTS or part.kind == _ATTENTION
        factor = self.options.products if is_product else self.options.passes
        forward, backward = factor, factor
        if part.kind == _ATTENTION and self.options.attention == "flash2":
            forward, backward = forward * _FLASH2_FORWARD, backward * _FLASH2_BACKWARD
        if forward == backward == 1:
            return kernel_seconds
        return PartSeconds(kernel_seconds.forward * forward, kernel_seconds.backward * backward)

    def moving(self, elements: float, nbytes: float) -> float:
        """Return the seconds in which so many bytes are moved for each element, at the rate of a copy."""
        if not nbytes:
            return 0.0
        copied = self.kernels.moving(self.mode, "copy", "forward", 1, max(elements, 1))
        return copied * (nbytes / _COPY) * self.options.passes

    def _written_scores(self, part: PartShape) -> PartSeconds:
        """Return the seconds of attention whose scores are in memory; products make all of them, causal or not."""
        samples, positions, heads, group, keys, channels, _ = part.sizes
        batch, of = samples * heads * group, self.kernels.product
        products = of(self.mode, "forward", batch, positions, keys, channels)
        products += of(self.mode, "forward", batch, positions, channels, keys)
        products *= self.options.products
        scores = batch * positions * keys
        return PartSeconds(
            products + self.moving(scores, _FORWARD_BYTES), 2 * products + self.moving(scores, _BACKWARD_BYTES)
        )

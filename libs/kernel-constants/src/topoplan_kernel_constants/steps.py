"""Steps of optimizers: bytes at a measured rate, and seconds for each tensor."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from topoplan_kernel_constants.tables import column, names

__all__ = ["Steps"]

#: Elements of the rows that say seconds of an element.
_LARGE = 2**27


@attrs.frozen(eq=False)
class Steps:
    """By mode and kind: seconds of a step of nothing, of an element, and of a tensor.

    >>> step = Steps.of("h100").seconds["fp32", "adam_fused"]
    >>> 2.2e12 < 28 / step[1] < 2.8e12  # bytes/s: reads gradient, reads and writes weight and both moments
    True
    """

    seconds: Mapping[tuple[str, str], tuple[float, float, float]]

    @classmethod
    def of(cls, device: str, faster: float = 1.0) -> Steps:
        """Return what was measured on a device, or what one takes whose memory is ``faster`` by a factor."""
        words = np.array([names(device, "steps", "mode"), names(device, "steps", "kind")])
        elements, tensors, us = (column(device, "steps", word) for word in ("elements", "tensors", "us"))
        rates: dict[tuple[str, str], tuple[float, float, float]] = {}
        for mode, kind in dict.fromkeys(zip(*words.tolist(), strict=True)):
            if ":" in kind:
                continue
            is_of_kind = (words[0] == mode) & (words[1] == kind)
            large = np.flatnonzero(is_of_kind & (elements >= _LARGE) & (tensors <= 100))
            each = float(np.min(us[large] / elements[large])) / 1e6
            many = np.flatnonzero(is_of_kind & (tensors > 1))
            nothing = float(us[is_of_kind].min()) / 1e6
            remainder = (us[many] / 1e6 - each * elements[many] - nothing) / tensors[many]
            rates[mode, kind] = nothing, each / faster, float(max(np.median(remainder), 0.0))
        return cls(rates)

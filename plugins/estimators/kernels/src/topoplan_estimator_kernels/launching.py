"""What launches add to the times of kernels, or save.

Measured kernels stand one behind the other in a stream, with the gap of a stream between them.

- *stream*: as measured.
- *graphs*: a CUDA graph has a smaller gap between two kernels.
- *eager*: the host launches one operator after the other, in a time of its own.  It runs ahead while the device is
  busy, so that over an iteration the longer of both totals counts.  A share of the host's time makes it so: the largest
  share with which the sum over operators of the longer of both is that total.  It is found for the whole model and for
  each number of parts, by which the device's time is divided, and the host's is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_estimator_kernels.operators import PartSeconds
from topoplan_kernel_constants.kernels import Kernels
from topoplan_kernel_constants.launches import host_seconds, launches_of, step_host_seconds

__all__ = ["Launching"]

_HALVINGS = 30


@attrs.frozen(eq=False)
class Launching:
    """How kernels are launched, with (n, 2) seconds of operators, forward and backward, on the device and the host."""

    way: str
    kernels: Kernels
    mode: str
    device: F64
    host: F64
    shares: dict[int, float]
    factor: float = 1.0

    @classmethod
    def of(
        cls,
        way: str,
        kernels: Kernels,
        mode: str,
        kinds: Sequence[str],
        whole: Sequence[PartSeconds],
        factor: float = 1.0,
    ) -> Launching:
        """Return the launching of a model whose operators, uncut, take ``whole`` on the device.

        The host takes ``factor`` times what was measured.
        """
        device = np.array([(each.forward, each.backward) for each in whole]).reshape(-1, 2)
        host = np.array([host_seconds(kernels.counted, kind) for kind in kinds]).reshape(-1, 2) * factor
        return cls(way, kernels, mode, device, np.where(device > 0, host, 0.0), {}, factor)

    def seconds(self, kind: str, part: PartSeconds, parts: int) -> PartSeconds:
        """Return what a part takes of the iteration."""
        if self.way == "stream":
            return part
        if self.way == "graphs":
            saved = (self.kernels.gaps["queued"] - self.kernels.gaps["graph"]) / 1e6
            counts = launches_of(self.kernels.counted, self.mode, kind)
            pair = [
                max(seconds - count * saved, seconds / 2)
                for seconds, count in zip((part.forward, part.backward), counts, strict=True)
            ]
            return PartSeconds(*pair)
        share = self._share(parts) * self.factor
        host = host_seconds(self.kernels.counted, kind)
        pair = [
            max(seconds, share * each if seconds > 0 else 0.0)
            for seconds, each in zip((part.forward, part.backward), host, strict=True)
        ]
        return PartSeconds(*pair)

    def step(self, seconds: float, parts: int) -> float:
        """Return what one weight's share of an optimizer's step takes of the iteration."""
        if self.way != "eager":
            return seconds
        return max(seconds, self._share(parts) * self.step_host)

    @property
    def step_host(self) -> float:
        """What the host takes for one weight in a step."""
        return step_host_seconds(self.kernels.counted, self.mode) * self.factor

    def _share(self, parts: int) -> float:
        """Return the share of the host's time with which the sum of the longer is the longer of the sums."""
        if parts not in self.shares:
            device = self.device / parts
            total = max(device.sum(), self.host.sum())
            low, high = 0.0, 1.0
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if np.maximum(device, middle * self.host).sum() <= total else (low, middle)
            self.shares[parts] = low
        return self.shares[parts]

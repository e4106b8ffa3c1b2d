"""A latency and a bandwidth from times: the alpha-beta model of a collective.

Model: seconds = latency + bytes / bandwidth (Hockney: The Communication Challenge for MPP, Parallel Computing 20(3),
1994).  Errors count relative to the time, so that small tensors say what the latency is and large ones what the
bandwidth is.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Line", "fit"]


@attrs.frozen
class Line:
    """Seconds, and bytes/s of the whole tensor."""

    latency: float
    bandwidth: float


def fit(sizes: ArrayLike, seconds: ArrayLike) -> Line:
    """Return the line through measured times.

    Args:
        sizes: (n,) bytes of the whole tensor, positive, two different ones at least.
        seconds: (n,) of each, positive.

    Returns:
        The least relative squares; a line through the origin where the latency would be negative, and the largest
        tensor alone where times do not grow with sizes.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    columns = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    if latency < 0:
        latency, slope = 0.0, (x / y).sum() / ((x / y) @ (x / y))
    if slope <= 0:
        largest = int(np.argmax(x))
        latency, slope = 0.0, y[largest] / x[largest]
    return Line(float(latency), float(1 / slope))

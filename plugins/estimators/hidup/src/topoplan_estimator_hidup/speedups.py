"""How much faster than in fp32 operators run in mixed precision, unless users say.

HiDup trains in mixed precision (section 6), but its planner prices fp32 alone.  Here matrix products
gain what the device's published peaks differ by, all others what they save of the bytes.
"""

from __future__ import annotations

import numpy as np

from topoplan import Cluster, OperatorGraph, TopoplanError
from topoplan.arrays import F64, f64

__all__ = ["speedups_of"]

#: Kinds of operators that are matrix products.
_PRODUCTS = {"attention", "bmm", "conv2d", "einsum", "linear", "matmul", "multihead_attention"}
#: How many bytes of fp32 stand for one: the gain of an operator that waits for the memory.
_BYTES = 2.0


def speedups_of(graph: OperatorGraph, cluster: Cluster) -> tuple[F64, str] | None:
    """Return (n,) factors on the speed of operators in the model's precision, and a sentence that says what they are.

    Returns:
        None where the cluster knows nothing of its devices.

    Raises:
        TopoplanError: a device has no such arithmetic.
    """
    names = sorted(set(cluster.device_preset))
    if not all(name.lower() in cluster.machines for name in names):
        return None
    ratios = {}
    for device in map(cluster.device, names):
        if graph.precision not in device.peak_flops:
            raise TopoplanError(
                f"estimator hidup: precision: {device.name} has no {graph.precision} "
                f"(it has {', '.join(device.peak_flops)})"
            )
        ratios[device.name] = device.peak_flops[graph.precision] / device.peak_flops["fp32"]
    factor = min(ratios.values())
    slowest = min(ratios, key=ratios.__getitem__)
    factors = np.array([factor if op.kind in _PRODUCTS else _BYTES for op in graph.operators])
    return f64(factors), (
        f"matrix products {factor:.1f} times as fast as in fp32 (ratio of the published peaks of {slowest}, an upper "
        f"limit), other operators {_BYTES:g} times (half the bytes); --precision-speedup sets one factor for all"
    )

"""Operators that have a price only as a whole, such as embedding tables that were measured uncut.

Each is on one device of its stage (`topoplan_pipeline_planning.stages.staged_strategy` spreads them, the longest
first), so that the devices of a stage may have unequal shares.  `busiest_share` says for a stage what the device that
has the most of them has more than an equal share; `rounded_share` estimates it without a look at each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel

__all__ = ["WholeOperators", "busiest_share", "rounded_share"]


class WholeOperators(NamedTuple):
    """The W operators of a model that are not cut, the longest first.

    Attributes:
        op: (W,) the operators.
        prices: (4, W) seconds forward and backward, bytes that persist and bytes of activations of each.
        is_whole: (n,) which operators of the model they are.
        number, forward, backward: (C,) how many are before each cut, and their seconds.
    """

    op: I64
    prices: F64
    is_whole: NDArray[np.bool_]
    number: F64
    forward: F64
    backward: F64

    @classmethod
    def of(cls, seconds: Mapping[int, float], prices: F64, closed: NDArray[np.bool_]) -> WholeOperators:
        """Return their columns.

        Args:
            seconds: of each whole operator.
            prices: (4, n) see ``prices`` above, of every operator of the model as a whole.
            closed: (C, n) the operators before each cut.
        """
        order = np.array(sorted(seconds, key=lambda op: -seconds[op]), dtype=np.int64)
        of_whole = np.ascontiguousarray(prices[:, order])
        return cls(
            op=order,
            prices=of_whole,
            is_whole=np.isin(np.arange(closed.shape[1]), order),
            number=closed[:, order].sum(axis=1, dtype=np.float64),
            forward=closed[:, order] @ of_whole[0],
            backward=closed[:, order] @ of_whole[1],
        )


@inline_kernel  # type: ignore[untyped-decorator]
def busiest_share(
    whole: WholeOperators, before: NDArray[np.bool_], until: NDArray[np.bool_], devices: int, loads: F64
) -> tuple[float, float, float, float]:
    """Return seconds and bytes (see `WholeOperators.prices`) that a device has at most, beyond an equal share.

    Seconds are those of the device with the most of them; bytes, the most of any device.

    Args:
        whole: the operators.
        before, until: (n,) the operators before the stage, and those before its end.
        devices: of the stage.
        loads: (5, D) room: seconds of each device, and its share of ``prices``.
    """
    loads[:, :devices] = 0.0
    for place in range(len(whole.op)):
        op = whole.op[place]
        if before[op] or not until[op]:
            continue
        lightest = 0
        for device in range(1, devices):
            if loads[0, device] < loads[0, lightest]:
                lightest = device
        loads[0, lightest] += whole.prices[0, place] + whole.prices[1, place]
        for row in range(4):
            loads[1 + row, lightest] += whole.prices[row, place]
    busiest, persistent, activations = 0, 0.0, 0.0
    equal_forward, equal_backward, equal_persistent, equal_activations = 0.0, 0.0, 0.0, 0.0
    for device in range(devices):
        if loads[0, device] > loads[0, busiest]:
            busiest = device
        persistent, activations = max(persistent, loads[3, device]), max(activations, loads[4, device])
        equal_forward += loads[1, device] / devices
        equal_backward += loads[2, device] / devices
        equal_persistent += loads[3, device] / devices
        equal_activations += loads[4, device] / devices
    return (
        loads[1, busiest] - equal_forward,
        loads[2, busiest] - equal_backward,
        persistent - equal_persistent,
        activations - equal_activations,
    )


@inline_kernel  # type: ignore[untyped-decorator]
def rounded_share(count: float, seconds: float, devices: int) -> float:
    """Return how much longer a device has than an equal share of so many operators, if they are all equally long."""
    if count == 0.0:
        return 0.0
    return float(seconds * (np.ceil(count / devices) / count - 1.0 / devices))

"""Prices on devices that are faster or slower than their kind."""

from __future__ import annotations

import attrs

from topoplan.arrays import F64, f64
from topoplan.model.costs import PartCosts

__all__ = ["at_speeds"]


def at_speeds(costs: PartCosts, speeds: F64) -> PartCosts:
    """Return the costs of parts on devices of (P,) speeds, of costs at speed 1; bytes stay.

    Examples:
        >>> import numpy as np
        >>> price = PartCosts(forward=np.array([2e-3]), backward=np.array([4e-3]), memory=np.array([1e6]))
        >>> at_speeds(price, np.array([2.0])).forward.tolist()
        [0.001]
    """
    slowness = 1 / speeds
    gradient = costs.weight_gradient
    return attrs.evolve(
        costs,
        forward=f64(costs.forward * slowness),
        backward=f64(costs.backward * slowness),
        weight_gradient=None if gradient is None else f64(gradient * slowness),
    )

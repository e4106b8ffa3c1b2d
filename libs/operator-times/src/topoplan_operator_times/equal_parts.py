"""Prices of operators whose parts are equal: one is priced, and stands for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topoplan.model.costs import PartCosts

__all__ = ["for_equal_parts"]

_COLUMNS = ("forward", "backward", "memory", "states", "kept", "weight_gradient", "gradients")


def for_equal_parts(price: PartCosts, parts: int) -> PartCosts:
    """Return the costs of so many parts, each of which costs what the one part of ``price`` does.

    Columns are read-only views of one number, so that those of a million parts take no room.

    Examples:
        >>> price = PartCosts(forward=np.array([2e-3]), backward=np.array([4e-3]), memory=np.array([1e6]))
        >>> for_equal_parts(price, 3).forward.tolist()
        [0.002, 0.002, 0.002]
    """
    columns = {name: getattr(price, name) for name in _COLUMNS}
    repeated: Mapping[str, Any] = {
        name: None if column is None else np.broadcast_to(column, (*column.shape[:-1], parts))
        for name, column in columns.items()
    }
    return PartCosts(**repeated)

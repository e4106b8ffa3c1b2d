"""Corrects a model by what the nearest measured shapes took beside it.

The logarithm of measured over modelled seconds is averaged over the measured shapes, each weighted by a Gaussian of its
distance (Nadaraya, On estimating regression, 1964), with a weight for no correction: far from all shapes the model
stands alone.  Coordinates are logarithms of sizes to the base 2.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64

__all__ = ["Neighbours"]

#: Distance at which a neighbour's weight is 0.6, and the weight of no correction.
_WIDTH, _NONE = 1.0, 0.5
#: Queries that are answered at once: distances are a matrix.
_BLOCK = 256


@attrs.frozen(eq=False)
class Neighbours:
    """Measured shapes (n, d), and the (n,) logarithms of measured over modelled seconds.

    >>> import numpy as np
    >>> near = Neighbours(np.array([[10.0, 10.0]]), np.array([0.3]))
    >>> near.logs(np.array([[10.0, 10.0], [30.0, 10.0]])).round(2).tolist()
    [0.2, 0.0]
    """

    shapes: F64
    residuals: F64

    def logs(self, queries: F64) -> F64:
        """Return the (q,) corrections of (q, d) shapes."""
        answers = np.zeros(len(queries))
        squares = (self.shapes**2).sum(axis=1)
        for first in range(0, len(queries), _BLOCK):
            block = queries[first : first + _BLOCK]
            distances = squares - 2 * block @ self.shapes.T + (block**2).sum(axis=1)[:, None]
            weights = np.exp(-np.maximum(distances, 0) / (2 * _WIDTH**2))
            answers[first : first + _BLOCK] = weights @ self.residuals / (weights.sum(axis=1) + _NONE)
        return answers

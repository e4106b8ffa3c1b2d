"""A search for constants: one coordinate after the other, with steps that grow where they help and shrink where not.

It has no randomness, needs no gradient, and is for losses of some twenty constants such as means of absolute errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topoplan.arrays import F64

__all__ = ["least"]

#: First step of each coordinate, and the one at which the search ends.
_FIRST, _LAST = 0.3, 2e-3


def least(loss: Callable[[F64], float], start: F64, rounds: int = 30) -> F64:
    """Return the constants of the least loss that was found.

    >>> import numpy as np
    >>> least(lambda x: float(abs(x - 2).sum()), np.zeros(2)).round(1).tolist()
    [2.0, 2.0]
    """
    best, lowest = start.copy(), loss(start)
    steps = np.full(len(start), _FIRST)
    for _ in range(rounds):
        for k in range(len(best)):
            for sign in (1, -1):
                move = best.copy()
                move[k] += sign * steps[k]
                if (value := loss(move)) < lowest - 1e-7:
                    best, lowest = move, value
                    steps[k] *= 1.3
                    break
            else:
                steps[k] *= 0.5
        if steps.max() < _LAST:
            break
    return best

"""Paths of many pairs of hosts are asked for in parts: a search may have to end between two of them.

What was answered by then is kept, so that a candidate that was left for want of time needs less of it later.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.network.new_rows import NewRows
from topoplan_engine.network.routing import Paths

__all__ = ["AnsweredPairs", "rows_of"]

#: Pairs of hosts whose paths are asked for at a time: some tenths of a second, after which a search may have to end.
_AT_A_TIME = 1 << 16


class AnsweredPairs:
    """Pairs of hosts whose rows of paths are still to be appended to a table."""

    def __init__(self) -> None:
        self._parts: list[tuple[I64, I64, NewRows]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def ask(self, keys: I64, routed: Callable[[I64], tuple[I64, NewRows]]) -> None:
        """Ask for the paths of pairs, part by part.

        Args:
            keys: (k,) pairs that are not known.
            routed: returns the numbers of paths of a part, and rows of those that have some.

        Raises:
            Stopped: the search must end; the parts before are kept.
        """
        for first in range(0, len(keys), _AT_A_TIME):
            stop_if_wanted()
            part = keys[first : first + _AT_A_TIME]
            self._parts.append((part, *routed(part)))

    def take(self, first: int) -> tuple[I64, I32, list[NewRows]]:
        """Return all pairs, their numbers in a table (1 without a path, row + 2) and their rows; none is kept.

        Args:
            first: row of the first one.
        """
        parts, self._parts = self._parts, []
        keys, counts = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
        reachable = counts > 0
        numbers = np.where(reachable, first + 1 + np.cumsum(reachable), 1).astype(np.int32)
        return keys, numbers, [part[2] for part in parts]


def rows_of(answer: Paths, keys: I64, sums: Callable[[I64, I32], dict[str, np.ndarray]]) -> tuple[I64, NewRows]:
    """Return the numbers of paths of pairs, and rows of those that have some.

    Args:
        answer: their paths.
        keys: (k,) of the pairs.
        sums: of paths, given the links of each and these.
    """
    counts = np.diff(answer.pair_ptr)
    reachable = counts > 0
    running = np.cumsum(answer.weight)
    before = np.repeat(np.concatenate([[0.0], running])[answer.pair_ptr[:-1]], counts)
    cumulative_weight = running - before
    cumulative_weight[answer.pair_ptr[1:][reachable] - 1] = 1.0  # rounding must not leave a draw without a path
    lengths = np.diff(answer.path_ptr)
    columns = lengths, answer.links, sums(lengths, answer.links)
    return counts, NewRows(counts[reachable], *columns, cumulative_weight, keys[reachable])

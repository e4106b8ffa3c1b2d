"""Link equivalence classes: of links that nothing tells apart, a simulator follows one.

In a data-parallel iteration every host's links carry the same rings: what happens to one of them happens to
all.  `LinkClasses` partitions links into classes of equal bandwidth and equal load under every ring so far; a link on
the path of a transfer is a class of its own.  Classes are only ever split, so that a statement about a whole class
stays true of its parts.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I32, I64

__all__ = ["LinkClasses"]


class LinkClasses:
    """A partition of links, refined ring by ring.

    Attributes:
        changed: a ring was added or a class split since `first` was asked.
    """

    def __init__(self, bandwidth: F64) -> None:
        self._class = np.unique(bandwidth, return_inverse=True)[1].astype(np.int64)
        self._next = len(bandwidth)
        self._isolated = np.zeros(len(bandwidth), dtype=bool)
        self._first = np.zeros(0, dtype=np.int64)
        self.changed = True

    def load(self, links: I32 | I64, load: I64) -> None:
        """Split classes by the load of one ring on these links, all of them different; (k,) each."""
        self.changed = True  # there is a ring more, even if it splits nothing
        if self._isolated[links].all():
            return
        old = self._class[links]
        order = np.lexsort((load, old))
        new = np.ones(len(links), dtype=bool)
        new[1:] = (np.diff(old[order]) != 0) | (np.diff(load[order]) != 0)
        self._class[links[order]] = self._next + np.cumsum(new) - 1
        self._next += int(new.sum())

    def isolate(self, links: I64) -> None:
        """Make each of these links a class of its own."""
        marked = np.zeros(len(self._class), dtype=bool)
        marked[links] = True
        links = np.flatnonzero(marked & ~self._isolated)
        if len(links):
            self._class[links] = self._next + np.arange(len(links))
            self._next += len(links)
            self._isolated[links] = True
            self.changed = True

    def first(self) -> I64:
        """(E,) first link of the class of each link."""
        if self.changed:
            _, first, inverse = np.unique(self._class, return_index=True, return_inverse=True)
            self._first = first[inverse]
            self.changed = False
        return self._first

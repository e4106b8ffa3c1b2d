"""Link equivalence classes: of links that nothing tells apart, a simulator follows one.

In a data-parallel iteration every host's links carry the same rings: what happens to one of them happens to
all.  `LinkClasses` partitions links into classes of equal bandwidth and equal load under every ring so far; a link on
the path of a transfer is a class of its own.  Classes are only ever split, so that a statement about a whole class
stays true of its parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import F64, I32, I64, i32, i64
from topoplan_engine.csr import indptr

__all__ = ["LinkClasses"]


class LinkClasses:
    """A partition of links, refined ring by ring.

    Attributes:
        changed: a ring was added or a class split since `first` was asked.
    """

    def __init__(self, bandwidth: F64) -> None:
        self._bandwidth, self._class = bandwidth, np.zeros(0, dtype=np.int64)
        self._next = len(bandwidth)
        self._isolated = np.zeros(len(bandwidth), dtype=bool)
        self._asked: list[tuple[I64, I32 | I64, I64]] = []  # since `first` was asked last
        self._first = np.zeros(0, dtype=np.int64)
        self.changed = True

    def load(self, load_ptr: I64, links: I32 | I64, load: I64) -> None:
        """Split classes by the loads of rings, one after the other: compressed rows of links, all different, and loads.

        That is done when `first` asks: networks of folded iterations never do.
        """
        self.changed = True  # there is a ring more, even if it splits nothing
        self._asked.append((load_ptr, links, load))

    def _split(self, load_ptr: I64, links: I32 | I64, load: I64) -> None:
        """Split classes: at once by rings that follow each other and have no link in common."""
        ring = np.repeat(np.arange(len(load_ptr) - 1), np.diff(load_ptr))
        order = np.lexsort((ring, links))
        repeated = np.zeros(len(links), dtype=bool)
        repeated[1:] = links[order[1:]] == links[order[:-1]]
        before = np.full(len(load_ptr) - 1, -1)  # the last ring before each one that has one of its links
        np.maximum.at(before, ring[order[repeated]], ring[order[np.flatnonzero(repeated) - 1]])
        first = 0
        for number, last in enumerate(before.tolist()):
            if last >= first:
                self._load(ring, links, load, slice(load_ptr[first], load_ptr[number]))
                first = number
        self._load(ring, links, load, slice(load_ptr[first], load_ptr[-1]))

    def _load(self, ring: I64, links: I32 | I64, load: I64, rows: slice) -> None:
        """Split classes by rings without a link in common."""
        ring, links, load = ring[rows], links[rows], load[rows]
        split = np.isin(ring, ring[~self._isolated[links]])  # of rings that are not on isolated links alone
        ring, links, load = ring[split], links[split], load[split]
        if not len(links):
            return
        old = self._class[links]
        order = np.lexsort((load, old, ring))
        new = np.ones(len(links), dtype=bool)
        new[1:] = np.any([np.diff(column[order]) != 0 for column in (ring, old, load)], axis=0)
        self._class[links[order]] = self._next + np.cumsum(new) - 1
        self._next += int(new.sum())

    def isolate(self, links: I64) -> None:
        """Make each of these links a class of its own."""
        marked = np.zeros(len(self._isolated), dtype=bool)
        marked[links] = True
        links = np.flatnonzero(marked & ~self._isolated)
        if len(links):
            self._isolated[links] = True
            self.changed = True

    def first(self) -> I64:
        """(E,) first link of the class of each link."""
        if self.changed:
            if not len(self._class):
                self._class = np.unique(self._bandwidth, return_inverse=True)[1].astype(np.int64)
            for asked in self._asked:
                self._split(*asked)
            self._asked = []
            rows = np.flatnonzero(self._isolated)
            self._class[rows] = self._next + np.arange(len(rows))
            self._next += len(rows)
            _, first, inverse = np.unique(self._class, return_index=True, return_inverse=True)
            self._first = first[inverse]
            self.changed = False
        return self._first

    def listed(self, load_ptr: I64, links: I32, load: I64) -> dict[str, Any]:
        """Return rows with the first link of each class alone, and (E,) that of each link as ``representative``."""
        first = self.first()
        stays = first[links] == links
        return {
            "load_ptr": i64(indptr(stays)[load_ptr]),
            "load_links": i32(links[stays]),
            "load": i64(load[stays]),
            "representative": i64(first),
        }

"""Rows of paths and rings that a `topoplan_engine.network.tables.Network` has not met before, until appended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan_engine.csr import expand, indptr, select

__all__ = ["NewRings", "NewRows"]


class NewRings(NamedTuple):
    """The rings of G groups that were not met before, as compressed rows.

    Attributes:
        group: (G,) in their task graph.
        device_ptr, devices: members of each group, in the order of its ring.
        stop_ptr, stops: those that send to the next: the first of each host where some host has several, else all.
        parallel: (G,) rings that each group runs at a time.
        row_ptr, rows: row of paths of each flow, ring by ring.
    """

    group: I64
    device_ptr: I64
    devices: I32
    stop_ptr: I64
    stops: I32
    parallel: I64
    row_ptr: I64
    rows: I32

    @property
    def in_hosts(self) -> NDArray[np.bool_]:
        """(G,) whether some host has several of a group's devices, and its links are on the way of a flow."""
        return np.diff(self.stop_ptr) < np.diff(self.device_ptr)

    def chosen(self, groups: I64) -> NewRings:
        """Return some of these groups."""

        def rows_of(pointers: I64, values: I32) -> tuple[I64, I32]:
            lengths, (_, entry) = np.diff(pointers)[groups], select(pointers, groups)
            return indptr(lengths), values[entry]

        device_ptr, devices = rows_of(self.device_ptr, self.devices)
        stop_ptr, stops = rows_of(self.stop_ptr, self.stops)
        row_ptr, rows = rows_of(self.row_ptr, self.rows)
        group, parallel = self.group[groups], self.parallel[groups]
        return NewRings(group, device_ptr, devices, stop_ptr, stops, parallel, row_ptr, rows)

    def hops(self) -> tuple[I32, I32]:
        """Return the sender and the receiver of each row."""
        flows, counts = np.diff(self.row_ptr), np.diff(self.stop_ptr)
        group, number = expand(np.zeros(len(flows), dtype=np.int64), flows)
        number %= counts[group]
        first = self.stop_ptr[:-1][group]
        after = np.where(number + 1 == counts[group], 0, number + 1)
        return self.stops[first + number], self.stops[first + after]


class NewRows(NamedTuple):
    """New rows of paths, as `PathColumns` has them.

    Attributes:
        paths_of_row: (r,) how many.
        links_of_path: (p,) how many.
        links: of all paths, one after the other.
        sums: (p,) columns, by their names.
        cumulative_weight: (p,) of the paths of each row.
        pair: (r,) which hosts.
    """

    paths_of_row: I64
    links_of_path: I64
    links: I32
    sums: Mapping[str, F64]
    cumulative_weight: F64
    pair: I64

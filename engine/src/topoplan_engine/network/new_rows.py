"""Rows of paths and rings that a `topoplan_engine.network.tables.Network` has not met before, until appended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topoplan.arrays import F64, I32, I64

__all__ = ["NewRings", "NewRows"]


class NewRings(NamedTuple):
    """The rings of a group that was not met before.

    Attributes:
        group: in its task graph.
        devices: (n,) its members, in the order of the ring.
        stops: (m,) those that send to the next: the first of each host where some host has several, else all.
        parallel: rings that it runs at a time.
        rows: row of paths of each flow, ring by ring.
    """

    group: int
    devices: I32
    stops: I32
    parallel: int
    rows: I32

    @property
    def in_hosts(self) -> bool:
        """Whether some host has several of the devices, and its links are on the way of a flow."""
        return len(self.stops) < len(self.devices)


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

"""Selects the best of several wirings for a matrix of traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan import Fabric
from topoplan.arrays import F64
from topoplan_engine.network.routing import paths

__all__ = ["fastest", "link_seconds"]


def fastest(fabrics: Sequence[Fabric], matrix: F64) -> Fabric:
    """Return the fabric whose busiest link has the least time; of equal ones the first."""
    return min(fabrics, key=lambda fabric: float(link_seconds(fabric, matrix).max(initial=0.0)))


def link_seconds(fabric: Fabric, matrix: F64) -> F64:
    """(L,) seconds that each link needs for (n, n) bytes from row to column host, shared evenly by their paths."""
    source, target = np.nonzero(matrix)
    routed = paths(fabric, source, target)
    links = np.diff(routed.path_ptr)
    share = np.repeat(matrix[source, target], np.diff(routed.pair_ptr)) * routed.weight
    load = np.bincount(routed.links, np.repeat(share, links), minlength=fabric.n_links)
    seconds: F64 = load / fabric.link_bandwidth
    return seconds

"""A fabric as cables: links that lead both ways, and the interfaces at their ends."""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Fabric, TopoplanError

__all__ = ["Cable", "both_ways"]


@attrs.frozen
class Cable:
    """Parallel cables between two nodes: how many, and bytes/s and seconds of one of them, each way."""

    first: int
    second: int
    count: int
    bandwidth: float
    latency: float


def both_ways(fabric: Fabric, what: str) -> list[Cable]:
    """Return the cables of a fabric, for formats whose links lead both ways; ``what`` format is for messages.

    Raises:
        TopoplanError: a link has none back of the same rate, latency and count.
    """
    back = fabric.link_rows(fabric.link_dst, fabric.link_src)
    columns = (fabric.link_bandwidth, fabric.link_latency, fabric.link_count)
    same = (back >= 0) & np.all([column == column[back] for column in columns], axis=0)
    for row in np.flatnonzero(~same)[:1]:
        place = f"{fabric.node_name(int(fabric.link_src[row]))} to {fabric.node_name(int(fabric.link_dst[row]))}"
        why = "has no link back" if back[row] < 0 else "differs from the link back in rate, latency or count"
        raise TopoplanError(f"{what}: the link from {place} {why}, which the format cannot say (node-link can)")
    first = fabric.link_src < fabric.link_dst
    ends, count = (fabric.link_src, fabric.link_dst), fabric.link_count
    table = (*ends, count, fabric.link_bandwidth / count, fabric.link_latency)
    return [Cable(*row) for row in zip(*(column[first].tolist() for column in table), strict=True)]

"""The traffic of a demand: bytes on rings, by group size, and bytes between pairs of hosts.

Rings exist for groups that are evenly spaced over the hosts.  Any other group uses one ring over the routes, in the
order of its members, so its bytes count as point-to-point traffic between neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from topoplan import Demand
from topoplan.arrays import ARRAY_EQ, F64, I32, f64

__all__ = ["Traffic", "neighbour_bytes", "traffic"]


@attrs.frozen(kw_only=True)
class Traffic:
    """Bytes per iteration that cross the network.

    Attributes:
        summed: group size -> bytes that its evenly spaced groups sum, over all of them.
        matrix: (n, n) bytes from row to column host, with the rings of all other groups.
    """

    summed: Mapping[int, float]
    matrix: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)

    def ring_bytes(self) -> dict[int, float]:
        """Bytes on rings: each of 2 (g-1) rounds moves every byte of the sum once."""
        return {g: 2 * (g - 1) * total for g, total in self.summed.items()}

    def ring_share(self) -> float:
        """Share of the rings in all bytes; 1 if nothing is sent."""
        rings, pairs = sum(self.ring_bytes().values()), float(self.matrix.sum())
        return rings / (rings + pairs) if rings + pairs > 0 else 1.0


def traffic(demand: Demand | None, n: int) -> Traffic:
    """Sort the demand of ``n`` hosts; None is an empty one."""
    if demand is None:
        return Traffic(summed={}, matrix=np.zeros((n, n)))
    summed: dict[int, float] = {}
    matrix = np.array(demand.matrix)
    for group, total in enumerate(demand.group_bytes.tolist()):
        members = demand.members(group)
        size = len(members)
        if size < 2 or total <= 0:
            continue
        if n % size == 0 and bool((np.diff(members) == n // size).all()):
            summed[size] = summed.get(size, 0.0) + total
        else:
            _add_ring(matrix, members, total)
    return Traffic(summed=summed, matrix=matrix)


def neighbour_bytes(demand: Demand | None, n: int) -> F64:
    """Return (n, n) bytes between hosts where every group, evenly spaced or not, walks one ring in listed order."""
    if demand is None:
        return np.zeros((n, n))
    matrix = np.array(demand.matrix)
    for group, total in enumerate(demand.group_bytes.tolist()):
        if len(demand.members(group)) > 1:
            _add_ring(matrix, demand.members(group), total)
    return matrix


def _add_ring(matrix: F64, members: I32, total: float) -> None:
    size = len(members)
    np.add.at(matrix, (members, np.roll(members, -1)), 2 * (size - 1) / size * total)

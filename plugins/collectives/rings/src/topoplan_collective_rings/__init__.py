"""Collectives on rings: one, one for each device of a host, and along the axes of a torus.

Of n members and a tensor of S bytes a ring passes ``2 (n-1)/n S`` over each of its links in an all-reduce, in
``2 (n-1)`` rounds, and half of both in an all-gather or a reduce-scatter (Patarasuk, Yuan, J. Parallel Distrib. Comput.
69, 2009).  Of q hosts, ``q-1`` latencies between hosts are on the way once round, as NCCL counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    from topoplan.arrays import I64
    from topoplan.model.taskgraph import Collective

__all__ = ["MultiRing", "RingAlgorithm", "Torus", "topoplan_collectives"]

_REDUCING = ("all-reduce", "all-gather", "reduce-scatter")


class RingAlgorithm(CollectiveAlgorithm):
    """One ring in the order of the members, host by host.

    Example:
        >>> from topoplan.model.taskgraph import Collective
        >>> rounds = RingAlgorithm().rounds(Collective.ALL_GATHER, CollectiveGroup((1, 1, 1)))
        >>> rounds.target.tolist(), rounds.repeats.tolist()
        ([1, 2, 0], [2, 2, 2])
    """

    name = "ring"
    collectives = (*_REDUCING, "broadcast")

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Go round once or twice; a broadcast goes from the first member to the last one, in small pieces."""
        import numpy as np

        n = group.n_members
        members = np.arange(n)
        if collective.label == "broadcast":
            return CollectiveRounds(
                chunks=1, source=members[:-1], target=members[1:], chunk=0, step=members[:-1], overlaps=True
            )
        return _on_rings(collective, members[None], group, np.zeros(1, np.int64))


class MultiRing(CollectiveAlgorithm):
    """One ring for each device of a host, each entering hosts at another one: all network interfaces carry data."""

    name = "multi-ring"
    collectives = _REDUCING

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Run as many rings as a host has members, each with its share of the tensor."""
        import numpy as np

        n, each = group.n_members, group.in_each
        host, place = np.divmod(np.arange(n), each)
        # c, c+1, c-1, c+2, ...: a ring leaves a host by the device whose number it enters the next one at (its rail).
        zigzag = (np.arange(each) + 1) // 2 * np.where(np.arange(each) % 2, 1, -1)
        ring = np.arange(each)
        members = host * each + (ring[:, None] + host * zigzag[-1] + zigzag[place]) % each
        return _on_rings(collective, members, group, ring * n)


def _on_rings(collective: Collective, members: I64, group: CollectiveGroup, base: I64) -> CollectiveRounds:
    """Return a collective on rings (r, n) whose pieces begin at chunks (r,)."""
    from topoplan_collective_rounds import Ring, Steps

    hosts = len(group.in_hosts)
    ring = Ring(members, base[:, None], between=hosts - 1 if hosts < group.n_members else None)
    steps = Steps(members.size)
    if collective.label != "all-gather":
        steps.scatter(ring)
    if collective.label != "reduce-scatter":
        steps.gather(ring)
    return steps.rounds(owner=None if collective.label == "all-reduce" else members.ravel())


@attrs.frozen(kw_only=True)
class Torus(CollectiveAlgorithm):
    """Rings along each axis of a grid of members, both ways, on a part of the tensor for each order of the axes.

    Along the axes in turn members scatter sums, and gather them on the way back; with as many orders as axes all links
    carry data all the time (as on TPU pods: Jouppi et al., ISCA 2023; Kumar, Jouppi, 2020).
    """

    name = "torus"
    collectives = _REDUCING

    axes: str = option(
        "", help="sizes of the grid, the last one innermost, e.g. 4x4x4; unset: one for hosts, one inside"
    )

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Scatter along each axis, gather in the opposite order."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        sizes = self._sizes(group)
        n, count = group.n_members, len(sizes)
        grid = np.arange(n).reshape(sizes)
        steps = Steps(2 * count * n)
        owner = np.empty(2 * count * n, dtype=np.int64)
        blocks = [(order, way) for order in range(count) for way in (False, True)]
        rings: list[list[Any]] = []
        for number, (order, backward) in enumerate(blocks):
            axes = [(order + i) % count for i in range(count)]
            rings.append(_along(grid, axes, number * n, backward))
            owner[number * n : (number + 1) * n] = grid.transpose(axes[::-1]).ravel()
        if collective.label != "all-gather":
            for stage in range(count):
                for number, each in enumerate(rings):
                    steps.scatter(each[stage], together=number > 0)
        if collective.label != "reduce-scatter":
            for stage in reversed(range(count)):
                for number, each in enumerate(rings):
                    steps.gather(each[stage], together=number > 0)
        return steps.rounds(overlaps=True, owner=None if collective.label == "all-reduce" else owner)

    def _sizes(self, group: CollectiveGroup) -> tuple[int, ...]:
        n = group.n_members
        if not self.axes:
            sizes = group.axes or (len(group.in_hosts), group.in_each)
            return tuple(size for size in sizes if size > 1)
        try:
            sizes = tuple(int(size) for size in self.axes.split("x"))
            product = 1
            for size in sizes:
                product *= size
        except ValueError:
            raise TopoplanError(f"collective torus: axes {self.axes!r} (expected sizes as in 4x4x4)") from None
        if min(sizes) < 1 or product != n:
            raise TopoplanError(
                f"collective torus: axes {self.axes} have {product} places for {n} members (their product must be {n})"
            )
        return tuple(size for size in sizes if size > 1)


def _along(grid: I64, axes: list[int], base: int, backward: bool) -> list[Any]:
    """Return the rings along each of the axes, in this order, of one block of chunks.

    Chunk ``base + c`` belongs to the member whose places along these axes are the digits of c, the first one lowest.
    """
    import numpy as np

    from topoplan_collective_rounds import Ring

    rings, unit, n = [], 1, grid.size
    places = np.indices(grid.shape)
    label = np.zeros(grid.shape, dtype=np.int64)  # of the axes before
    for axis in axes:
        k = grid.shape[axis]
        members = np.moveaxis(grid, axis, -1).reshape(-1, k)
        lower = np.moveaxis(label, axis, -1).reshape(-1, k)[:, :1]
        rings.append(Ring(members, base + lower, unit, n // (unit * k), unit * k, None, backward))
        label = label + places[axis] * unit
        unit *= k
    return rings


@hookimpl
def topoplan_collectives() -> list[type[CollectiveAlgorithm]]:
    """Register the algorithms."""
    return [RingAlgorithm, MultiRing, Torus]

"""HyperX: switches on a grid, each joined to all others of its row along every axis (Ahn et al., SC 2009).

Of one axis it is a full mesh of switches, of axes of two a hypercube, of two equal axes a flattened butterfly.
Switches are numbered to and fro along the grid, so that each is joined to the next one, and the ring of an all-reduce
in the order of hosts crosses one link from a switch to the next.  Hosts fill them from the left.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["HyperX", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class HyperX(Topology):
    """HyperX: switches on a grid, joined to all others along every axis."""

    name = "hyperx"
    switched = True

    sides: tuple[int, ...] = option(
        (), help="switches along each axis (8-8); two axes as long as a switch has hosts when absent", minimum=1
    )
    hosts: int | None = option(None, help="hosts of a switch; as few as have room when absent", minimum=1, maximum=4096)
    speed: float = option(1.0, help="bandwidth of a link between switches over that of a host", above=0, maximum=1e6)
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Join the switches; links between them are as fast as the host with the most bandwidth, times ``speed``.

        Raises:
            TopoplanError: the switches have no room for the hosts of the cluster.
        """
        from topoplan_graph_fabrics import at_switches, limit_links

        count = context.cluster.n_hosts
        side = next(side for side in range(1, count + 1) if side * side * (self.hosts or side) >= count)
        sides = self.sides or (side, side)
        switches = math.prod(sides)
        if switches > 2**20:
            raise TopoplanError(f"topology hyperx: sides make {switches} switches (at most {2**20})")
        hosts = self.hosts or math.ceil(count / switches)
        if switches * hosts < count:
            room = f"{switches} switches of {hosts} hosts have room for {switches * hosts}, not {count}"
            raise TopoplanError(f"topology hyperx: {room} (use hosts={math.ceil(count / switches)})")
        limit_links(self.name, switches * sum(side - 1 for side in sides) // 2, f"sides {'-'.join(map(str, sides))}")
        return at_switches(
            "hyperx",
            context.cluster,
            np.arange(count) // hosts,
            _pairs(sides),
            n_switches=switches,
            speed=self.speed,
            max_paths=self.paths,
        )


def _pairs(sides: tuple[int, ...]) -> np.ndarray:
    """Return (k, 2) switches that are joined, by their place on the way to and fro."""
    place = np.indices(sides).reshape(len(sides), -1)
    turned = place.copy()
    for axis in range(1, len(sides)):
        way = turned[:axis].sum(axis=0) % 2 == 1  # of a row after an odd number of steps along the axes before it
        turned[axis] = np.where(way, sides[axis] - 1 - place[axis], place[axis])
    number = np.empty(place.shape[1], dtype=np.int64)
    number[np.ravel_multi_index(tuple(turned), sides)] = np.arange(place.shape[1])
    grid = number.reshape(sides)
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for axis, side in enumerate(sides):
        a, b = np.triu_indices(side, 1)
        rows = np.moveaxis(grid, axis, 0).reshape(side, -1)
        pairs.append(np.stack([rows[a].ravel(), rows[b].ravel()], axis=1))
    return np.concatenate(pairs)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return HyperX

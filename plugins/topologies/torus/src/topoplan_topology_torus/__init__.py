"""Tori of any dimensions, twisted ones, and those that optical circuit switches make of cubes.

A torus with sides s1 x s2 x ... joins each host to the next one along every axis, and the last to the first.  Hosts are
numbered row by row: the last axis is the fastest.

*Twisted* (Camarero, Martinez, Beivide, IEEE Trans. Computers 2010; TPU v4, Jouppi et al., ISCA 2023): of sides k and
2k, the wraps of the short axes are shifted by k along every long axis.

*Cubes* (TPU v4): sides are multiples of the edge of a cube, which is a rack.  Links within it are of the rack; those
between cubes, and wraps, pass optical circuit switches.  Where no sides are given these can join the cubes in several
shapes, and twist them: `Torus.wired_for` chooses one for a demand (`topoplan_topology_torus.shapes`).
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Cluster, Fabric, Topology, TopologyContext, hookimpl, option
from topoplan_topology_torus.sides import chosen_sides

__all__ = ["Torus", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Torus(Topology):
    """Torus of any dimensions, twisted or of cubes on request."""

    name = "torus"

    sides: tuple[int, ...] = option(
        (), help="hosts along each axis (4-4-8); as near to a cube as the hosts allow when absent", minimum=1
    )
    dimensions: int | None = option(
        None, help="axes, where sides are not given; half of a host's interfaces when absent", minimum=1, maximum=16
    )
    twisted: bool = option(False, help="of sides k and 2k: wraps of short axes are shifted by k along the long ones")
    cube: int | None = option(
        None, help="edge of a rack whose faces optical circuit switches join (4: TPU v4)", minimum=3, maximum=1024
    )
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Wire the torus; the links of a host share its interfaces evenly.

        Raises:
            TopoplanError: the hosts of the cluster make no such torus.
        """
        cluster = context.cluster
        return self._of(cluster, self._sides(cluster), twisted=self.twisted)

    @property
    def chooses(self) -> bool:
        """Whether optical circuit switches leave the shape to choose: sides are not given."""
        return self.cube is not None and not self.sides

    def wired_for(self, context: TopologyContext) -> Fabric:
        """Wire the shape on which the bytes of ``context.demand`` cross the fewest links; the usual one without it.

        Raises:
            TopoplanError: the hosts of the cluster make no such torus.
        """
        from topoplan_topology_torus.shapes import fewest_crossings, shapes

        cluster, demand = context.cluster, context.demand
        usual = self._sides(cluster), self.twisted
        if demand is None or not self.chooses:
            return self._of(cluster, usual[0], twisted=usual[1])
        assert self.cube is not None
        several = shapes(usual, self.cube, self.dimensions)
        sides, twisted = several[fewest_crossings(demand, [_pairs(*shape, self.cube)[0] for shape in several])]
        return self._of(cluster, sides, twisted=twisted)

    def _sides(self, cluster: Cluster) -> tuple[int, ...]:
        return chosen_sides(
            cluster.n_hosts,
            sides=self.sides,
            dimensions=self.dimensions,
            most_dimensions=max(int(cluster.interfaces.min()) // 2, 1),
            twisted=self.twisted,
            multiple=self.cube or 1,
        )

    def _of(self, cluster: Cluster, sides: tuple[int, ...], *, twisted: bool) -> Fabric:
        from topoplan_graph_fabrics import share_interfaces

        pairs, inside = _pairs(sides, twisted, self.cube)
        fabric = share_interfaces("torus", cluster, pairs, inside=inside, max_paths=self.paths)
        return fabric if self.cube is None else attrs.evolve(fabric, switching="ocs")


def _pairs(sides: tuple[int, ...], twisted: bool, cube: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return (k, 2) hosts that are joined, and (k,) whether they are neighbours in one cube."""
    place = np.indices(sides).reshape(len(sides), -1)
    hosts = np.arange(place.shape[1])
    pairs, inside = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0, dtype=bool)]
    for axis, side in enumerate(sides):
        if side == 1:
            continue
        following = place.copy()
        following[axis] = (place[axis] + 1) % side
        if twisted and side == min(sides):
            wraps = place[axis] == side - 1
            for other_one, length in enumerate(sides):
                if length > side:
                    following[other_one] = (place[other_one] + side * wraps) % length
        pairs.append(np.stack([hosts, np.ravel_multi_index(tuple(following), sides)], axis=1))
        inside.append((place[axis] + 1) % cube != 0 if cube else np.zeros(len(hosts), dtype=bool))
    return np.concatenate(pairs), np.concatenate(inside)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Torus

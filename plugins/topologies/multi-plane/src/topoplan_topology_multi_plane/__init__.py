"""Several planes: a network of switches several times side by side, each with a part of the rate of every interface.

Plane p of P is the network that another topology builds for interfaces with a P-th of their rate.  Each interface is
divided into P lanes, one to each plane, and planes meet in hosts alone.  So the bandwidth of a host, and of any cut, is
that of one network with whole interfaces; switches have ports of a P-th of the rate, and there are P times as many, or
fewer where these have more ports.  A message takes one lane; a group runs rings on all of them.

Data flow: `build` asks the other topology once, and `side_by_side` copies its switches, links and routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option
from topoplan_graph_fabrics import named_topology

__all__ = ["MultiPlane", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class MultiPlane(Topology):
    """A network of switches several times side by side, with a lane of each interface in each plane."""

    name = "multi-plane"
    switched = True
    example: ClassVar[Mapping[str, object]] = {"planes": 2}

    of: str = option("fattree", help="the topology of a plane, its options behind slashes: rail-only/ports=64")
    planes: int = option(2, help="how many, each with an equal part of the rate of an interface", minimum=1, maximum=16)

    @property
    def bundles_interfaces(self) -> bool:
        """Whether those of a plane are."""
        return named_topology(self.of, self.name).bundles_interfaces

    def build(self, context: TopologyContext) -> Fabric:
        """Build a plane for lanes, and put as many side by side.

        Raises:
            TopoplanError: the topology is unknown, follows a demand, or joins hosts without switches.
        """
        from topoplan_topology_multi_plane.copies import side_by_side

        topology = named_topology(self.of, self.name)
        if topology.name == "degraded":
            raise TopoplanError(
                f"topology {self.name}: of=degraded fails in all planes at once (write degraded:of={self.name}/of=.../"
                f"planes={self.planes})"
            )
        cluster = context.cluster
        lanes = attrs.evolve(cluster, interface_bandwidth=cluster.interface_bandwidth / self.planes)
        plane = topology.build(attrs.evolve(context, cluster=lanes))
        if not isinstance(plane, Fabric):
            raise TopoplanError(f"topology {self.name}: of={topology.name} is rebuilt during the iteration")
        hosts = plane.n_hosts
        direct = ((plane.link_src < hosts) & (plane.link_dst < hosts)).nonzero()[0]
        if len(direct):
            ends = f"host {plane.link_src[direct[0]]} and host {plane.link_dst[direct[0]]}"
            raise TopoplanError(
                f"topology {self.name}: of={topology.name} joins {ends} to each other, but planes are networks of "
                "switches (name one whose hosts join switches alone: fattree, bigswitch, rail-optimized)"
            )
        return side_by_side(plane, self.planes)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return MultiPlane

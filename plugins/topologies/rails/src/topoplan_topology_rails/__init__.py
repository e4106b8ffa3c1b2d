"""Rails: a leaf for each network interface of a unit's hosts, and one or two tiers of switches above the leaves.

Hosts come in units (NVIDIA's scalable units of 32).  NIC r of every host of a unit is on leaf r of the unit, so that
GPUs with the same place in their hosts meet at one switch.  Above the leaves are

- *joined* rails (rail-optimized): spines that all leaves join, or, where a spine has fewer ports than there are
  leaves, spines for the leaves of a rail (or of some units), and core switches that join these;
- *separate* rails (rail-only, Wang et al., arXiv 2307.12169): each rail has switches of its own and none reaches
  another one: messages cross rails over NVLink.

Switches have as many ports as ``ports`` says, each as fast as an interface.  A tier has as few switches as have room
for the cables that come up to it; the sources of the counts are NVIDIA's DGX SuperPOD reference architectures.

*Planes*: each interface has a lane to each of several such networks, an equal part of its rate; a message takes one, a
group runs its rings on all (the topology ``multi-plane`` does so with any network of switches).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["RailOnly", "RailOptimized", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class RailOptimized(Topology):
    """Rail-optimized Clos network of two or three tiers: NIC r of each host of a unit on leaf r, spines above."""

    name = "rail-optimized"
    switched = True
    joined: ClassVar[bool] = True

    unit: int | None = option(
        None, help="hosts of a unit; unset: as many as a leaf has ports for beside its uplinks", minimum=1, maximum=4096
    )
    ports: int = option(64, help="ports of a switch, each as fast as an interface", minimum=2, maximum=4096)
    oversubscription: float = option(
        1.0, help="bandwidth to hosts over that of the uplinks of a full leaf", minimum=0.01, maximum=1000.0
    )
    core_oversubscription: float = option(
        1.0, help="bandwidth to leaves over that of the uplinks of a full spine", minimum=0.01, maximum=1000.0
    )
    pods: Literal["rail", "units"] = option(
        "rail",
        help="leaves that share spines where there are three tiers: those of a rail (of some, where a core has too few "
        "ports), or those of some units",
    )
    planes: int = option(
        1, help="networks side by side, to each of which an interface has a lane", minimum=1, maximum=16
    )
    paths: int = option(32, help="number of equal-cost paths of a plane for a pair of NICs", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Wire the network.

        Raises:
            TopoplanError: a rail has no NIC in some host, or switches have too few ports.
        """
        import numpy as np

        from topoplan_topology_rails.wiring import Clos, wire

        cluster = context.cluster
        rails = int(cluster.interfaces.max())
        if len(few := np.flatnonzero(cluster.interfaces < rails)):
            host, count = int(few[0]), int(cluster.interfaces[few[0]])
            raise TopoplanError(
                f"topology {self.name}: rail {count} has no NIC in host {host}, which has {count} interfaces of "
                f"{rails} (hosts need one for each rail; degree={count} makes as many rails)"
            )
        clos = Clos(
            hosts=cluster.n_hosts,
            rails=rails,
            unit=self.unit,
            ports=self.ports,
            joined=self.joined,
            oversubscription=self.oversubscription,
            core_oversubscription=self.core_oversubscription,
            by_rail=self.pods == "rail",
        )
        return wire(clos, cluster, self.planes, self.paths)


@attrs.frozen(kw_only=True)
class RailOnly(RailOptimized):
    """Rail-only network: each rail has switches of its own, and messages cross rails over NVLink."""

    name = "rail-only"
    joined = False


@hookimpl
def topoplan_topologies() -> list[type[Topology]]:
    """Register the topologies."""
    return [RailOptimized, RailOnly]

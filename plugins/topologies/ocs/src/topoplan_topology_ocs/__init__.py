"""An optical circuit switch: the fabric is rebuilt between the phases of an iteration, with a delay each time.

All interfaces of the hosts are attached to the switch, which joins them in pairs.  Hosts forward traffic of other
hosts.  In the forward and the backward pass the links follow point-to-point traffic; afterwards all interfaces form
rings for all-reduces.  Phases with equal wiring need no rebuild.  The two passes of a lowered model always have equal
wiring, because gradients return over the same two-way links as activations.

The default delay is typical of commercial optical circuit switches, and TopoOpt's comparison assumes it (Wang et al.,
NSDI 2023).

Data flow: `phases` wires each phase with the construction of the topology ``topoopt``.  `direct` adds the one kind of
wiring that this construction lacks, direct links alone.  `choice` compares the wirings of a phase.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan import Fabric, ReconfigurableFabric, Topology, TopologyContext, hookimpl, option

__all__ = ["Ocs", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Ocs(Topology):
    """Optical circuit switch, rebuilt between forward, backward and all-reduces, with a delay."""

    name = "ocs"
    follows_demand = True
    rebuilds = True

    delay_ms: float = option(10.0, help="a rebuild, during which nothing runs", unit="ms", minimum=0, maximum=1e9)
    paths: int = option(
        4, help="number of equal-cost paths for point-to-point traffic of a pair", minimum=1, maximum=65_536
    )

    def build(self, context: TopologyContext) -> ReconfigurableFabric:
        """Wire every phase for its part of ``context.demand``, or with rings over all hosts where there is none."""
        from topoplan_topology_ocs.phases import phases

        return phases(context.cluster, context.demand, self.delay_ms * 1e-3, self.paths, context.rng)

    def static_fabrics(self, context: TopologyContext) -> Sequence[Fabric]:
        """Wire for all of the demand at once, with every split of the interfaces between rings and direct links.

        A rebuilt fabric is compared with these (`topoplan_engine.simulation.reconfiguration.HoldsStatic`).
        """
        from topoplan_topology_ocs.phases import throughout

        return throughout(context.cluster, context.demand, self.paths, context.rng)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Ocs

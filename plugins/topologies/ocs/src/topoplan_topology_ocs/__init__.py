"""An optical circuit switch: the fabric is rebuilt between the phases of an iteration, with a delay each time.

Every host has its interfaces on the switch, which joins them in pairs; hosts forward traffic that is not their own.
In the forward and the backward pass the links follow point-to-point traffic, afterwards they are rings for
all-reduces, with all interfaces.  Phases whose wires are the same need no rebuild: the two passes of a lowered
model always have the same, since gradients go back the way that activations came, over links that go both ways.

The default delay is what commercial optical circuit switches take, and TopoOpt's comparison with one assumes (Wang
et al., NSDI 2023).

How data passes through: `phases` wires each phase with the construction of the ``topoopt`` topology; `direct` is the
one kind of wiring that it lacks, direct links alone; `choice` compares wirings of a phase.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan import Fabric, Topology, TopologyContext, hookimpl, option

__all__ = ["Ocs", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Ocs(Topology):
    """Optical circuit switch, rebuilt between forward, backward and all-reduces, with a delay."""

    name = "ocs"
    follows_demand = True
    switching = "ocs"
    rebuilds = True

    delay_ms: float = option(10.0, help="a rebuild, during which nothing runs", unit="ms", minimum=0, maximum=1e9)
    paths: int = option(4, help="equal-cost paths kept for point-to-point traffic of a pair", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Wire every phase for its part of ``context.demand``, or with rings over all hosts where there is none."""
        from topoplan_topology_ocs.phases import phases

        wired = phases(context.cluster, context.demand, self.delay_ms * 1e-3, self.paths, context.rng)
        return Fabric.from_phases(wired)

    def static(self, context: TopologyContext) -> Sequence[Fabric]:
        """Wire for all of the demand at once, with every split of the interfaces between rings and direct links."""
        from topoplan_topology_ocs.phases import throughout

        return throughout(context.cluster, context.demand, self.paths, context.rng)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Ocs

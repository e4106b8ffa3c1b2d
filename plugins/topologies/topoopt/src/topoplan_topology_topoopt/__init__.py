"""TopoOpt's fabric: hosts wired through a patch panel or optical switch, once per job, for its demand.

Any graph that keeps every host within its interfaces can be wired; hosts forward traffic that is not their
own.  Source: Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for
Distributed Training Jobs", NSDI 2023, and FlexNet, its released simulator.

The fabric is built by `topoplan_directconnect`, which the ``totientperm`` searcher uses while it searches.
"""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import Fabric, Topology, TopologyContext, hookimpl, option

__all__ = ["TopoOpt", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class TopoOpt(Topology):
    """Patch panel wired for the demand: totient rings and matchings (TopoOpt, NSDI'23)."""

    name = "topoopt"
    follows_demand = True

    rules: Literal["paper", "released", "greedy"] = option(
        "paper", help="as published; as FlexNet does it, all to the rings of one group size; or heaviest demands first"
    )
    paths: int = option(4, help="number of paths for point-to-point traffic of a pair", minimum=1, maximum=65_536)
    routes: Literal["even", "balanced"] = option(
        "even", help="equal shares of the shortest paths; or shares by load, over paths of one link more, too"
    )

    def build(self, context: TopologyContext) -> Fabric:
        """Wire the cluster for ``context.demand``, or with rings over all hosts where there is none.

        Raises:
            TopoplanError: the rules ``released`` cannot wire the cluster (odd or unequal numbers of interfaces).
        """
        from topoplan_directconnect.construct import construct, rebalanced

        fabric = construct(context.cluster, context.demand, rules=self.rules, paths=self.paths, rng=context.rng)
        fabric = attrs.evolve(fabric, switching="patch-panel")
        return fabric if self.routes == "even" or context.demand is None else rebalanced(fabric, context.demand)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return TopoOpt

"""A link between any two hosts: what direct connections could do at most.

One link of one interface's bandwidth for every ordered pair of hosts, however few interfaces they have.
Between hosts with interfaces of different speed the slower one decides.
"""

from __future__ import annotations

import attrs

from topoplan import Fabric, Topology, TopologyContext, hookimpl

__all__ = ["FullyConnectedOptions", "build"]


@attrs.frozen(kw_only=True)
class FullyConnectedOptions:
    """No options."""


def build(options: FullyConnectedOptions, context: TopologyContext) -> Fabric:
    """Join every host to every other one."""
    cluster = context.cluster
    speed = cluster.interface_bandwidth.tolist()
    pairs = [(a, b) for a in range(cluster.n_hosts) for b in range(cluster.n_hosts) if a != b]
    return Fabric.from_links(
        name="fully-connected",
        n_hosts=cluster.n_hosts,
        links=pairs,
        bandwidth=[min(speed[a], speed[b]) for a, b in pairs],
        latency=cluster.latency,
    )


@hookimpl
def topoplan_topologies() -> list[Topology]:
    """Register the topology."""
    return [
        Topology(
            name="fully-connected",
            summary="one link for every ordered pair of hosts, not limited by interfaces",
            options=FullyConnectedOptions,
            build=build,
        )
    ]

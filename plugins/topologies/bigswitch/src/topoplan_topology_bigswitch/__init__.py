"""One ideal switch: an upper bound for switched networks.

Every host has one link of one interface each way to a single non-blocking switch, so that messages meet
only at a host's own up- and down-link.  Further interfaces stay unused.  FlexNet calls this ``fattree``.
"""

from __future__ import annotations

import attrs

from topoplan import Fabric, Topology, TopologyContext, hookimpl

__all__ = ["BigSwitchOptions", "build"]


@attrs.frozen(kw_only=True)
class BigSwitchOptions:
    """No options."""


def build(options: BigSwitchOptions, context: TopologyContext) -> Fabric:
    """Join every host to the switch, node ``n_hosts``, at the bandwidth of one of its interfaces."""
    cluster = context.cluster
    n = cluster.n_hosts
    bandwidth = cluster.interface_bandwidth.tolist()
    return Fabric.from_links(
        name="bigswitch",
        n_hosts=n,
        n_switches=1,
        links=[(host, n) for host in range(n)] + [(n, host) for host in range(n)],
        bandwidth=bandwidth + bandwidth,
        latency=cluster.latency,
    )


@hookimpl
def topoplan_topologies() -> list[Topology]:
    """Register the topology."""
    return [
        Topology(
            name="bigswitch",
            summary="one non-blocking switch, one link for each host (FlexNet's fattree)",
            options=BigSwitchOptions,
            build=build,
            switching="ideal",
        )
    ]

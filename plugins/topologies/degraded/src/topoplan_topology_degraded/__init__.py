"""Any topology without what failed: cables, network interfaces, hosts and switches, by name or at random.

Data flow: ``of`` names the topology, with its options behind slashes; it builds its fabric for the cluster, and for the
hosts that failed on top of it; `without` takes away what failed.  Paths and rings are those of what is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import attrs

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option
from topoplan.errors import shown
from topoplan_graph_fabrics import named_topology

if TYPE_CHECKING:
    from topoplan import Cluster

__all__ = ["Degraded", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Degraded(Topology):
    """Another topology without cables, interfaces, hosts or switches that failed, by name or at random."""

    name = "degraded"
    switched = True
    example: ClassVar[Mapping[str, object]] = {"links": "1", "nics": "1"}

    of: str = option("fattree", help="the topology, its options behind slashes: rails/unit=32/ports=64")
    links: str = option("0", help="cables between switches (or hosts, where these are wired) that fail: 3, or 2%")
    nics: str = option("0", help="network interfaces that fail, with their cables: 3, or 2%")
    hosts: int = option(
        0, help="hosts beside those of the cluster that the network has, and that failed", minimum=0, maximum=65_536
    )
    failed: str = option(
        "", help="nodes and cables that fail, by name, with + between: spine 1+host 0~leaf 0 rail 2 (a cable)"
    )
    seed: int = option(0, help="draws what fails", minimum=0, maximum=2**31 - 1)

    def build(self, context: TopologyContext) -> Fabric:
        """Build the topology, and take away what failed.

        Raises:
            TopoplanError: the topology is unknown or follows a demand, or there is not so much that could fail.
        """
        import numpy as np

        from topoplan_topology_degraded.failures import Failures, without

        topology = named_topology(self.of, self.name)
        larger = attrs.evolve(context, cluster=_with_hosts(context.cluster, self.hosts))
        fabric = topology.build(larger)
        if not isinstance(fabric, Fabric):
            raise TopoplanError(f"topology degraded: of={topology.name} is rebuilt during the iteration (take another)")
        failures = Failures(
            links=_count(self.links, "links"),
            nics=_count(self.nics, "nics"),
            hosts=self.hosts,
            names=tuple(name.strip() for name in self.failed.split("+") if name.strip()),
        )
        return without(fabric, failures, np.random.default_rng(self.seed))


def _with_hosts(cluster: Cluster, more: int) -> Cluster:
    """Return a cluster with so many more hosts, like its last one."""
    import numpy as np

    if not more:
        return cluster
    last = cluster.device_host == cluster.n_hosts - 1
    devices = np.concatenate([np.arange(cluster.n_devices), np.tile(np.flatnonzero(last), more)])
    hosts = np.concatenate([np.arange(cluster.n_hosts), np.full(more, cluster.n_hosts - 1)])
    new = np.repeat(cluster.n_hosts + np.arange(more), int(last.sum()))
    return attrs.evolve(
        cluster,
        device_host=np.concatenate([cluster.device_host, new]),
        device_preset=tuple(cluster.device_preset[device] for device in devices),
        device_speed=cluster.device_speed[devices],
        device_memory=cluster.device_memory[devices],
        inside_bandwidth=cluster.inside_bandwidth[hosts],
        interfaces=cluster.interfaces[hosts],
        interface_bandwidth=cluster.interface_bandwidth[hosts],
    )


def _count(text: str, what: str) -> float | int:
    """Return a number, or a share below 1 for a percentage."""
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return int(text)
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%", text.strip())
    if match is not None and float(match[1]) <= 100:
        return float(match[1]) / 100
    raise TopoplanError(f"topology degraded: {what}: {shown(text)} is no number and no percentage (3, or 2%)")


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Degraded

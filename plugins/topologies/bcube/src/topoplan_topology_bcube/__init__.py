"""BCube: hosts joined to a switch at each of several levels (Guo et al., SIGCOMM 2009).

A host is a number of so many digits as there are levels, each below the ports of a switch.  At level l it joins the
switch of all hosts that differ from it in digit l alone.  Hosts pass on what is for others.  Hosts fill the cube from
the left: the way to host 0 leads over smaller numbers, so any number of hosts is connected.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["BCube", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class BCube(Topology):
    """BCube: hosts with a switch at each level, which pass on what is for others."""

    name = "bcube"

    ports: int | None = option(
        None, help="hosts that a switch joins; as few as have room when absent", minimum=2, maximum=4096
    )
    levels: int | None = option(
        None, help="switches that a host joins, one a level; its interfaces when absent", minimum=1, maximum=16
    )
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Wire the cube; the links of a host share its interfaces evenly.

        Raises:
            TopoplanError: the cube has no room for the hosts of the cluster, or has very many switches.
        """
        from topoplan_graph_fabrics import share_interfaces

        hosts = context.cluster.n_hosts
        levels = self.levels or min(int(context.cluster.interfaces.min()), max((hosts - 1).bit_length(), 1), 16)
        fitting = next(ports for ports in range(2, hosts + 2) if ports**levels >= hosts)
        ports = self.ports or fitting
        if ports**levels < hosts:
            room = f"{ports} ports and {levels} levels have room for {ports**levels} hosts, not {hosts}"
            raise TopoplanError(f"topology bcube: {room} (use ports={fitting})")
        if levels * ports ** (levels - 1) > 2**20:
            switches = f"ports={ports} and levels={levels} are more than {2**20} switches"
            raise TopoplanError(f"topology bcube: {switches} (ports={fitting} have room for {hosts} hosts)")
        host = np.arange(hosts)
        pairs, per_level = [], ports ** (levels - 1)
        for level in range(levels):
            without_digit = host // ports ** (level + 1) * ports**level + host % ports**level
            pairs.append(np.stack([host, hosts + level * per_level + without_digit], axis=1))
        return share_interfaces(
            "bcube", context.cluster, np.concatenate(pairs), n_switches=levels * per_level, max_paths=self.paths
        )


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return BCube

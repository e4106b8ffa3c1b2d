"""Topology ``file``: a network that you bring along, in a file of another tool.

Formats and their errors are `topoplan_network_files`'.  What the file does not say of its links, the cluster does:
the bandwidth of an interface for each cable, and the latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["File", "topoplan_topologies"]

_EXAMPLE = Path(__file__).with_name("example.json")


@attrs.frozen(kw_only=True)
class File(Topology):
    """A network from a file: node-link JSON, GraphML, or InfraGraph YAML."""

    name = "file"
    rate_option: ClassVar[str | None] = "speed"
    example: ClassVar[Mapping[str, object]] = {"path": str(_EXAMPLE)}

    path: str = option("", help="the file; its suffix is .json, .graphml, .yaml or .yml")
    paths: int = option(8, help="equal shortest paths of a pair of hosts, where the file does not say", minimum=1)
    speed: float = option(1.0, help="factor on the rates of the file; not of links inside hosts", above=0, maximum=1e9)

    def build(self, context: TopologyContext) -> Fabric:
        """Read the file.

        Raises:
            TopoplanError: it is not right, or has other hosts than the cluster.
        """
        from topoplan_engine.files import read_file
        from topoplan_network_files import Defaults, read_network

        if not self.path:
            raise TopoplanError("topology file: path is missing (write -t file:path=network.json)")
        cluster = context.cluster
        interface = float(cluster.interface_bandwidth.min())  # links without a rate have it, whatever the factor
        defaults = Defaults(bandwidth=interface / self.speed, latency=cluster.latency, max_paths=self.paths)
        try:
            fabric = read_network(read_file(Path(self.path)), self.path, defaults)
        except TopoplanError as error:
            raise TopoplanError(f"topology file: path: {error}") from None
        if fabric.n_hosts != cluster.n_hosts:
            hosts = fabric.n_hosts
            right = f"a network of {cluster.n_hosts}, or a plan for {hosts} hosts: optimize --servers {hosts}"
            have = f"{hosts} hosts, but the cluster has {cluster.n_hosts}"
            raise TopoplanError(f"topology file: path: {self.path}: {have} ({right})")
        return fabric if self.speed == 1 else _faster(fabric, self.speed)

    @classmethod
    def example_cluster(cls) -> Cluster:
        """Return a cluster of the four hosts of the example."""
        return Cluster.uniform(n_hosts=4, interfaces=2)


def _faster(fabric: Fabric, factor: float) -> Fabric:
    """Return a fabric whose links are so many times as fast, but for those inside hosts."""
    factors = np.where(fabric.link_kind == LinkKind.INSIDE, 1.0, factor)
    return attrs.evolve(fabric, link_bandwidth=fabric.link_bandwidth * factors)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return File

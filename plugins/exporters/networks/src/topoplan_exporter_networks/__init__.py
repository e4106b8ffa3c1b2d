"""Exporters of networks: the fabric of a plan for other tools, and a list of its cables.

Formats are `topoplan_network_files`'.  ``-t file:path=…`` reads what ``node-link``, ``graphml`` and ``infragraph``
write.
"""

from __future__ import annotations

from topoplan import Cluster, Exporter, Fabric, Plan, Topology, TopoplanError, hookimpl

__all__ = ["Cabling", "CablingMarkdown", "GraphMl", "InfraGraph", "NetworkDot", "NodeLink", "Ns3", "topoplan_exporters"]


class _Network(Exporter):
    """What exporters of networks share: they need a fabric that stays."""

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Return why no plan on this topology can be written; empty if it depends on the plan."""
        return _REBUILT if topology is not None and topology.rebuilds else ""


_REBUILT = "the network is rebuilt during the iteration (plan on a fabric that stays, e.g. --topology topoopt)"


def _fabric(plan: Plan, exporter: str) -> Fabric:
    if not isinstance(plan.fabric, Fabric):
        raise TopoplanError(f"{exporter}: {_REBUILT}")
    return plan.fabric


class NodeLink(_Network):
    """Network as node-link JSON of networkx."""

    name = "node-link"
    suffix = ".network.json"

    def write(self, plan: Plan) -> bytes:
        """Write the fabric of a plan, with all that belongs to it."""
        from topoplan_network_files.graphs import write_node_link

        return write_node_link(_fabric(plan, self.name))


class GraphMl(_Network):
    """Network as GraphML, for Gephi, yEd and Cytoscape."""

    name = "graphml"
    suffix = ".graphml"

    def write(self, plan: Plan) -> bytes:
        """Write the fabric of a plan, with all that belongs to it."""
        from topoplan_network_files.graphs import write_graphml

        return write_graphml(_fabric(plan, self.name))


class InfraGraph(_Network):
    """Network as YAML of InfraGraph 3.1.0."""

    name = "infragraph"
    suffix = ".yaml"

    def write(self, plan: Plan) -> bytes:
        """Write the fabric of a plan.

        Raises:
            TopoplanError: a link has none back of the same rate, latency and count.
        """
        from topoplan_network_files.infragraph import write

        return write(_fabric(plan, self.name), plan.cluster)


class Ns3(_Network):
    """Network as the topology file of HPCC's ns-3 simulator."""

    name = "ns3"
    suffix = ".ns3.txt"

    def write(self, plan: Plan) -> bytes:
        """Write the fabric of a plan.

        Raises:
            TopoplanError: a link has none back of the same rate, latency and count.
        """
        from topoplan_network_files.links import write_ns3

        return write_ns3(_fabric(plan, self.name))


class NetworkDot(_Network):
    """Network for Graphviz."""

    name = "network-dot"
    suffix = ".network.dot"

    def write(self, plan: Plan) -> bytes:
        """Write the fabric of a plan."""
        from topoplan_network_files.links import write_dot

        return write_dot(_fabric(plan, self.name))


class Cabling(_Network):
    """List of cables as CSV: host and interface, ports of the patch panel, host and interface."""

    name = "cabling"
    suffix = ".cables.csv"

    def write(self, plan: Plan) -> bytes:
        """Write the cables of a plan, as a table for spreadsheets.

        Raises:
            TopoplanError: links are shares of interfaces, or a host has fewer interfaces than links.
        """
        from topoplan_network_files.cabling import as_csv, connections

        return as_csv(connections(_fabric(plan, self.name), plan.cluster))


class CablingMarkdown(_Network):
    """List of cables as a table of Markdown."""

    name = "cabling-markdown"
    suffix = ".cables.md"

    def write(self, plan: Plan) -> bytes:
        """Write the cables of a plan, as a table for pages.

        Raises:
            TopoplanError: links are shares of interfaces, or a host has fewer interfaces than links.
        """
        from topoplan_network_files.cabling import as_markdown, connections

        return as_markdown(connections(_fabric(plan, self.name), plan.cluster))


@hookimpl
def topoplan_exporters() -> list[type[Exporter]]:
    """Register the exporters."""
    return [NodeLink, GraphMl, InfraGraph, Ns3, NetworkDot, Cabling, CablingMarkdown]

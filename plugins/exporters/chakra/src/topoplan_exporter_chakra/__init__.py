"""Exporters ``chakra`` and ``astra-sim``: execution traces of MLCommons Chakra, one for each rank.

Write: plan -> nodes of each rank (`ranks`) -> bytes of messages (`schema`, `wire`) -> an archive of all files
(`topoplan_engine.folders`); `astra` adds what ASTRA-sim reads beside traces.  Read: files -> nodes (`schema`), then
tasks of our own traces (`own`) or of those of other programs (`foreign`), and the plan around them.  `extras` holds
what a plan has and a trace has not.
"""

from __future__ import annotations

from topoplan import Cluster, Exporter, Plan, Topology, hookimpl

__all__ = ["AstraSim", "Chakra", "topoplan_exporters"]


def _refusal(topology: Topology | None) -> str:
    if topology is None or not topology.rebuilds:
        return ""
    return (
        f"topology {topology.name!r} is rebuilt between the phases of an iteration, which traces cannot say (plan on a "
        "fabric that stays, e.g. --topology topoopt)"
    )


class Chakra(Exporter):
    """Execution traces of MLCommons Chakra, one for each device (and back)."""

    name = "chakra"
    suffix = ".et.tar"

    def write(self, plan: Plan) -> bytes:
        """Write a trace for every device and the process groups, as an archive; durations in microseconds.

        Raises:
            TopoplanError: the fabric is rebuilt during the iteration, or the tasks wait for each other.
        """
        from topoplan_engine.folders import archive_of
        from topoplan_engine.simulation.written_out import plan_written_out
        from topoplan_exporter_chakra.ranks import MICROSECOND, traces

        return archive_of(traces(plan_written_out(plan), MICROSECOND).files())

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Return why no plan on this topology can be written; empty if it depends on the plan."""
        return _refusal(topology)

    def read(self, data: bytes, name: str) -> Plan:
        """Read the traces of all ranks, ours or those of another program.

        Raises:
            TopoplanError: a trace is damaged or missing, or they do not fit each other; the message names file and
                node.
        """
        from topoplan_exporter_chakra.reading import plan_of

        return plan_of(data, name)


class AstraSim(Exporter):
    """Inputs of ASTRA-sim: traces, process groups, system, memory and network."""

    name = "astra-sim"
    suffix = ".astra-sim.tar"

    def write(self, plan: Plan) -> bytes:
        """Write all input files, as an archive; one nanosecond of the plan is one microsecond of the traces.

        Raises:
            TopoplanError: the fabric is rebuilt during the iteration, the tasks wait for each other, or devices compute
                slower beside messages.
        """
        from topoplan_engine.folders import archive_of
        from topoplan_engine.simulation.columns import check_not_slowed
        from topoplan_engine.simulation.written_out import plan_written_out
        from topoplan_exporter_chakra.astra import input_files

        check_not_slowed(plan.taskgraph, "astra-sim")
        return archive_of(input_files(plan_written_out(plan)))

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Return why no plan on this topology can be written; empty if it depends on the plan."""
        return _refusal(topology)


@hookimpl
def topoplan_exporters() -> list[type[Exporter]]:
    """Register the exporters."""
    return [Chakra, AstraSim]

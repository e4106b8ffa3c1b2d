"""Exporter ``flatbuffer``: task graphs in the format that FlexNet writes and the packet simulator FlexNetPacket reads.

Write: plan -> file columns (`tables`; `unroll` expands collectives that the format lacks) -> bytes (`encode`).  Read:
bytes -> file columns (`wire`, with checks of all offsets) -> plan (`importer`).  `schema` describes the file for both
directions, and ``taskgraph.fbs`` for other tools.  Fields of a file without a counterpart in a plan are stored in
``TaskGraph.foreign``, so that reading and writing a file loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Cluster, Exporter, OperatorGraph, Plan, Strategy, Topology, TopoplanError, hookimpl

if TYPE_CHECKING:
    from topoplan import Problem, State
    from topoplan.model.reconfigurable import AnyFabric

__all__ = ["Flatbuffer", "topoplan_exporters"]


class Flatbuffer(Exporter):
    """Task graph for FlexNetPacket, as FlexNet writes it (and back)."""

    name = "flatbuffer"
    suffix = ".fbuf"
    runs_as = "fluid:transport=flexnetpacket"

    def write(self, plan: Plan) -> bytes:
        """Write a plan; see `topoplan_exporter_flatbuffer.tables.tables_of`."""
        from topoplan_engine.simulation.columns import check_not_slowed
        from topoplan_engine.simulation.written_out import plan_written_out
        from topoplan_exporter_flatbuffer.encode import encode
        from topoplan_exporter_flatbuffer.tables import tables_of

        check_not_slowed(plan.taskgraph, "flatbuffer")
        return encode(tables_of(plan_written_out(plan)))

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Return why no plan on this cluster and topology can be written; empty if it depends on the plan."""
        if cluster.n_devices != cluster.n_hosts:
            return (
                f"the cluster has {cluster.n_devices / cluster.n_hosts:g} devices per host, but FlexNetPacket knows "
                "one GPU per host (plan with --gpus-per-server 1, and --gpus-per-device for the GPUs that share a host)"
            )
        if topology is not None and topology.rebuilds:
            return (
                f"topology {topology.name!r} is rebuilt between the phases of an iteration, which the format cannot "
                "say (plan on a fabric that stays, e.g. --topology topoopt)"
            )
        return ""

    def refuses_problem(self, problem: Problem, fabric: AnyFabric | None) -> str:
        """Return why no plan of this model, or on this fabric, can be written; empty if it depends on the plan."""
        from topoplan_exporter_flatbuffer.foreseen import why_never_written

        return why_never_written(problem, fabric)

    def doubts(self, problem: Problem, start: State) -> str:
        """Return why the plan at the start would be too large a file; empty if it would not."""
        from topoplan_exporter_flatbuffer.foreseen import why_too_large

        return why_too_large(problem, start)

    def read(self, data: bytes, name: str) -> Plan:
        """Read a task graph file; ``name`` is for messages.

        Raises:
            TopoplanError: the file is damaged or inconsistent; the message names the field.
        """
        from topoplan_exporter_flatbuffer.importer import plan_of
        from topoplan_exporter_flatbuffer.wire import decode

        columns = decode(data, name)
        try:
            return plan_of(columns, name, len(data))
        except TopoplanError as error:  # from a cluster or a fabric, whose messages lack the file
            raise error if str(error).startswith(f"{name}: ") else TopoplanError(f"{name}: {error}") from None

    def read_strategy(self, data: bytes, name: str, graph: OperatorGraph) -> Strategy:
        """Recover the strategy that a task graph of ``graph`` encodes.

        Raises:
            TopoplanError: the file is damaged, or was not made from this model.
        """
        from topoplan_exporter_flatbuffer.recover import recover_strategy

        return recover_strategy(self.read(data, name).taskgraph, name, graph)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Flatbuffer

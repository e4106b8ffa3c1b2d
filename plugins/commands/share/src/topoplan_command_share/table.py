"""Results as a table, and which networks do not cost what they should."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.results import LoadResult
from topoplan_engine.network.building import used_interfaces
from topoplan_engine.reporting.tables import Column, RowTable
from topoplan_studies.notes import unequal
from topoplan_studies.tables import milliseconds

__all__ = ["cost_notes", "share_table"]


def share_table(results: Sequence[LoadResult], networks: Sequence[NetworkPlan]) -> RowTable[LoadResult]:
    """Return a row for each network and load."""
    plans = {network.name: network for network in networks}

    def name(result: LoadResult) -> str:
        return result.network + ("" if plans[result.network].fits else " (DOES NOT FIT)")

    return RowTable(
        [
            Column("network", name, names_rows=True),
            Column("Gbps a host", lambda result: _links(plans[result.network]), said_once=True),
            Column("load", lambda result: f"{result.load} %", names_rows=True),
            Column("jobs", lambda result: str(result.jobs)),
            Column("mean", lambda result: milliseconds(result.mean)),
            Column("p99", lambda result: milliseconds(result.p99)),
            Column("max", lambda result: milliseconds(result.most)),
            Column("slowdown", lambda result: f"{result.slowdown:.2f}x"),
            Column("worst", lambda result: f"{result.worst:.2f}x"),
        ],
        results,
    )


def _links(plan: NetworkPlan) -> str:
    """Return what a host has and the network uses of it: ``4 x 25``, or ``1 of 4 x 25``."""
    cluster = plan.cluster
    used = int((cluster.interfaces if plan.fabric is None else used_interfaces(plan.fabric, cluster)).max())
    share = f"{used} of " if used < cluster.interfaces.min() else ""
    counts, rates = cluster.interfaces, cluster.interface_bandwidth * 8e-9
    count = "..".join(dict.fromkeys([str(counts.min()), str(counts.max())]))
    return f"{share}{count} x " + "..".join(dict.fromkeys([f"{rates.min():.4g}", f"{rates.max():.4g}"]))


def cost_notes(networks: Sequence[NetworkPlan]) -> list[str]:
    """Return a line for each network that does not cost what it should."""
    return unequal(
        (network.name, network.target, network.target.planned) for network in networks if network.target is not None
    )

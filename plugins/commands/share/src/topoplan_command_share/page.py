"""Rows as text, and a shared cluster as a section of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan.model.interfaces import used_interfaces
from topoplan_command_share.claims import verdicts
from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.rows import Row
from topoplan_command_share.share import Share
from topoplan_studies.notes import unequal
from topoplan_studies.tables import milliseconds

__all__ = ["HEADERS", "cells_of", "cost_notes", "section"]

HEADERS = ("network", "Gbps a host", "load", "jobs", "mean", "p99", "max", "slowdown", "worst")


def cells_of(row: Row, networks: Sequence[NetworkPlan]) -> list[str]:
    """Return a row as text, under `HEADERS`."""
    plan = next(network for network in networks if network.name == row.network)
    cluster = plan.cluster
    used = int((cluster.interfaces if plan.fabric is None else used_interfaces(plan.fabric, cluster)).max())
    taken = f"{used} of " if used < cluster.interfaces.min() else ""
    return [
        row.network + ("" if plan.fits else " (DOES NOT FIT)"),
        f"{taken}{cluster.interfaces.min()} x {cluster.interface_bandwidth.min() * 8e-9:.4g}",
        f"{row.load} %",
        str(row.jobs),
        milliseconds(row.mean),
        milliseconds(row.p99),
        milliseconds(row.most),
        f"{row.slowdown:.2f}x",
        f"{row.worst:.2f}x",
    ]


def cost_notes(networks: Sequence[NetworkPlan]) -> list[str]:
    """Return a line for each network that does not cost what it should."""
    return unequal([(one.name, one.target, one.target.planned) for one in networks if one.target is not None])


def section(
    share: Share, networks: Sequence[NetworkPlan], rows: Sequence[Row], *, told: str, command: str, picture: str
) -> str:
    """Return the section.

    Args:
        share, networks, rows: what was simulated, and what came of it.
        told: where times of operators and prices come from.
        command: that repeats it.
        picture: path of the plot, as seen from the page.
    """
    study, options = share.study, share.options
    mix = ", ".join(
        f"{model.name} ({job.servers} servers{'' if job.weight == 1 else f', weight {job.weight:g}'})"
        for model, job in zip(study.models, share.jobs, strict=True)
    )
    apart = [network.name for network in networks if network.fabric is None]
    alone = [[network.name, *(milliseconds(plan.alone) for plan in network.jobs)] for network in networks]
    parts = [
        f"## {study.title}\n",
        f"    {command}\n",
        *([f"Repeats: {study.source}.\n"] if study.source else []),
        f"{study.cluster.servers} servers; jobs: {mix}. {options.trials} draws of jobs and "
        f"{'random' if options.placement == 'random' else 'contiguous'} servers, the same for all networks and, as far "
        f"as they fit, for all loads. One strategy for each model and network, found alone with {study.budget} "
        "candidates. Times are means over eight draws of equal paths, where there are any. Slowdown is over the same "
        f"job alone on the network. {told}\n",
        *(
            [f"Each job has a partition of its own on {', '.join(apart)}; elsewhere jobs share links.\n"]
            if apart
            else []
        ),
        *(f"{note[:1].upper()}{note[1:]}.\n" for note in cost_notes(networks)),
        f"![{study.title}]({picture})\n",
        *(f"**{verdict.claim.says}**: {verdict}\n" for verdict in verdicts(study.claims, rows)),
        _markdown(HEADERS, [cells_of(row, networks) for row in rows]) + "\n",
        "Alone:\n",
        _markdown(["network", *(model.name for model in study.models)], alone) + "\n",
    ]
    return "\n".join(parts)


def _markdown(titles: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join('---' for _ in titles)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table)])

"""A shared cluster as a section of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from topoplan.errors import printable
from topoplan_command_share.hypotheses import load_tests
from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.results import LoadResult
from topoplan_command_share.shared_cluster import SharedCluster
from topoplan_command_share.table import cost_notes, share_table
from topoplan_engine.reporting.tables import markdown_table, markdown_text
from topoplan_studies.tables import milliseconds

__all__ = ["section"]


def section(
    shared: SharedCluster,
    networks: Sequence[NetworkPlan],
    results: Sequence[LoadResult],
    *,
    premises: str,
    command: str,
    picture: str,
) -> str:
    """Return the section.

    Args:
        shared, networks, results: what was simulated, and what came of it.
        premises: where times of operators and prices come from.
        command: that repeats it.
        picture: path of the plot, as seen from the page.
    """
    study, options = shared.study, shared.options
    mix = ", ".join(
        f"{markdown_text(model.name)} ({job.servers} servers{'' if job.weight == 1 else f', weight {job.weight:g}'})"
        for model, job in zip(study.models, shared.jobs, strict=True)
    )
    title = markdown_text(study.title)
    apart = [markdown_text(network.name) for network in networks if network.fabric is None]
    times_alone = [
        [markdown_text(network.name), *(milliseconds(plan.alone) for plan in network.jobs)] for network in networks
    ]
    parts = [
        f"## {title}\n",
        f"    {printable(command)}\n",
        *([f"Repeats: {markdown_text(study.source)}.\n"] if study.source else []),
        f"{study.cluster.servers} servers; jobs: {mix}. {options.trials} draws of jobs and "
        f"{'random' if options.placement == 'random' else 'contiguous'} servers, the same for all networks and, as far "
        f"as they fit, for all loads. One strategy for each model and network, found alone with {study.run.budget} "
        "candidates. Times are means over eight draws of equal paths, where there are any. Slowdown is over the same "
        f"job alone on the network. {premises}\n",
        *(
            [f"Each job has a partition of its own on {', '.join(apart)}; elsewhere jobs share links.\n"]
            if apart
            else []
        ),
        *(f"{note[:1].upper()}{note[1:]}.\n" for note in map(markdown_text, cost_notes(networks))),
        f"![{title}]({quote(picture)})\n",
        *(
            f"**{markdown_text(test.hypothesis.says)}**: {markdown_text(str(test))}\n"
            for test in load_tests(study.hypotheses, results)
        ),
        share_table(results, networks).markdown() + "\n",
        "Alone:\n",
        markdown_table(["network", *(markdown_text(model.name) for model in study.models)], times_alone) + "\n",
    ]
    return "\n".join(parts)

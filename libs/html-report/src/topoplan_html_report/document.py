"""The report: one HTML file that holds its style, its scripts and its data, and loads nothing.

Data flow: plans -> `headline`, `iteration`, `fabric`, `traffic`, `panels` -> one JSON text -> the page.  Scripts in
`assets` draw what the JSON says.  Names are data of the JSON and text of elements, never markup; a policy in the page
allows these scripts alone, by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan_engine.rebuilding import is_folded
from topoplan_engine.reporting.critical_path import critical_tasks
from topoplan_engine.simulation.deferred import of_first, simulated_words
from topoplan_html_report import panels
from topoplan_html_report.columns import packed
from topoplan_html_report.fabric import fabric_picture
from topoplan_html_report.headline import headline
from topoplan_html_report.iteration import iteration
from topoplan_html_report.limits import LARGEST, Limits
from topoplan_html_report.traffic import traffic_matrix

__all__ = ["NamedPlan", "report"]

#: Scripts in the order in which they run.
_SCRIPTS = ("echarts/echarts.min.js", "base.js", "timeline.js", "fabric.js", "charts.js", "report.js")
#: How often the limits of a page that is too large are tried, each time half of the last.
_HALVED = 8


@attrs.frozen
class NamedPlan:
    """A plan, and what a report of several calls it."""

    name: str
    plan: Plan


def report(plans: Sequence[NamedPlan], host: Host) -> bytes:
    """Return the report of one plan, or of several beside each other; equal plans give equal bytes.

    A page has at most `topoplan_html_report.limits.LARGEST` bytes, but for very many plans: panels of large plans leave
    out what matters least, and say what.

    Args:
        plans: with timelines.
        host: knows the simulators and topologies that the plans name, to simulate what a little more would bring.

    Raises:
        TopoplanError: a plan has no timeline.
    """
    if not plans:
        raise TopoplanError("report: no plan (name at least one)")
    known_plans = [_with_machines(each, host) for each in plans]
    leads = [headline(each.plan, host) for each in known_plans]
    for halved in range(_HALVED):
        limits = Limits.of(len(plans), halved)
        page = _page(plans, [_plan_data(each, lead, limits) for each, lead in zip(known_plans, leads, strict=True)])
        if len(page) <= LARGEST:
            break
    return page


def _page(plans: Sequence[NamedPlan], data: list[dict[str, Any]]) -> bytes:
    scripts = [_asset(name) for name in _SCRIPTS]
    page = Template(_asset("page.html")).substitute(
        title=html.escape(_title(plans)),
        policy=_policy(scripts),
        style=_asset("page.css"),
        data=_json_text({"plans": data}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        notice=_asset("echarts/NOTICE").strip(),
    )
    return page.encode()


def _with_machines(each: NamedPlan, host: Host) -> NamedPlan:
    plan = each.plan
    if plan.timeline is None:
        raise TopoplanError(
            f"{each.name}: this plan has no timeline; `topoplan simulate FILE -x html=report.html` gives it one"
        )
    return attrs.evolve(
        each, plan=attrs.evolve(plan, cluster=attrs.evolve(plan.cluster, machines=_machines(plan, host)))
    )


def _plan_data(each: NamedPlan, lead: dict[str, Any], limits: Limits) -> dict[str, Any]:
    plan = _of_classes(each.plan)
    number, names = _named_operators(plan, limits.names)
    rows = iteration(plan, critical_tasks(plan), limits, number)
    picture = fabric_picture(plan, limits)
    line_of_link = np.asarray(picture.pop("lineOfLink"))
    return {
        "name": each.name,
        "operators": names,
        "headline": lead,
        "summary": panels.summary(plan),
        "iteration": {**rows, "said": [*_simulated(each.plan), *rows["said"]]},
        "links": panels.links_over_time(plan, line_of_link, limits, number),
        "fabric": picture,
        "traffic": traffic_matrix(plan, limits, number) if plan is each.plan else {"hosts": 0},
        "strategy": panels.strategy(plan, limits),
        "runnersUp": panels.runners_up(plan),
        "bounds": panels.bounds(plan),
        "search": panels.search(plan, limits),
        "memory": panels.memory(plan, limits),
        "provenance": panels.provenance(plan, limits),
    }


def _simulated(plan: Plan) -> list[str]:
    """Return what was simulated, and so drawn, in place of all tasks, if anything was."""
    words = "" if plan.timeline is None else simulated_words(plan.timeline)
    return [f"Simulated and drawn are {words}."] if words else []


def _of_classes(plan: Plan) -> Plan:
    """Return a folded plan with the tasks that stand for all, and any other one as it is."""
    if not is_folded(plan) or plan.timeline is None:
        return plan
    taskgraph, timeline = of_first(plan.taskgraph, plan.timeline)
    return attrs.evolve(plan, taskgraph=taskgraph, timeline=timeline)


def _named_operators(plan: Plan, most: int) -> tuple[I64, list[str]]:
    """Return (operators,) the number of each on the page, and the names of these: those whose tasks take longest.

    Others have the number -1.
    """
    tasks, timeline = plan.taskgraph, plan.timeline
    assert timeline is not None
    count = len(tasks.op_names)
    task_seconds = np.bincount(tasks.op[tasks.op >= 0], (timeline.finish - timeline.start)[tasks.op >= 0], count)
    chosen = np.sort(np.argsort(-task_seconds, kind="stable")[:most])
    number = np.full(count, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    return number, [panels.short_name(tasks.op_names[op]) for op in chosen.tolist()]


def _machines(plan: Plan, host: Host) -> Any:
    """Return what is known of kinds of device: a plan that was read from a file does not have it."""
    from topoplan_engine.experiment import with_machines

    return with_machines(plan.cluster, host).machines


def _title(plans: Sequence[NamedPlan]) -> str:
    if len(plans) > 1:
        return f"{len(plans)} plans"
    plan = plans[0].plan
    name = plan.graph.name if plan.graph is not None else plans[0].name
    hosts, devices = plan.cluster.n_hosts, plan.cluster.n_devices
    many = f"{hosts} host{'s' if hosts > 1 else ''}" + (f" with {devices} devices" if devices != hosts else "")
    return f"{name} on {many}, {plan.fabric.name}"


def _asset(name: str) -> str:
    return files("topoplan_html_report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy under which these scripts run and no other, and nothing is loaded."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _json_text(value: Any) -> str:
    """Return JSON that no HTML parser reads as anything but text."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=_plain, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return packed(value, "int32")
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")

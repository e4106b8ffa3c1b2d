"""``topoplan show``: a plan in eighty columns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from topoplan_engine.flags import AsJson

if TYPE_CHECKING:
    from topoplan.model.plan import Plan

__all__ = ["plan_rows", "show"]

#: Columns where the output is no terminal, or a wider one.
_WIDTH = 80


def show(
    file: Annotated[str, typer.Argument(help="Plan (.json, .json.gz), or task graph (.fbuf).")],
    as_json: AsJson = False,
) -> None:
    """Show a plan: times, critical path, fabric, memory, throughput, and the strategy in groups.

    topoplan explain LABEL says what a row means.
    """
    from topoplan.plugin.host import Host
    from topoplan_engine.experiment import with_machines
    from topoplan_engine.reading import simulated_plan
    from topoplan_engine.reporting.memory import print_stages
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.plan_fields import planned_json
    from topoplan_engine.reporting.printing import json_values, print_json, table
    from topoplan_engine.reporting.runners_up import print_plans
    from topoplan_engine.reporting.strategy import print_strategy

    host = Host.discover()
    with compilation_announced():
        plan = simulated_plan(Path(file), host)
    plan = attrs.evolve(plan, cluster=with_machines(plan.cluster, host))
    if as_json:
        print_json(json_values(planned_json(plan, Path(file).name)))
        return
    with _as_wide_as(_WIDTH):
        table(_title(plan, file), plan_rows(plan))
        print_stages(plan)
        print_plans(plan)
        print_strategy(plan)


@contextmanager
def _as_wide_as(columns: int) -> Iterator[None]:
    """Print in this width, unless the user says another one."""
    unset = "COLUMNS" not in os.environ
    os.environ.setdefault("COLUMNS", str(columns))
    try:
        yield
    finally:
        if unset:
            del os.environ["COLUMNS"]


def _title(plan: Plan, file: str) -> str:
    name = Path(file).name if plan.graph is None else plan.graph.name
    return f"{name} on {plan.fabric.name}"


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of the table of a simulated plan, above its strategy: pairs of a label and a text."""
    from topoplan_engine.network.building import host_links
    from topoplan_engine.reporting.critical_path import critical_path_rows
    from topoplan_engine.reporting.joint import joint_rows
    from topoplan_engine.reporting.memory import memory_rows
    from topoplan_engine.reporting.model import model_rows
    from topoplan_engine.reporting.parts import parts_rows
    from topoplan_engine.reporting.throughput import plan_throughput_rows
    from topoplan_engine.reporting.timeline import simulation_rows

    return [
        *model_rows(plan),
        ("cluster", _cluster(plan)),
        ("fabric", _fabric(plan)),
        ("network of a host", host_links(plan.fabric, plan.cluster)),
        *simulation_rows(plan),
        *joint_rows(plan),
        *parts_rows(plan),
        *critical_path_rows(plan),
        *plan_throughput_rows(plan),
        *memory_rows(plan),
    ]


def _cluster(plan: Plan) -> str:
    cluster = plan.cluster
    kinds = ", ".join(f"{cluster.device_preset.count(kind)} x {kind}" for kind in sorted(set(cluster.device_preset)))
    return f"{cluster.n_hosts} hosts, {kinds}"


def _fabric(plan: Plan) -> str:
    links = plan.fabric.links
    switches = f", {links.n_switches} switch{'es' * (links.n_switches > 1)}" if links.n_switches else ""
    return f"{plan.fabric.name}: {links.n_links} links{switches}"

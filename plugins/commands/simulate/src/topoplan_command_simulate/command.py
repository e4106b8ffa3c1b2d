"""``topoplan simulate``: replay a task graph from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from topoplan_engine.flags import AsJson, Exports, Flags, Open
from topoplan_engine.options import ClusterOptions, ComponentOptions, RunOptions
from topoplan_engine.simulation.idle import exposed_communication
from topoplan_engine.work import RateOptions

if TYPE_CHECKING:
    from topoplan.model.plan import Plan
    from topoplan.plugin.host import Host
    from topoplan_engine.exporting import Written
    from topoplan_engine.simulation.draws import Draws

__all__ = ["simulate"]

_COMPONENTS = ("topology", "simulator", "collective", "protocol")
_LINKS = ("interface_bandwidth_gbps", "latency_us", "degree")


def simulate(
    file: Annotated[str, typer.Argument(help="Task graph (.fbuf), plan (.json) or folder of traces (.et).")],
    components: Annotated[Mapping[str, Any], Flags(of=ComponentOptions, only=_COMPONENTS, unset="the file's")],
    cluster: Annotated[Mapping[str, Any], Flags(of=ClusterOptions, only=_LINKS, unset="the file's")],
    rates: Annotated[RateOptions, Flags()],
    run: Annotated[RunOptions, Flags(only=("seed", "record"))],
    export: Exports = None,
    as_json: AsJson = False,
    open_page: Open = False,
) -> None:
    """Simulate one iteration of a task graph.

    Options go over what the file says: of the network, unless -t names another one, the bandwidth and the latency of
    its links.  Where it names no simulator, fluid simulates.
    """
    from topoplan.plugin.host import Host
    from topoplan_engine.browser import check_pages, open_pages
    from topoplan_engine.experiment import outputs_from
    from topoplan_engine.exporting import check_outputs, records, write_outputs
    from topoplan_engine.network.building import host_links
    from topoplan_engine.replay import draws_of, simulate_file, simulator_of
    from topoplan_engine.reporting.memory import memory_rows
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.printing import exit_after, print_json, table
    from topoplan_engine.reporting.timeline import simulation_rows

    host = Host.discover()
    outputs = outputs_from(export or ())
    check_outputs(host, outputs)
    if open_page:
        check_pages(host, outputs)
    record = run.record or records(host, outputs)
    with compilation_announced():
        plan = simulate_file(file, **components, **cluster, rates=rates, seed=run.seed, record=record, host=host)
    simulator = components.get("simulator") or simulator_of(plan).name
    agreement, draws = _agreement(host, plan), draws_of(plan, host=host)
    written = write_outputs(host, plan, outputs)
    if as_json:
        print_json(_as_json(plan, file, simulator, agreement, written, draws))
    else:
        (time_row, *other_rows) = simulation_rows(_with_draws(plan, draws))
        rows = [
            time_row,
            *([("typical error", agreement)] if agreement else []),
            *other_rows,
            *memory_rows(plan),
            ("network of a host", host_links(plan.fabric, plan.cluster)),
            ("tasks", str(plan.taskgraph.n_tasks)),
            *([("computation", plan.provenance["rates"])] if "rates" in plan.provenance else []),
        ]
        table(f"{Path(file).name} on {plan.fabric.name}, {simulator}", rows)
    if open_page:
        open_pages(host, written)
    exit_after(written)


def _with_draws(plan: Plan, draws: Draws | None) -> Plan:
    """Return a plan that says what it takes over these draws, and nothing of those before."""
    from topoplan_engine.simulation.draws import record_of

    provenance = {name: value for name, value in plan.provenance.items() if name != "iteration_time"}
    return attrs.evolve(plan, provenance=provenance if draws is None else {**provenance, **record_of(draws)})


def _agreement(host: Host, plan: Plan) -> str:
    """Return how far such times of a plan's simulator were off; empty if not known."""
    from topoplan import Simulator
    from topoplan_engine.replay import simulator_of
    from topoplan_engine.simulation.component import SimulatorOfModel

    choice = simulator_of(plan, host)
    component = choice.make(host, Simulator)
    return component.observed(plan.fabric) if isinstance(component, SimulatorOfModel) else ""


def _as_json(
    plan: Plan, file: str, simulator: str, agreement: str, written: Written, draws: Draws | None
) -> dict[str, Any]:
    """Return what is found as JSON-ready values."""
    from topoplan_engine.network.building import used_interfaces
    from topoplan_engine.reporting.memory import memory_json
    from topoplan_engine.reporting.timeline import breakdown_json, collective_links_json

    assert plan.timeline is not None
    return {
        "iteration_time_s": plan.timeline.makespan,
        "typical_error": agreement or None,
        "draws": None
        if draws is None
        else {
            "count": len(draws.seeds),
            "mean_iteration_time_s": draws.mean,
            "standard_deviation_s": draws.deviation,
        },
        "lower_bound_s": plan.timeline.bounds.best,
        "bounds": attrs.asdict(plan.timeline.bounds),
        "exposed_communication_s": exposed_communication(plan.timeline),
        **breakdown_json(plan),
        **collective_links_json(plan),
        **memory_json(plan),
        "tasks": plan.taskgraph.n_tasks,
        "events": plan.timeline.events,
        "rates": plan.provenance.get("rates"),
        "file": file,
        "topology": plan.fabric.name,
        "simulator": simulator,
        "interfaces": int(plan.cluster.interfaces.min()),
        "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
        "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
        "outputs": written.paths,
        **({"refused": written.refused} if written.refused else {}),
    }

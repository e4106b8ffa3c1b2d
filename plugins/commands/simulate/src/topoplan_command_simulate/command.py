"""``topoplan simulate``: replay a task graph from anybody."""

from __future__ import annotations

from pathlib import Path

import attrs
import typer

from topoplan.options import pairs

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("simulate")(simulate)
    return app


def simulate(
    file: Path = typer.Argument(help="Task graph (.fbuf) or plan (.json)."),
    topology: str = typer.Option(
        None, "-t", "--topology", help="Network for the file's hosts; the file's own unless given."
    ),
    simulator: str = typer.Option(
        None, "--simulator", help="NAME or NAME:key=value,...; the plan's own unless given, else fluid."
    ),
    interface_bandwidth_gbps: float = typer.Option(None, help="Of one link; the file's own unless given."),
    latency_us: float = typer.Option(None, help="Of one link, one way; the file's own (or 1) unless given."),
    degree: int = typer.Option(
        None, help="Network interfaces of each host, all used by -t; the file's own unless given.", min=1
    ),
    seed: int = typer.Option(0, help="Of the topology's randomness.", min=0),
    export: list[str] = typer.Option(
        [], "-x", "--export", metavar="EXPORTER=PATH", help="Write the plan with its timeline."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Simulate one iteration of a task graph."""
    from topoplan.model.interfaces import host_links, used_interfaces
    from topoplan.plugin.host import Host
    from topoplan_engine.experiment import Choice
    from topoplan_engine.exporting import check_outputs, write_outputs
    from topoplan_engine.replay import simulate_file, simulator_of
    from topoplan_engine.reporting.memory import memory_json, memory_rows
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.report import exit_after, print_json, simulation_rows, table

    host = Host.discover()
    outputs = tuple((Choice.parse(key, "exporter"), path) for key, path in pairs(export, "-x").items())
    check_outputs(host, outputs)
    with compilation_announced():
        plan = simulate_file(
            file,
            topology=topology,
            simulator=simulator,
            interface_bandwidth_gbps=interface_bandwidth_gbps,
            latency_us=latency_us,
            degree=degree,
            seed=seed,
            host=host,
        )
    assert plan.timeline is not None
    used = simulator or simulator_of(plan).name
    written = write_outputs(host, plan, outputs)
    if as_json:
        print_json(
            {
                "iteration_time_s": plan.timeline.makespan,
                "lower_bound_s": plan.timeline.bounds.best,
                "bounds": attrs.asdict(plan.timeline.bounds),
                "exposed_communication_s": plan.timeline.exposed_communication,
                **memory_json(plan),
                "tasks": plan.taskgraph.n_tasks,
                "events": plan.timeline.events,
                "file": str(file),
                "topology": plan.fabric.name,
                "simulator": used,
                "interfaces": int(plan.cluster.interfaces.min()),
                "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
                "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
                "outputs": written.paths,
                **({"refused": written.refused} if written.refused else {}),
            }
        )
    else:
        table(
            f"{file.name} on {plan.fabric.name}, {used}",
            [
                *simulation_rows(plan),
                *memory_rows(plan),
                ("network of a host", host_links(plan.fabric, plan.cluster)),
                ("tasks", str(plan.taskgraph.n_tasks)),
            ],
        )
    exit_after(written)

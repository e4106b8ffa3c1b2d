"""What the commands print: progress while a search runs, tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from topoplan.model.fabric import Fabric
from topoplan.model.interfaces import host_links, used_interfaces
from topoplan.model.plan import Plan
from topoplan.plugin.components import Searcher, Topology
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment, build_cluster, interfaces_unless_given
from topoplan_engine.exporting import Written, check_outputs, write_outputs
from topoplan_engine.reporting.kept import iteration_time, kept_json, kept_rows, planner_json, planner_rows
from topoplan_engine.reporting.memory import memory_json, memory_rows
from topoplan_engine.reporting.model import model_rows, toy
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.reporting.progress import progress_shown
from topoplan_engine.reporting.strategy import print_strategy, strategy_json
from topoplan_engine.reporting.throughput import throughput_json, throughput_rows
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_engine.simulation.reconfiguration import BreakEven

__all__ = ["exit_after", "print_json", "run_and_report", "simulation_rows", "table"]


def run_and_report(experiment: Experiment, *, as_json: bool) -> None:
    """Run an experiment, write its outputs, and print what was found.

    An interrupted search (Ctrl-C) keeps what it found so far: outputs are written all the same, and the
    exit status is 130.  An exporter that cannot say the plan keeps nothing else from being written and printed;
    the exit status is then 2.
    """
    host = Host.discover()
    topology = host.make(Topology, experiment.topology.name, experiment.topology.options)
    cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
    check_outputs(host, experiment.outputs, cluster, topology)
    with (
        compilation_announced(),
        progress_shown(
            experiment.run.budget, planning=_constructs(host, experiment), quiet=as_json, say=_time
        ) as report,
    ):
        outcome = optimize(experiment, host=host, on_progress=report)
    outputs = write_outputs(host, outcome.plan, experiment.outputs)
    if as_json:
        print_json(_summary(experiment, outcome, outputs))
    else:
        _print_outcome(experiment, outcome, outputs)
        if (hint := toy(host, experiment, outcome.plan)) is not None:
            typer.echo(hint, err=True)
    if outcome.result.interrupted:
        typer.echo("interrupted: this is the best of what was priced", err=True)
    exit_after(outputs, interrupted=outcome.result.interrupted)
    if not outcome.fits and not outcome.memory_ignored:
        raise typer.Exit(1)


def exit_after(outputs: Written, *, interrupted: bool = False) -> None:
    """Tell on standard error which outputs were refused, and end with the exit status that says so, if any were."""
    for why in outputs.refused.values():
        typer.echo(f"error: {why}", err=True)
    if interrupted:
        raise typer.Exit(130)
    if outputs.refused:
        raise typer.Exit(2)


def _constructs(host: Host, experiment: Experiment) -> bool:
    """Say whether all searchers of strategies construct their answer."""
    chosen = [host.get(Searcher, choice.name) for choice in experiment.searchers]
    of_strategies = [searcher.constructs for searcher in chosen if searcher.axis == "strategy"]
    return bool(of_strategies) and all(of_strategies)


def _summary(experiment: Experiment, outcome: Outcome, outputs: Written) -> dict[str, Any]:
    """Return the JSON object of a run."""
    plan, result = outcome.plan, outcome.result
    assert plan.timeline is not None
    return {
        "iteration_time_s": outcome.seconds,
        "initial_iteration_time_s": outcome.initial_seconds,
        "speedup": outcome.speedup,
        **kept_json(outcome, experiment),
        "lower_bound_s": plan.timeline.bounds.best,
        "bounds": attrs.asdict(plan.timeline.bounds),
        "exposed_communication_s": plan.timeline.exposed_communication,
        **throughput_json(outcome),
        "memory_penalty_s": outcome.penalty,
        **memory_json(plan),
        "lacks": outcome.lacks or None,
        "initial_fits": outcome.initial.fits,
        "evaluations": result.evaluations,
        "evaluations_per_s": result.evaluations / max(result.elapsed, 1e-9),
        "planning_seconds": result.planning,
        "acceptance": result.acceptance,
        "seed": experiment.run.seed,
        "budget": experiment.run.budget,
        "interrupted": result.interrupted,
        "model": experiment.model.name,
        "parameters": plan.graph.parameters if plan.graph else None,
        "batch_size": plan.graph.batch_size if plan.graph else None,
        "tasks": plan.taskgraph.n_tasks,
        "topology": experiment.topology.name,
        "estimator": next(c["name"] for c in plan.provenance["components"] if c["kind"] == "estimator"),
        "searcher": "+".join(choice.name for choice in experiment.searchers),
        "simulator": experiment.simulator.name,
        "interfaces": int(plan.cluster.interfaces.min()),
        "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
        "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
        "busiest_link": _busiest_link(plan),
        **_scheduling(plan),
        **strategy_json(plan),
        **_rebuilding(outcome.break_even),
        **_any_wiring(outcome),
        "outputs": outputs.paths,
        **({"refused": outputs.refused} if outputs.refused else {}),
        **planner_json(outcome),
    }


def _print_outcome(experiment: Experiment, outcome: Outcome, outputs: Written) -> None:
    plan, result = outcome.plan, outcome.result
    first = iteration_time(outcome.initial_draws, _time)
    rows = [
        *model_rows(plan),
        ("initial iteration time", first + ("" if outcome.initial.fits else " (does not fit)")),
        ("iteration time", iteration_time(outcome.draws, _time)),
        *kept_rows(outcome, experiment, _time),
        *simulation_rows(plan)[1:],
        *([] if outcome.speedup is None else [("speedup", f"{outcome.speedup:.3f}x")]),
        ("network of a host", host_links(plan.fabric, plan.cluster)),
        *_rebuilding_rows(outcome.break_even),
        *_any_wiring_rows(outcome),
        *throughput_rows(outcome),
        *memory_rows(plan),
        ("evaluations", f"{result.evaluations} ({result.evaluations / max(result.elapsed, 1e-9):.0f}/s)"),
    ]
    if result.acceptance is not None:
        rows.append(("accepted", f"{result.acceptance:.1%}"))
    rows += planner_rows(outcome)
    searchers = "+".join(choice.name for choice in experiment.searchers)
    title = f"{experiment.model.name} on {experiment.topology.name}, {searchers}, {experiment.simulator.name}"
    table(title, rows)
    print_strategy(plan)
    if not outcome.fits:
        ignored = " (memory is ignored, as asked)" if outcome.memory_ignored else ""
        typer.echo(f"no plan that was tried fits{ignored}: {outcome.lacks}", err=True)
    for exporter, path in outputs.paths.items():
        typer.echo(f"{exporter} written to {path}")


def _scheduling(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about the schedule of its strategy."""
    if plan.strategy is None or plan.strategy.whole_batch or plan.timeline is None:
        return {}
    schedule = plan.strategy.schedule
    return {
        "schedule": {
            "kind": schedule.kind.value,
            "micro_batches": schedule.micro_batches,
            "stages": schedule.n_stages,
            "recompute": list(schedule.recompute) or [False] * schedule.n_stages,
            "bubble_fraction": plan.timeline.bubble_fraction,
        }
    }


def _rebuilding(pays: BreakEven | None) -> dict[str, Any]:
    """Return what the JSON object of a run says about a fabric that is rebuilt between phases."""
    if pays is None:
        return {}
    return {
        "rebuilding": {
            "rebuilds": pays.rebuilds,
            "delay_s": pays.delay,
            "iteration_time_without_delay_s": pays.at_once,
            "static_iteration_time_s": pays.static,
            "break_even_delay_s": pays.break_even_delay,
        }
    }


def _any_wiring(outcome: Outcome) -> dict[str, Any]:
    """Return what the JSON object of a run says about all wirings of the cluster's interfaces."""
    if outcome.fabric_bound is None or outcome.plan.timeline is None:
        return {}
    bound, reached = outcome.fabric_bound, outcome.seconds
    return {"fabric_lower_bound_s": bound, "above_fabric_lower_bound": reached / bound - 1 if bound else None}


def _any_wiring_rows(outcome: Outcome) -> list[tuple[str, str]]:
    told = _any_wiring(outcome)
    if not told:
        return []
    above = told["above_fabric_lower_bound"]
    far = "" if above is None else f" (the plan is {above:.1%} above)"
    return [("on any wiring", f"at least {_time(told['fabric_lower_bound_s'])}{far}")]


def _rebuilding_rows(pays: BreakEven | None) -> list[tuple[str, str]]:
    if pays is None:
        return []
    delay = pays.break_even_delay
    if pays.rebuilds == 0:
        even = "none: its phases have the same wires"
    else:
        even = _time(delay) if delay > 0 else "none: slower even if rebuilt at once"
    return [
        ("rebuilt between phases", f"{_time(pays.at_once)} + {pays.rebuilds} x {_time(pays.delay)}"),
        ("best static fabric", _time(pays.static)),
        ("break-even delay", even),
    ]


def simulation_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows that tables of simulated plans share."""
    timeline = plan.timeline
    assert timeline is not None
    link = _busiest_link(plan)
    pipeline = []
    if plan.strategy is not None and not plan.strategy.whole_batch:
        schedule = plan.strategy.schedule
        pipeline = [
            ("schedule", f"{schedule.kind}, {schedule.n_stages} stages, {schedule.micro_batches} micro-batches"),
            ("bubbles", f"{timeline.bubble_fraction:.1%} of the time of its devices"),
        ]
    return [
        ("iteration time", _time(timeline.makespan)),
        *pipeline,
        ("exposed communication", _time(timeline.exposed_communication)),
        ("busiest link", "none" if link is None else f"{link['from']} to {link['to']}, {_time(link['busy_s'])}"),
        ("lower bound", f"{_time(timeline.bounds.best)} ({_tightest(plan)})"),
        ("busiest device", f"at least {_time(timeline.bounds.device)}"),
        ("longest chain", f"at least {_time(timeline.bounds.chain)}"),
        ("collectives", f"at least {_time(timeline.bounds.collective)}"),
    ]


def table(title: str, rows: list[tuple[str, str]]) -> None:
    """Print a two-column table."""
    grid = Table(title=title, show_header=False, title_justify="left")
    grid.add_column()
    grid.add_column(justify="right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(markup=False, emoji=False).print(grid)


def print_json(value: dict[str, Any]) -> None:
    """Print one strict JSON object on standard output."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, default=_plain) + "\n")


def _busiest_link(plan: Plan) -> dict[str, Any] | None:
    timeline = plan.timeline
    if timeline is None or not len(timeline.link_busy) or timeline.link_busy.max() <= 0:
        return None
    link = int(np.argmax(timeline.link_busy[: plan.fabric.n_links]))
    return {
        "from": _node(plan.fabric, int(plan.fabric.link_src[link])),
        "to": _node(plan.fabric, int(plan.fabric.link_dst[link])),
        "busy_s": float(timeline.link_busy[link]),
        "bytes": float(timeline.link_bytes[link]),
    }


def _node(fabric: Fabric, node: int) -> str:
    return f"host {node}" if node < fabric.n_hosts else f"switch {node - fabric.n_hosts}"


def _tightest(plan: Plan) -> str:
    assert plan.timeline is not None
    bounds = plan.timeline.bounds
    names = {
        bounds.collective: "collectives",
        bounds.chain: "longest chain",
        bounds.link: "busiest link",
        bounds.device: "busiest device",
    }
    return names[bounds.best]


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "infeasible"
    return f"{seconds * 1e3:.4f} ms" if seconds < 10 else f"{seconds:.4f} s"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        return None
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")

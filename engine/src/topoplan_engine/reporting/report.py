"""`run_and_report`: what a search prints: progress while it runs, then a table for people or JSON for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import typer

from topoplan.cli import command_began
from topoplan.errors import TopoplanError, shown
from topoplan.model.plan import Plan
from topoplan.plugin.components import Exporter, Searcher, Topology
from topoplan.plugin.host import Host
from topoplan_engine.browser import check_pages, open_pages
from topoplan_engine.experiment import Experiment, build_cluster, interfaces_unless_given
from topoplan_engine.exporting import Written, check_outputs, keep_refused, read_plan, write_outputs
from topoplan_engine.files import shown_path
from topoplan_engine.host_models import host_text
from topoplan_engine.kernels.clock import clock
from topoplan_engine.network.building import host_links
from topoplan_engine.replay import written_seconds
from topoplan_engine.reporting.accuracy import packet_errors_text, typical_error
from topoplan_engine.reporting.cautions import caution_rows
from topoplan_engine.reporting.joint import again_text, algorithm_rows
from topoplan_engine.reporting.kept import iteration_time, kept_json, kept_rows, planner_json, planner_rows
from topoplan_engine.reporting.memory import memory_rows, print_stages
from topoplan_engine.reporting.model import few_samples, model_rows, toy
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.reporting.parts import parts_rows
from topoplan_engine.reporting.plan_fields import plan_json
from topoplan_engine.reporting.printing import exit_after, json_values, print_json, spelled_time, table
from topoplan_engine.reporting.progress import progress_shown
from topoplan_engine.reporting.runners_up import print_plans
from topoplan_engine.reporting.strategy import print_strategy
from topoplan_engine.reporting.summary import launch_text, stated_text, summary_rows
from topoplan_engine.reporting.tables import print_line, printable_lines
from topoplan_engine.reporting.throughput import throughput_json, throughput_rows
from topoplan_engine.reporting.timeline import simulation_rows
from topoplan_engine.search.companions import writable
from topoplan_engine.search.located_tables import locating_in
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_engine.search.result import Result
from topoplan_engine.search.run_folder import RunFolder
from topoplan_engine.search.trainers import launchable
from topoplan_engine.simulation.reconfiguration import BreakEven

__all__ = ["outcome_rows", "outcome_title", "report_again", "run_and_report"]

#: Standard deviation from which on it is shown, as a share of the mean.
_LEAST_SHOWN = 1e-6
#: Relative difference, between a plan's time and that of its file as it is run, that is said.
_WORTH_SAYING = 0.01


def run_and_report(
    experiment: Experiment,
    *,
    as_json: bool,
    open_page: bool = False,
    details: bool = False,
    folder: RunFolder | None = None,
) -> None:
    """Run an experiment, write its outputs, and print what was found.

    With the folder of a run, a search goes on where it was, and the result is written down there, too.  Tables are
    short unless ``details`` are asked for.

    An interrupted search (Ctrl-C) keeps what it found so far: outputs are written all the same, and the
    exit status is 130.  An exporter that cannot say the plan keeps nothing else from being written and printed;
    the exit status is then 2.
    """
    began = clock() - (time.monotonic() - command_began())  # no kernel is compiled before
    host = Host.discover()
    topology = experiment.topology.make(host, Topology)
    with locating_in(experiment, host):
        cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
    check_outputs(host, experiment.outputs, cluster, topology)
    if open_page:
        check_pages(host, experiment.outputs)
    with compilation_announced(_simulators(host, experiment)):
        with progress_shown(
            experiment.run.budget,
            experiment.run.seconds,
            planning=_constructs(host, experiment),
            quiet=as_json,
            say=spelled_time,
        ) as report:
            outcome = optimize(experiment, host=host, on_progress=report, folder=folder, began=began)
        lacks = "" if outcome.memory_ignored else outcome.lacks.partition(" (")[0]
        outputs = write_outputs(host, outcome.plan, experiment.outputs, lacks)
        may_keep = folder is None and not lacks
        kept_file = keep_refused(host, outcome.plan, experiment.outputs, outputs) if may_keep else ""
        document = _said(host, experiment, outcome, outputs, _as_run(host, outputs), kept_file)
    if folder is not None and not outcome.result.interrupted:
        folder.finish(document)
    _print(document, outcome.plan, outputs, as_json=as_json, details=details)
    if outcome.result.interrupted:
        on = "" if folder is None else f"; topoplan resume {shown_path(folder.path)} goes on"
        typer.echo(f"interrupted: this is the best of what was priced{on}", err=True)
    _end(host, document, outputs, open_page=open_page, interrupted=outcome.result.interrupted)


def _simulators(host: Host, experiment: Experiment) -> list[str]:
    """Return the simulators that run what a search writes, then that of the search, which it calls first."""
    exporters = [choice.make(host, Exporter) for choice, _ in experiment.outputs]
    return [*dict.fromkeys(exporter.runs_as for exporter in exporters if exporter.runs_as), experiment.simulator.text]


def report_again(folder: RunFolder, *, as_json: bool, open_page: bool = False, details: bool = False) -> bool:
    """Print the result of a finished run and write its outputs again; say whether the run is finished.

    Raises:
        TopoplanError: what the folder holds is no result.
    """
    document = folder.result()
    if document is None:
        return False
    where = shown_path(folder.path / "result.json")
    _check_said(document, where)
    host, path = Host.discover(), folder.path / "best.json"
    check_outputs(host, folder.experiment.outputs)
    plan = read_plan(host, path)
    lacks = "see above" if document["status"] else ""
    outputs = write_outputs(host, plan, folder.experiment.outputs, lacks)
    try:
        _print(document, plan, outputs, as_json=as_json, details=details)
    except RecursionError:
        raise TopoplanError(f"{where}: 'json' is not what a run wrote (too many levels)") from None
    _end(host, document, outputs, open_page=open_page)
    return True


def _check_said(document: Mapping[str, Any], where: str) -> None:
    """Raise `TopoplanError` if a file holds something else than `_said` returns; ``where`` names the file."""

    def is_text(value: Any) -> bool:
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)

    def is_row(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))

    def are_rows(value: Any) -> bool:
        return isinstance(value, list) and all(map(is_row, value))

    expected: dict[str, tuple[Callable[[Any], bool], str]] = {
        "title": (is_text, "a text"),
        "rows": (are_rows, "a list of pairs of texts"),
        "details": (are_rows, "a list of pairs of texts"),
        "notes": (lambda value: isinstance(value, list) and all(map(is_text, value)), "a list of texts"),
        "status": (lambda value: isinstance(value, int) and value in (0, 2), "0 or 2"),
        "json": (lambda value: isinstance(value, dict), "an object"),
    }
    for key, (is_right, what) in expected.items():
        if not is_right(document.get(key)):
            value = shown(document[key]) if key in document else "missing"
            raise TopoplanError(f"{where}: {key!r} is not what a run wrote ({value}, expected {what})")


def _as_run(host: Host, outputs: Written) -> dict[str, dict[str, Any]]:
    """Return the times of the files that programs run, as these do, by exporter."""
    times = {
        label: written_seconds(host.get(Exporter, label.partition(":")[0])(), path, host=host)
        for label, path in outputs.paths.items()
    }
    return {
        name: {
            "simulator": as_run[0],
            "iteration_time_s": as_run[1].mean,
            "standard_deviation_s": as_run[1].deviation,
        }
        for name, as_run in times.items()
        if as_run is not None
    }


def _time_as_run(of: Mapping[str, Any], seconds: float) -> str:
    """Return the time of a file as it is run, how it differs from the plan's, from draw to draw, and by what it is."""
    mean, deviation = of["iteration_time_s"], of["standard_deviation_s"]
    differs = mean / seconds - 1 if seconds > 0 else 0.0
    more = "longer" if differs > 0 else "shorter"
    of_plan = f", {abs(differs):.1%} {more} than the plan" if abs(differs) >= _WORTH_SAYING else ""
    varies = f", +- {deviation / mean:.2%} from draw to draw" if deviation > _LEAST_SHOWN * mean else ""
    return f"{spelled_time(mean)}{of_plan}{varies} ({of['simulator']})"


def _said(
    host: Host,
    experiment: Experiment,
    outcome: Outcome,
    outputs: Written,
    as_run: Mapping[str, Mapping[str, Any]],
    kept_file: str,
) -> dict[str, Any]:
    """Return everything that is printed of an outcome, but for its strategy: JSON values.

    ``kept`` is the file that holds a plan which an output refused.
    """
    notes = [f"the plan is kept in {kept_file} (topoplan show {kept_file})"] if kept_file else []
    seconds = outcome.seconds
    if not outcome.fits:
        ignored = " (memory is ignored, as asked)" if outcome.memory_ignored else ""
        what = "no plan that was tried fits" if not outcome.initial.fits else "the plan does not fit"
        notes.append(f"{what}{ignored}: {outcome.lacks}")
    written, line = writable(host, experiment)
    notes += [line for line in (line, launchable(host, written)[1]) if line]
    hints = [hint for hint in (toy(host, experiment, outcome.plan), few_samples(experiment, outcome.plan)) if hint]
    error, packets = typical_error(host, experiment, outcome.plan), packet_errors_text(host, experiment, outcome.plan)
    runs = outcome.fits or outcome.memory_ignored
    off, launch = [("typical error", error)] if error else [], launch_text(outcome.plan, host) if runs else ""
    against = [("against packets", packets)] if packets and packets not in error else []
    run_as = [(f"as {name} is run", _time_as_run(of, seconds)) for name, of in as_run.items()]
    return {
        "title": outcome_title(outcome),
        "rows": [*summary_rows(outcome, experiment, launch), *off, *run_as],
        "details": [*outcome_rows(outcome), *against],
        "notes": [*notes, *hints],
        "status": 0 if runs else 2,
        "json": json_values(
            {
                **_summary(experiment, outcome, outputs),
                "typical_error": error or None,
                "against_packets": packets or None,
                "to_launch": launch or None,
                **({"as_run": as_run} if as_run else {}),
                **({"kept": kept_file} if kept_file else {}),
            }
        ),
    }


def _print(document: Mapping[str, Any], plan: Plan, outputs: Written, *, as_json: bool, details: bool) -> None:
    if as_json:
        print_json(document["json"])
        return
    table(document["title"], [(label, value) for label, value in document["rows"]], align="left")
    if details:
        table("in full", [(label, value) for label, value in document["details"]])
        print_stages(plan)
        print_plans(plan)
    if details or not stated_text(plan):
        print_strategy(plan)
    elif stated := stated_text(plan):
        print_line(f"the same plan again: --plan {stated}{again_text(plan)}")
    if not details:
        typer.echo("more: --details, --json, or -x json=plan.json for topoplan show plan.json")
    for note in document["notes"]:
        typer.echo(printable_lines(note), err=True)
    for exporter, path in outputs.paths.items():
        typer.echo(f"{exporter} written to {path}")


def _end(
    host: Host, document: Mapping[str, Any], outputs: Written, *, open_page: bool, interrupted: bool = False
) -> None:
    if open_page:
        open_pages(host, outputs)
    exit_after(outputs, interrupted=interrupted)
    if status := document.get("status"):
        raise typer.Exit(status)


def _constructs(host: Host, experiment: Experiment) -> bool:
    """Say whether all searchers of strategies construct their answer."""
    searchers = [choice.find(host, Searcher) for choice in experiment.searchers]
    of_strategies = [searcher.constructs for searcher in searchers if searcher.axis != "network"]
    return bool(of_strategies) and all(of_strategies)


def _summary(experiment: Experiment, outcome: Outcome, outputs: Written) -> dict[str, Any]:
    """Return the JSON object of a run."""
    plan, result = outcome.plan, outcome.result
    return {
        "iteration_time_s": outcome.seconds,
        **plan_json(plan),
        "initial_iteration_time_s": outcome.initial_seconds if outcome.initial_seconds < math.inf else None,
        "speedup": outcome.speedup,
        **kept_json(outcome, experiment),
        "lower_bound_of_all_plans_s": outcome.least_seconds,
        **throughput_json(outcome.throughput, plan),
        "memory_penalty_s": outcome.penalty,
        "lacks": outcome.lacks or None,
        "initial_fits": outcome.initial.fits,
        "evaluations": result.evaluations,
        "evaluations_per_s": result.evaluations / max(result.elapsed, 1e-9),
        "planning_seconds": result.planning,
        "acceptance": result.acceptance,
        "seed": experiment.run.seed,
        "budget": plan.provenance["budget"],
        "time_limit_s": plan.provenance.get("time_limit_s"),
        "ended_by": result.ended_by,
        "interrupted": result.interrupted,
        **({"unfinished": result.unfinished} if result.unfinished else {}),
        **({"too_large": result.too_large} if result.too_large else {}),
        **({"left_out": list(result.left_out)} if result.left_out else {}),
        "history": dict(zip(("evaluations", "seconds", "best_s"), result.history.T.tolist(), strict=True)),
        **({"restarts": [attrs.asdict(restart) for restart in result.restarts]} if result.restarts else {}),
        "model": experiment.model.name,
        "topology": experiment.topology.name,
        "estimator": next(c["name"] for c in plan.provenance["components"] if c["kind"] == "estimator"),
        "searcher": "+".join(choice.name for choice in experiment.searchers),
        "simulator": experiment.simulator.name,
        **({"machine": host_text(plan.cluster, experiment.cluster.machine)} if experiment.cluster.machine else {}),
        **_rebuilding(outcome.break_even),
        **_any_wiring(outcome),
        "outputs": outputs.paths,
        **({"refused": outputs.refused} if outputs.refused else {}),
        **planner_json(outcome),
    }


def outcome_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows of the table that a run prints."""
    experiment, plan, result = outcome.experiment, outcome.plan, outcome.result
    first = "no time to simulate it"
    if outcome.initial_seconds < math.inf:
        first = iteration_time(outcome.initial_draws, spelled_time)
    rows = [
        *model_rows(plan),
        ("initial iteration time", first + (" (does not fit)" if outcome.initial.fits is False else "")),
        ("iteration time", iteration_time(outcome.draws, spelled_time)),
        *kept_rows(outcome, experiment, spelled_time),
        *simulation_rows(plan)[1:],
        *algorithm_rows(plan),
        *parts_rows(plan),
        *([] if outcome.speedup is None else [("speedup", f"{outcome.speedup:.3f}x")]),
        *machine_rows(experiment, plan),
        ("network of a host", host_links(plan.fabric, plan.cluster)),
        *_rebuilding_rows(outcome.break_even),
        *_any_wiring_rows(outcome),
        *throughput_rows(outcome),
        *caution_rows(plan),
        *memory_rows(plan),
        ("evaluations", f"{result.evaluations} ({result.evaluations / max(result.elapsed, 1e-9):.0f}/s)"),
        ("search ended by", result.ended_by + (f", while {result.unfinished}" if result.unfinished else "")),
        *([("too large to price", f"{result.too_large} candidates")] if result.too_large else []),
        *(("left out", reason) for reason in result.left_out),
    ]
    if result.restarts:
        rows.append(("restarts", _restarts_text(result)))
    if result.acceptance is not None:
        rows.append(("accepted", f"{result.acceptance:.1%}"))
    return rows + planner_rows(outcome)


def machine_rows(experiment: Experiment, plan: Plan) -> list[tuple[str, str]]:
    """Return what a table says of the machine: what was assumed where no option says it."""
    machine = experiment.cluster.machine
    return [] if machine is None else [("machine", host_text(plan.cluster, machine))]


def _restarts_text(result: Result) -> str:
    bests = [restart.best_cost for restart in result.restarts]
    return f"{len(bests)}, whose bests are {spelled_time(min(bests))} to {spelled_time(max(bests))}"


def outcome_title(outcome: Outcome) -> str:
    """Return what stands above that table."""
    experiment = outcome.experiment
    searchers = "+".join(choice.name for choice in experiment.searchers)
    return f"{experiment.model.name} on {experiment.topology.name}, {searchers}, {experiment.simulator.name}"


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
    bound, seconds = outcome.fabric_bound, outcome.seconds
    return {"fabric_lower_bound_s": bound, "above_fabric_lower_bound": seconds / bound - 1 if bound else None}


def _any_wiring_rows(outcome: Outcome) -> list[tuple[str, str]]:
    values = _any_wiring(outcome)
    if not values:
        return []
    above = values["above_fabric_lower_bound"]
    far = "" if above is None else f" (the plan is {above:.1%} above)"
    return [("on any wiring", f"at least {spelled_time(values['fabric_lower_bound_s'])}{far}")]


def _rebuilding_rows(pays: BreakEven | None) -> list[tuple[str, str]]:
    if pays is None:
        return []
    delay = pays.break_even_delay
    if pays.rebuilds == 0:
        even = "none: its phases have the same wires"
    else:
        even = spelled_time(delay) if delay > 0 else "none: slower even if rebuilt at once"
    return [
        ("rebuilt between phases", f"{spelled_time(pays.at_once)} + {pays.rebuilds} x {spelled_time(pays.delay)}"),
        ("best static fabric", spelled_time(pays.static)),
        ("break-even delay", even),
    ]

"""``topoplan profile operators``: times of all parts that a search may use, as a table and as FlexNet's file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import typer

from topoplan import Cluster, Host, OperatorGraph, TopoplanError
from topoplan.options import option
from topoplan_command_profile.launch import check_torch
from topoplan_command_profile.model_options import ModelOptions, TableOptions, build_model, same_model
from topoplan_command_profile.profiling import Part, all_cuts, flexnet_entries, load, parts_of, time_parts
from topoplan_command_profile.progress import bar_shown
from topoplan_command_profile.torch_timer import TorchTimer, check_kinds
from topoplan_engine.completion import models
from topoplan_engine.experiment import build_cluster
from topoplan_engine.files import check_different, check_writable, write_file
from topoplan_engine.flags import AsJson, Flags
from topoplan_engine.options import ClusterOptions, RunOptions
from topoplan_operator_times.flexnet import document, name_of
from topoplan_operator_times.table import Table

__all__ = ["TimedParts", "operators", "profile_operators", "timed_parts"]


@attrs.frozen(kw_only=True)
class OperatorsOptions(TableOptions):
    """How operators are timed, and where the times go."""

    flexnet: str = option(
        "",
        help="file of FlexNet, which `topoplan flexnet --mfile` reads; unset: measure_BATCH_DEVICES.json where FlexNet "
        "has a name for every operator",
    )


@attrs.frozen(kw_only=True, eq=False)
class TimedParts:
    """Parts of a model, a table that has the times of all of them, and how many were timed now."""

    graph: OperatorGraph
    parts: list[Part]
    table: Table
    new: int


def operators(
    model: Annotated[str, typer.Argument(help="Frontend that builds the model, e.g. dlrm.", autocompletion=models)],
    components: ModelOptions,
    cluster: Annotated[ClusterOptions, Flags(only=("servers", "gpus_per_server", "gpus_per_device", "devices"))],
    run: Annotated[RunOptions, Flags(only=("batch_size", "precision"))],
    timing: OperatorsOptions,
    as_json: AsJson = False,
) -> None:
    """Time the operators of a model in every cut that a search on the cluster may use.

    After Ctrl-C the same command continues.
    """
    host = Host.discover()
    graph = build_model(host, model, components, run)
    devices = build_cluster(cluster, host)
    flexnet = _flexnet_file(graph, devices, timing.flexnet)
    timed = profile_operators(graph, devices, timing, flexnet, quiet=as_json)
    summary = _summary(timed)
    if as_json:
        typer.echo(json.dumps({**summary, "table": timing.table, "flexnet": str(flexnet or "")}, indent=2))
        return
    _show(summary, timing.table, flexnet)
    line = ["topoplan", "optimize", *same_model(model, components, run, _sizes(cluster))]
    typer.echo(f"to plan with them: {shlex.join([*line, '-e', f'measured:file={timing.table}'])}")


def profile_operators(
    graph: OperatorGraph,
    cluster: Cluster,
    timing: TableOptions | None = None,
    flexnet: Path | None = None,
    *,
    quiet: bool = True,
) -> TimedParts:
    """Time the operators of a model in every cut that a search on a cluster may use, with PyTorch.

    Args:
        graph: the model.
        cluster: its numbers of devices bound the cuts.
        timing: on what, how often, and the file of the table; the options of the command line unless given.
        flexnet: file that FlexNet's ``--mfile`` takes, to be written, too.
        quiet: show no progress on standard error.

    Raises:
        TopoplanError: torch is missing or has no kernel for an operator, or a file cannot be written.
    """
    parts = parts_of(graph, all_cuts(graph, cluster), cluster.gpus_per_device)
    outputs = [] if flexnet is None else [flexnet]
    timed = timed_parts(graph, parts, timing or TableOptions(), "operators", outputs, quiet=quiet)
    if flexnet is not None:
        entries = flexnet_entries(graph, parts, timed.table)
        write_file(flexnet, document(graph.batch_size, cluster.n_devices, entries))
    return timed


def timed_parts(
    graph: OperatorGraph, parts: list[Part], timing: TableOptions, word: str, outputs: list[Path], *, quiet: bool
) -> TimedParts:
    """Time the parts that the table of the options lacks.

    Args:
        graph: the model.
        parts: of it.
        timing: on what, how often, and the file of the table.
        word: the command, behind ``topoplan profile``.
        outputs: other files that the command will write.
        quiet: show no progress.

    Raises:
        TopoplanError: torch is missing or has no kernel for an operator, or a file cannot be written.
    """
    path = Path(timing.table)
    check_different([("--table", path), *((f"output {output}", output) for output in outputs)])
    for target in (path, *outputs):
        check_writable(target)
    check_kinds([(operator.name, operator.kind) for operator in graph.operators])
    check_torch(word)
    timer = TorchTimer(timing.on, graph.precision, timing.warm_up, timing.repeats, timing.tf32)
    table = load(path, timer.bench)
    shapes = {part.shape for part in parts}
    missing = len(shapes - table.rows.keys())
    if not quiet:
        typer.echo(
            f"{graph.name}: {len(parts)} cuts of {len(graph.operators)} operators, {len(shapes)} different parts, "
            f"{len(shapes) - missing} of them in {path} already; on {timer.bench}",
            err=True,
        )
    with bar_shown(missing, quiet=quiet) as report:
        new = time_parts(graph, parts, table, path, timer, report)
    return TimedParts(graph=graph, parts=parts, table=table, new=new)


def _flexnet_file(graph: OperatorGraph, cluster: Cluster, name: str) -> Path | None:
    """Return the path of FlexNet's file; None where it is not asked for and FlexNet lacks an operator.

    Raises:
        TopoplanError: it is asked for, and FlexNet lacks an operator.
    """
    nameless = next((op for op in graph.operators if not name_of(op)), None)
    if nameless is None:
        return Path(name or f"measure_{graph.batch_size}_{cluster.n_devices}.json")
    if not name:
        return None
    raise TopoplanError(
        f"--flexnet: FlexNet has no name for operator {nameless.name!r} ({nameless.kind}); leave it out: "
        "-e measured:file= reads the table, which has every operator"
    )


def _sizes(cluster: ClusterOptions) -> dict[str, str]:
    """Return the options of the cluster that are not their defaults, as they are typed."""
    values = {
        "servers": cluster.servers,
        "gpus-per-server": cluster.gpus_per_server,
        "gpus-per-device": cluster.gpus_per_device,
        "devices": ",".join(map(str, cluster.devices)),
    }
    plain = ClusterOptions()
    defaults = {"devices": "", **{key: getattr(plain, key.replace("-", "_")) for key in values if key != "devices"}}
    return {key: str(value) for key, value in values.items() if value != defaults[key]}


def _summary(timed: TimedParts) -> dict[str, Any]:
    """Return JSON values: how many parts, how far repeated runs differ, and the times of the uncut model."""
    graph, parts, table = timed.graph, timed.parts, timed.table
    rows = [table.rows[shape] for shape in dict.fromkeys(part.shape for part in parts)]
    times = [times for row in rows for times in (row.forward, row.backward) if times is not None and times.median > 0]
    spread = [(times.high - times.low) / times.median for times in times]
    whole = [table.rows[part.shape] for part in parts if max(part.degrees) == 1]
    whole_times = [(row.forward, row.backward) for row in whole if row.forward is not None and row.backward is not None]
    return {
        "model": graph.name,
        "batch_size": graph.batch_size,
        "bench": attrs.asdict(table.bench),
        "operators": len(graph.operators),
        "cuts": len(parts),
        "parts": len(rows),
        "timed_now": timed.new,
        "too_large": sum(row.forward is None for row in rows),
        "median_spread": float(np.median(spread)) if spread else None,
        "uncut_forward_s": sum(forward.median for forward, _ in whole_times),
        "uncut_backward_s": sum(backward.median for _, backward in whole_times),
        "uncut_operators": len(whole_times),
    }


def _show(summary: dict[str, Any], table: str, flexnet: Path | None) -> None:
    """Print what was timed and where it was written."""
    spread = summary["median_spread"]
    typer.echo(
        f"{summary['parts']} parts, {summary['timed_now']} of them timed now"
        + (f"; median of the spread between quartiles {spread:.1%}" if spread is not None else "")
    )
    if summary["too_large"]:
        typer.echo(f"{summary['too_large']} parts did not fit into memory; they are marked, and no search uses them")
    count = summary["uncut_operators"]
    typer.echo(
        f"uncut: forward {summary['uncut_forward_s'] * 1e3:.4g} ms, backward "
        f"{summary['uncut_backward_s'] * 1e3:.4g} ms over {count} of {summary['operators']} operators"
    )
    typer.echo(f"table written to {table}")
    if flexnet:
        typer.echo(f"FlexNet's file written to {flexnet}")
    else:
        typer.echo("no file of FlexNet: it has no name for some of these operators")

"""``topoplan profile layers``: a layer profile of a model, as PipeDream's profiler writes it and DAPPLE reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import typer

from topoplan import Host, OperatorGraph, TopoplanError
from topoplan.options import option
from topoplan_command_profile.model_options import ModelOptions, TableOptions, build_model
from topoplan_command_profile.operators_command import TimedParts, timed_parts
from topoplan_command_profile.profiling import Part, parts_of
from topoplan_engine.completion import models
from topoplan_engine.files import write_file
from topoplan_engine.fitting import size_text
from topoplan_engine.flags import AsJson, Flags
from topoplan_engine.options import RunOptions
from topoplan_operator_times.table import Table

__all__ = ["layer_profile", "layers", "profile_layers"]


@attrs.frozen(kw_only=True)
class LayersOptions(TableOptions):
    """How layers are timed, and where the profile goes."""

    output: str = option("", help="file to write; unset: MODEL-pbs-BATCH.txt, which tells readers the batch size")


def layers(
    model: Annotated[str, typer.Argument(help="Frontend that builds the model, e.g. vgg16.", autocompletion=models)],
    components: ModelOptions,
    run: Annotated[RunOptions, Flags(only=("batch_size", "precision"))],
    timing: LayersOptions,
    as_json: AsJson = False,
) -> None:
    """Time every layer of a model, uncut, and write a layer profile.

    After Ctrl-C the same command continues.
    """
    graph = build_model(Host.discover(), model, components, run)
    output = Path(timing.output or f"{graph.name}-pbs-{graph.batch_size}.txt")
    timed = profile_layers(graph, output, timing, quiet=as_json)
    if as_json:
        layer_counts = {"layers": len(timed.parts), "timed_now": timed.new}
        summary = {"model": graph.name, "batch_size": graph.batch_size, **layer_counts}
        typer.echo(json.dumps({**summary, "output": str(output), "table": timing.table}, indent=2))
        return
    named = "" if f"pbs-{graph.batch_size}" in output.name else f" -o profile-batch={graph.batch_size}"
    typer.echo(f"{len(timed.parts)} layers of {graph.batch_size} samples written to {output}")
    typer.echo(f"to plan with it: topoplan optimize torchgraph -o file={output}{named} -s pipeline")


def profile_layers(
    graph: OperatorGraph, output: Path, timing: TableOptions | None = None, *, quiet: bool = True
) -> TimedParts:
    """Time every layer of a model, uncut, with PyTorch, and write a layer profile.

    Args:
        graph: the model.
        output: file to write; readers take the batch size from a name such as ``vgg16-pbs-64.txt``.
        timing: on what, how often, and the file of the table; the options of the command line unless given.
        quiet: show no progress on standard error.

    Raises:
        TopoplanError: torch is missing or has no kernel for a layer, a file cannot be written, or a layer does not fit
            into memory.
    """
    parts = parts_of(graph, lambda op: [(1,) * len(graph.operators[op].dims)])
    timed = timed_parts(graph, parts, timing or TableOptions(), "layers", [output], quiet=quiet)
    write_file(output, layer_profile(graph, parts, timed.table).encode())
    return timed


def layer_profile(graph: OperatorGraph, parts: list[Part], table: Table) -> str:
    """Return the text: a line for each operator, then a line for each edge.

    Times are milliseconds and sizes bytes, of the model's batch.

    Args:
        graph: the model.
        parts: of each operator the uncut one.
        table: has their times.

    Raises:
        TopoplanError: a layer did not fit into memory.
    """
    lines = []
    for part in parts:
        operator, row = graph.operators[part.op], table.rows[part.shape]
        if row.forward is None or row.backward is None:
            raise TopoplanError(
                f"layer {operator.name!r}: {size_text(part.shape.nbytes)} did not fit into memory (choose a smaller "
                "--batch-size: readers of a profile scale it)"
            )
        sizes = [f"{tensor.nbytes:.1f}" for tensor in operator.outputs]
        fields = {
            "forward_compute_time": f"{row.forward.median * 1e3:.6f}",
            "backward_compute_time": f"{row.backward.median * 1e3:.6f}",
            "activation_size": sizes[0] if len(sizes) == 1 else f"[{'; '.join(sizes)}]",
            "parameter_size": f"{sum(weight.nbytes for weight in operator.weights):.3f}",
        }
        text = ", ".join(f"{key}={value}" for key, value in fields.items())
        lines.append(f"node{part.op + 1} -- {operator.kind}({operator.name}) -- {text}")
    pairs = dict.fromkeys((int(u), int(v)) for u, _, v, _ in graph.edges.reshape(-1, 4))
    lines += [f"\tnode{u + 1} -- node{v + 1}" for u, v in pairs]
    return "\n".join(lines) + "\n"

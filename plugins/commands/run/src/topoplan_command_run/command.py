"""``topoplan run``: the same as ``optimize``, with every option from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topoplan_engine.flags import AllowCode, AsJson, Details, Flags, Folder, Open
from topoplan_engine.options import RunOptions

__all__ = ["run"]


def run(
    file: Annotated[str, typer.Argument(help="Experiment in TOML.")],
    recording: Annotated[RunOptions, Flags(only=("record",))],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key, e.g. cluster.degree=8."),
    ] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
    open_page: Open = False,
    folder: Folder = None,
    details: Details = False,
) -> None:
    """Run an experiment that a TOML file describes; it names no code, and outputs beside it or in the current folder.

    --allow-code lets it name code, --set outputs.EXPORTER=FILE says another place.
    """
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.files import check_inside
    from topoplan_engine.reporting.runs import report_run

    changes = [*(change or ()), *(["run.record=true"] if recording.record else [])]
    experiment = experiment_from_toml(Path(file), changes, allow_code=allow_code)
    typed = {key.partition("=")[0] for key in change or ()}
    for choice, output in experiment.outputs:
        if f"outputs.{choice.name}" not in typed:
            instead = f"--set outputs.{choice.name}=FILE says where"
            check_inside(Path(output), (Path.cwd(), Path(file).parent), f"{file}: outputs: {choice.name}", instead)
    report_run(experiment, folder, as_json=as_json, open_page=open_page, details=details)

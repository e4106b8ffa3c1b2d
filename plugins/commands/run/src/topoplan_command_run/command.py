"""``topoplan run``: the same as ``optimize``, with every option from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topoplan_engine.flags import AsJson, Flags, Folder, Open
from topoplan_engine.options import RunOptions

__all__ = ["run"]


def run(
    file: Annotated[str, typer.Argument(help="Experiment in TOML.")],
    recording: Annotated[RunOptions, Flags(only=("record",))],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key, e.g. cluster.degree=8."),
    ] = None,
    as_json: AsJson = False,
    open_page: Open = False,
    folder: Folder = None,
) -> None:
    """Run an experiment that a TOML file describes."""
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.reporting.runs import report_run

    changes = [*(change or ()), *(["run.record=true"] if recording.record else [])]
    report_run(experiment_from_toml(Path(file), changes), folder, as_json=as_json, open_page=open_page)

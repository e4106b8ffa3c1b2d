"""``topoplan run``: the same as ``optimize``, with every option from a TOML file."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    file: Path = typer.Argument(help="Experiment in TOML."),
    change: list[str] = typer.Option(
        [], "--set", metavar="SECTION.KEY=VALUE", help="Override a key, e.g. cluster.degree=8."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Run an experiment that a TOML file describes."""
    from topoplan.cli.report import run_and_report
    from topoplan.experiment import experiment_from_toml

    run_and_report(experiment_from_toml(file, change), as_json=as_json)

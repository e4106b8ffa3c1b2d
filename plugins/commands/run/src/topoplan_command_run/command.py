"""``topoplan run``: the same as ``optimize``, with every option from a TOML file."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("run")(run)
    return app


def run(
    file: Path = typer.Argument(help="Experiment in TOML."),
    change: list[str] = typer.Option(
        [], "--set", metavar="SECTION.KEY=VALUE", help="Override a key, e.g. cluster.degree=8."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Run an experiment that a TOML file describes."""
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.reporting.report import run_and_report

    run_and_report(experiment_from_toml(file, change), as_json=as_json)

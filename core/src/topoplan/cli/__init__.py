"""The command line: thin commands over the Python API.

Every module of this package adds its commands to one typer application through ``register(app)`` and
imports what it needs inside the command, so that ``topoplan --help`` neither loads plugins nor numpy.
Plugins add commands of their own (`topoplan.cli.words`).  What a user caused ends as one line on standard
error and exit status 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import typer

from topoplan import __version__
from topoplan.cli.words import Words
from topoplan.components import CORE_COMMANDS
from topoplan.errors import TopoplanError

__all__ = ["application", "main"]


def application() -> typer.Typer:
    """Make the typer application with all commands."""
    app = typer.Typer(
        name="topoplan",
        cls=Words,
        help="Search parallelization strategies and network topologies together.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},  # commands of plugins inherit them
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_topoplan)
    for name in CORE_COMMANDS:
        importlib.import_module(f"topoplan.cli.{name}").register(app)
    return app


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line (``sys.argv`` unless ``args`` are given) and exit."""
    try:
        application()(args=args)
    except TopoplanError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topoplan {__version__}")
        raise typer.Exit


def _topoplan(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_show_version, is_eager=True),
) -> None:
    """Search parallelization strategies and network topologies together."""

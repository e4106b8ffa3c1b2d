"""The command ``topoplan flexflow``: says what became of the flags, and plans what they ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from topoplan_engine.flags import AsJson, Details, Flags, with_flags
from topoplan_engine.options import RunOptions
from topoplan_engine.text_command import TextCommand

__all__ = ["application", "flexflow"]


def application() -> typer.Typer:
    """Make the application: one command that leaves the words behind the program's name alone."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=TextCommand, context_settings={"allow_interspersed_args": False})(with_flags(flexflow))
    return app


def flexflow(
    run: Annotated[RunOptions, Flags(only=("seed",))],
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="Program of FlexFlow, or a path of it, e.g. ./alexnet.")
    ],
    words: Annotated[list[str] | None, typer.Argument(metavar="FLAG", help="Its flags, as they are.")] = None,
    as_json: AsJson = False,
    details: Details = False,
) -> None:
    """Plan and simulate what a FlexFlow command line trains; options of this command stand before PROGRAM.

    Nothing is trained. With --json, what became of the flags goes to standard error.
    """
    from topoplan_command_flexnet.cli import show
    from topoplan_command_flexnet.flexflow.story import SCOPE, rows_of, warnings_of
    from topoplan_command_flexnet.flexflow.translate import experiment_of, read_line
    from topoplan_command_flexnet.spell import command_line
    from topoplan_engine import run_and_report

    line = read_line([program, *(words or ())])
    show([("FLAG", "VALUE", "BECAME"), *rows_of(line.findings, line.settings)], err=as_json)
    typer.echo(f"note: {SCOPE}", err=True)
    for warning in warnings_of(line.findings):
        typer.echo(f"warning: {warning}", err=True)
    experiment = experiment_of(line.program, line.settings, run.seed)
    typer.echo(f"\nthe same in one line: {command_line(experiment)}\n", err=as_json)
    run_and_report(experiment, as_json=as_json, details=details)

"""The command ``topoplan flexflow``: says what became of the flags, and plans what they ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from topoplan_engine.flags import AsJson, Flags, with_flags
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
) -> None:
    """Plan and simulate what a FlexFlow command line trains; options of this command stand before PROGRAM.

    Nothing is trained. With --json, what became of the flags goes to standard error.
    """
    from topoplan_command_flexnet.cli import show
    from topoplan_command_flexnet.flexflow.flags import FLAGS, PROGRAMS, RUNTIME
    from topoplan_command_flexnet.flexflow.story import SCOPE, rows_of, warnings_of
    from topoplan_command_flexnet.flexflow.translate import experiment_of, settings_of
    from topoplan_command_flexnet.programs import program_of
    from topoplan_command_flexnet.scan import scan
    from topoplan_command_flexnet.spell import command_line
    from topoplan_engine import run_and_report

    called = program_of(program, PROGRAMS, "FlexFlow that is planned here")
    findings = scan(words or [], (*FLAGS, *called.flags), RUNTIME)
    settings = settings_of(findings)
    show([("FLAG", "VALUE", "BECAME"), *rows_of(findings, settings)], err=as_json)
    typer.echo(f"note: {SCOPE}", err=True)
    for warning in warnings_of(findings):
        typer.echo(f"warning: {warning}", err=True)
    experiment = experiment_of(called, settings, run.seed)
    typer.echo(f"\nthe same in one line: {command_line(experiment)}\n", err=as_json)
    run_and_report(experiment, as_json=as_json)

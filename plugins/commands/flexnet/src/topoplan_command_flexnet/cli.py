"""The command: says what became of the flags, and runs what they ask for.

What it needs is imported when it runs, so that its help comes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from topoplan_engine.flags import AsJson, Details, Flags, with_flags
from topoplan_engine.options import RunOptions
from topoplan_engine.text_command import TextCommand

if TYPE_CHECKING:
    from topoplan_command_flexnet.story import Row

__all__ = ["application", "flexnet", "show"]

_LONGEST = 28


def application() -> typer.Typer:
    """Make the application: one command that leaves the words behind the program's name alone."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=TextCommand, context_settings={"allow_interspersed_args": False})(with_flags(flexnet))
    return app


def flexnet(
    run: Annotated[RunOptions, Flags(only=("seed",))],
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="Program of FlexNet, or a path of it, e.g. ./dlrmsim.")
    ],
    words: Annotated[list[str] | None, typer.Argument(metavar="FLAG", help="Its flags, as they are.")] = None,
    as_json: AsJson = False,
    details: Details = False,
) -> None:
    """Run a FlexNet command line as it is; options of this command stand before PROGRAM.

    With --json, what became of the flags goes to standard error.
    """
    from topoplan_command_flexnet.spell import command_line
    from topoplan_command_flexnet.story import rows_of, warnings_of
    from topoplan_command_flexnet.translate import experiment_of_line, read_line
    from topoplan_engine import run_and_report

    line = read_line([program, *(words or ())])
    show([("FLAG", "VALUE", "BECAME"), *rows_of(line.findings, line.settings)], err=as_json)
    for warning in warnings_of(line.findings, line.settings):
        typer.echo(f"warning: {warning}", err=True)
    experiment = experiment_of_line(line, run.seed)
    typer.echo(f"\nthe same in one line: {command_line(experiment)}\n", err=as_json)
    run_and_report(experiment, as_json=as_json, details=details)


def show(rows: list[Row], *, err: bool) -> None:
    """Print rows as a table; long values are cut."""
    short = [(flag, _cut(value), became) for flag, value, became in rows]
    first, second = (max(len(row[column]) for row in short) for column in (0, 1))
    for flag, value, became in short:
        typer.echo(f"{flag:{first}}  {value:{second}}  {became}".rstrip(), err=err)


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."

"""Promises of commands: ``app() -> typer.Typer``, made only when it is asked for."""

from __future__ import annotations

import contextlib
import io

import typer

from topoplan.plugin.components import Command


def check_app_shows_its_help(component: type[Command]) -> None:
    """The application can be made, more than once, and ``--help`` says something and ends well."""
    for _ in range(2):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = typer.main.get_command(component().app()).main(["--help"], component.name, standalone_mode=False)
        assert not status, f"--help ends with status {status}"
        assert "--help" in output.getvalue(), "--help does not list options"

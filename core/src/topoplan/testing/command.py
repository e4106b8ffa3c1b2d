"""Promises of commands: ``app() -> typer.Typer``, made only when it is asked for."""

from __future__ import annotations

import contextlib
import io

import typer

from topoplan.plugin.components import Command
from topoplan.testing import common

__all__ = [
    "check_app_shows_its_help",
    "check_command_pickles",
    "check_import_is_light",
    "check_summary_is_one_line",
]


def check_summary_is_one_line(command: type[Command]) -> None:
    """The summary is one line of at most 120 characters."""
    common.check_summary_is_one_line(command)


def check_command_pickles(command: type[Command]) -> None:
    """The command can be sent to another process: its class stands at the top of a module."""
    common.check_component_pickles(command)


def check_import_is_light(command: type[Command]) -> None:
    """Importing the plugin loads no heavy package; those belong inside `app`."""
    module = command.__module__.partition(".")[0]
    loaded = common.heavy_after_import(module)
    assert not loaded, f"importing {module} loads {loaded}; import it inside app"


def check_app_shows_its_help(command: type[Command]) -> None:
    """The application can be made, more than once, and ``--help`` says something and ends well."""
    for _ in range(2):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            status = typer.main.get_command(command().app()).main(["--help"], command.name, standalone_mode=False)
        assert not status, f"--help ends with status {status}"
        assert "--help" in told.getvalue(), "--help does not list options"

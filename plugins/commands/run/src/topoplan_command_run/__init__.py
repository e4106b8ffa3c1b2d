"""``topoplan run``: optimize, with every option from a TOML file."""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["RUN", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_run.command import application

    return application()


RUN = Command(name="run", summary="optimize, with every option from a TOML file", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [RUN]

"""``topoplan simulate``: replay a task graph from anybody."""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["SIMULATE", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_simulate.command import application

    return application()


SIMULATE = Command(name="simulate", summary="replay a task graph from anybody", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [SIMULATE]

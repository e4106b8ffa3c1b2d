"""``topoplan optimize``: search a strategy (and a network) for a model, and write the plan."""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["OPTIMIZE", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_optimize.command import application

    return application()


OPTIMIZE = Command(
    name="optimize", summary="search a strategy (and a network) for a model, and write the plan", app=app
)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [OPTIMIZE]

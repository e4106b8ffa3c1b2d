"""``topoplan sensitivity``: what becomes of a plan when costs are not as estimated."""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["SENSITIVITY", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_sensitivity.command import application

    return application()


SENSITIVITY = Command(name="sensitivity", summary="what becomes of a plan when costs are not as estimated", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [SENSITIVITY]

"""``topoplan compare``: networks side by side, for one model or for a figure."""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["COMPARE", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_compare.command import application

    return application()


COMPARE = Command(name="compare", summary="networks side by side, for one model or for a figure", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [COMPARE]

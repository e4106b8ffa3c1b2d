"""``topoplan validate``: what is predicted beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Validate", "topoplan_commands"]


class Validate(Command):
    """Predictions beside public measurements."""

    name = "validate"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_validate.command import application

        return application()


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Validate

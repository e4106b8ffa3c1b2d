"""``topoplan sensitivity``: what becomes of a plan when costs are not as estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Sensitivity", "topoplan_commands"]


class Sensitivity(Command):
    """What becomes of a plan when costs are not as estimated."""

    name = "sensitivity"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_sensitivity.command import sensitivity
        from topoplan_engine.flags import one_command

        return one_command("sensitivity", sensitivity)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Sensitivity

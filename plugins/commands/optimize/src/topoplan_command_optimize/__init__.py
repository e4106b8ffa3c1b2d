"""``topoplan optimize``: search a strategy (and a network) for a model, and write the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Optimize", "topoplan_commands"]


class Optimize(Command):
    """Search a strategy (and a network) for a model, and write the plan."""

    name = "optimize"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_optimize.command import optimize
        from topoplan_engine.flags import one_command

        return one_command("optimize", optimize)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Optimize

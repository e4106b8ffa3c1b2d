"""``topoplan simulate``: replay a task graph from anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Simulate", "topoplan_commands"]


class Simulate(Command):
    """Replay a task graph from anybody."""

    name = "simulate"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_simulate.command import simulate
        from topoplan_engine.flags import one_command

        return one_command("simulate", simulate)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Simulate

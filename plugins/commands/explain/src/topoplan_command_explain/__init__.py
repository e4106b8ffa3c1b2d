"""``topoplan explain``: what a number in a table means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Explain", "topoplan_commands"]


class Explain(Command):
    """What a number in a table means."""

    name = "explain"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_explain.command import explain
        from topoplan_engine.flags import one_command

        return one_command("explain", explain)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Explain

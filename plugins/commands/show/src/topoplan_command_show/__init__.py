"""``topoplan show``: a plan in eighty columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Show", "topoplan_commands"]


class Show(Command):
    """A plan in eighty columns."""

    name = "show"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_show.command import show
        from topoplan_engine.flags import one_command

        return one_command("show", show)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Show

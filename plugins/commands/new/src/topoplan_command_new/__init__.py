"""``topoplan new``: a package for a plugin of your own, whose tests pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["New", "topoplan_commands"]


class New(Command):
    """A package for a plugin of your own, whose tests pass at once."""

    name = "new"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_new.command import application

        return application()


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return New

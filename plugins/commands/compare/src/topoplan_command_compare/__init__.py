"""``topoplan compare``: networks side by side, for one model or for a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Compare", "topoplan_commands"]


class Compare(Command):
    """Networks side by side, for one model or for a figure."""

    name = "compare"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_compare.command import compare
        from topoplan_engine.flags import one_command

        return one_command("compare", compare)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Compare

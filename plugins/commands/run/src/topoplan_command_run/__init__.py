"""``topoplan run``: optimize, with every option from a TOML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Run", "topoplan_commands"]


class Run(Command):
    """optimize, with every option from a TOML file."""

    name = "run"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_run.command import run
        from topoplan_engine.flags import one_command

        return one_command("run", run)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Run

"""``topoplan problems``: benchmark problems with their best known times and lower bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Problems", "topoplan_commands"]


class Problems(Command):
    """Benchmark problems: best known times, lower bounds, and searches for better ones."""

    name = "problems"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_problems.command import problems
        from topoplan_engine.flags import one_command

        return one_command("problems", problems)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Problems

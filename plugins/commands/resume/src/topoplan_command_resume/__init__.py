"""``topoplan resume``: go on with a search that a folder keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Resume", "topoplan_commands"]


class Resume(Command):
    """Go on with a search that a folder keeps."""

    name = "resume"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_resume.command import resume
        from topoplan_engine.flags import one_command

        return one_command("resume", resume)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Resume
